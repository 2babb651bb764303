//! Bundles: stored archives and documents as one stream, for transfer across an air gap. The stream is a plain tar, so
//! that any tool can list its files. Every byte of the stream is checked:
//!
//! ```text
//! larder-bundle.json      the manifest: the contents, with digests, sizes, addresses, keys, commits, tree digests
//! larder-bundle.sig       an Ed25519 signature over the manifest's bytes, where a key is configured
//! sha256/HEX              each file once, in the manifest's order: the small files of an entry, then its archive
//! ```
//!
//! This module only reads and writes streams. The callers collect the contents and import them into a store.

mod inventory;
mod manifest;
mod parts;
mod receipt;
mod repair;
mod signing;
mod stream;

pub use self::inventory::{BadInventory, Inventory};
pub use self::manifest::{
    AddressNotes, BadManifest, BundleEntry, BundledArchive, BundledDocument, BundledFile, EntryFile, FetchOrigin,
    FileRole, MAX_MANIFEST, Manifest, ModuleEntry, ProviderEntry,
};
pub use self::parts::{BadParts, BundlePart, MIN_PART_BYTES, PartList, PartsReader, PartsWriter, WrittenParts};
pub use self::receipt::{ApplyEvent, ApplyOutcome, EntryOutcome, Receipt};
pub use self::repair::{REPAIR_FILE, copy_with_repair_file, rebuild_from_repair_file};
pub use self::signing::{
    BadKey, BundleKeyIds, BundleKeys, BundleTrust, KeyId, NotesPolicy, PublicKey, Signature, SignatureStatus,
    SigningKey,
};
pub use self::stream::{BadBundle, BundleReader, BundleWriter};
