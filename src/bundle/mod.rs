//! Bundles: stored archives and documents as one stream, to be carried across an air gap. The stream is a plain tar, so
//! that any tool can list it, and every byte of it is checked:
//!
//! ```text
//! larder-bundle.json      the manifest: what is in it, with digests, sizes, addresses, keys, commits, tree digests
//! larder-bundle.sig       an Ed25519 signature over the manifest's bytes, where a key is configured
//! sha256/HEX              each file once, in the manifest's order: an entry's small files, then its archive
//! ```
//!
//! This module only reads and writes streams. The callers collect the contents and import them into a store.

mod inventory;
mod manifest;
mod open;
mod parts;
mod receipt;
mod record;
mod signing;
mod tar;
mod write;

pub use self::inventory::{BadInventory, Inventory};
pub use self::manifest::{
    Archive, BadManifest, Document, Entry, File, FileRef, LARGEST_MANIFEST, Manifest, ModuleEntry, ProviderEntry, Role,
    Said,
};
pub use self::open::{BadBundle, Content, Opened};
pub use self::parts::{BadParts, LEAST_PART, Part, PartList, PartsReader, PartsWriter, WrittenParts};
pub use self::receipt::{Outcome, Receipt, Step, Told};
pub use self::record::{RECORD, open_record, recorded, written_again};
pub use self::signing::{BadKey, KeyId, KeyIds, Keys, PublicKey, Signature, SigningKey, Standing, Trust};
pub use self::write::Writer;
