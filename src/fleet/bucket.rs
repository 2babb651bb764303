//! The bucket of a fleet: the place of the archives that all replicas share. It is an untrusted transport: what comes from it is
//! verified like what comes from an upstream.
//!
//! Objects have unique names, are written once, and are never listed: the database knows them. A large one is sent in parts, which
//! nobody sees until the upload is completed with the proof of the bytes.

use std::error::Error as StdError;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use derive_more::Display;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt as _, TryStreamExt as _};
use http::Extensions;
use object_store::multipart::PartId;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, MultipartId, ObjectStore as _, ObjectStoreExt as _, PutOptions, PutPayload};

use super::services::{BucketSettingsError, Objects, objects_of};
use crate::config;
use crate::digest::Digest;
use crate::upstream::buckets::{BucketFault, BucketTrouble, SpoiltBody, TakesObject};
use crate::verify::Verified;

/// The size of the parts of a large object, in bytes. The last one may be smaller.
pub const PART_BYTES: u64 = 8 << 20;

/// The name of the mark of a fleet, below the prefix of the bucket.
const MARK: &str = "fleet.json";

/// The name of an object, below the prefix of the bucket: `b/ab/SHA256/UUID`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Display)]
pub struct ObjectName(String);

impl ObjectName {
    /// A name that no object has yet, for an archive.
    ///
    /// # Errors
    /// The system returns no random bytes.
    pub fn new(digest: &Digest) -> Result<Self, aws_lc_rs::error::Unspecified> {
        let (hex, mut random) = (digest.to_string(), [0; 16]);
        aws_lc_rs::rand::fill(&mut random)?;
        Ok(Self(format!("b/{}/{hex}/{}", &hex[..2], hex::encode(random))))
    }
}

impl FromStr for ObjectName {
    type Err = NoObjectName;

    fn from_str(text: &str) -> Result<Self, NoObjectName> {
        let is_name = |text: &str| {
            let mut parts = text.strip_prefix("b/")?.split('/');
            let (start, digest, random) = (parts.next()?, parts.next()?, parts.next()?);
            let is_hex = random.len() == 32 && random.bytes().all(|byte| byte.is_ascii_hexdigit());
            let digest = Digest::parse(digest).ok()?;
            (parts.next().is_none() && is_hex && digest.to_string()[..2] == *start).then_some(())
        };
        is_name(text).map(|()| Self(text.to_owned())).ok_or(NoObjectName)
    }
}

/// A text that is no name of an object.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("this is no name of an object of larder")]
pub struct NoObjectName;

/// A request to the bucket that was not fulfilled.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{bucket} could not {doing}: {said} ({trouble})", trouble = .fault.trouble, said = .fault.said)]
pub struct BucketError {
    /// The bucket, as the configuration names it.
    pub bucket: String,
    /// The attempt, as a verb with its object.
    pub doing: String,
    /// The trouble.
    pub fault: BucketFault,
}

impl BucketError {
    /// True if no answer came: the next request would wait, too.
    pub fn is_without_answer(&self) -> bool {
        matches!(self.fault.trouble, BucketTrouble::Silent | BucketTrouble::Unreachable)
    }

    /// True if the same request may succeed in a moment.
    pub fn may_pass(&self) -> bool {
        matches!(self.fault.trouble, BucketTrouble::Slow | BucketTrouble::Unreachable | BucketTrouble::Broken)
    }

    /// The remedy for the operator.
    pub fn remedy(&self) -> &'static str {
        match self.fault.trouble {
            BucketTrouble::Denied => {
                "check bucket_key in [fleet], and its rights below the prefix: get, put and delete, and to list the bucket (without it, S3 answers 403 for an object that is absent)"
            }
            BucketTrouble::Full => "raise the quota of the bucket, or free space; larder continues by itself",
            BucketTrouble::Slow => "larder tries again; if this lasts, look at the object store",
            BucketTrouble::Unreachable | BucketTrouble::Silent => {
                "check endpoint in [fleet], the network, and the authority in [network] ca_file"
            }
            BucketTrouble::WrongClock => "synchronise the clocks of this machine and of the object store (NTP)",
            BucketTrouble::WrongBytes => "look for a proxy between larder and the bucket that changes bytes",
            BucketTrouble::NoObject => "see whether a lifecycle rule or a person removes objects of the bucket",
            BucketTrouble::NoBucket => "make the bucket, or mend its name in [fleet] bucket",
            BucketTrouble::Broken => "look at the log of the object store",
        }
    }
}

/// The connection to the bucket.
#[derive(Clone)]
pub struct Bucket {
    /// With the key, which may be renewed.
    objects: Arc<ArcSwap<Arc<dyn Objects>>>,
    place: config::Bucket,
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The settings of the library have the key.
        f.debug_tuple("Bucket").field(&self.place.to_string()).finish()
    }
}

/// An upload in parts, which nobody sees yet.
#[derive(Debug)]
pub struct PartialObject {
    object: ObjectName,
    path: Path,
    id: MultipartId,
}

/// A part that the bucket has taken.
#[derive(Debug)]
pub struct Part(PartId);

/// An object that arrives.
pub struct ArrivingObject {
    /// The length of the whole object, in bytes.
    pub length: u64,
    /// Its bytes, from the requested one on.
    pub bytes: BoxStream<'static, Result<Bytes, BucketError>>,
}

impl Bucket {
    /// The bucket of the configuration. Asks nothing yet.
    ///
    /// # Errors
    /// The settings cannot be used.
    pub fn new(fleet: &config::Fleet, network: &config::Network) -> Result<Self, BucketSettingsError> {
        let objects = Arc::new(ArcSwap::from_pointee(objects_of(fleet, network)?));
        Ok(Self { objects, place: fleet.bucket.clone() })
    }

    /// Makes new requests by the settings of another value of the same bucket from now on.
    pub fn use_key_of(&self, other: &Self) {
        self.objects.store(other.objects.load_full());
    }

    fn objects(&self) -> Arc<dyn Objects> {
        Arc::clone(&self.objects.load())
    }

    /// The bytes of `fleet.json`, the mark of the fleet; `None` if there is none.
    ///
    /// # Errors
    /// The bucket does not say.
    pub async fn mark(&self) -> Result<Option<Bytes>, BucketError> {
        let path = Path::from(format!("{}{MARK}", self.place.prefix));
        let read = async { self.objects().get(&path).await?.bytes().await };
        match self.ask("send fleet.json", read).await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.fault.trouble == BucketTrouble::NoObject => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes `fleet.json`.
    ///
    /// # Errors
    /// The bucket does not take it.
    pub async fn put_mark(&self, bytes: Bytes) -> Result<(), BucketError> {
        let path = Path::from(format!("{}{MARK}", self.place.prefix));
        self.ask("take fleet.json", self.objects().put(&path, PutPayload::from(bytes))).await.map(drop)
    }

    /// Stores an object whole.
    ///
    /// # Errors
    /// It may be stored all the same: an answer can be lost.
    pub async fn put<T: ?Sized>(&self, object: &ObjectName, bytes: Bytes, _: &Verified<T>) -> Result<(), BucketError> {
        let path = self.path(object);
        let objects = self.objects();
        let put = objects.put(&path, PutPayload::from(bytes));
        self.ask(&format!("take {object}"), put).await.map(drop)
    }

    /// Sends an object whose bytes change on the way. A bucket that checks them refuses it.
    ///
    /// # Errors
    /// The bucket refuses it.
    pub async fn put_spoilt(&self, object: &ObjectName, bytes: Bytes) -> Result<(), BucketError> {
        let (path, mut extensions) = (self.path(object), Extensions::new());
        extensions.insert(SpoiltBody);
        let options = PutOptions { extensions, ..PutOptions::default() };
        let objects = self.objects();
        let put = objects.put_opts(&path, PutPayload::from(bytes), options);
        self.ask(&format!("take {object}"), put).await.map(drop)
    }

    /// Begins an object that is sent in parts.
    ///
    /// # Errors
    /// The bucket does not take it.
    pub async fn begin(&self, object: &ObjectName) -> Result<PartialObject, BucketError> {
        let path = self.path(object);
        let begun = self.ask(&format!("begin {object}"), self.objects().create_multipart(&path)).await;
        begun.map(|id| PartialObject { object: object.clone(), path: path.clone(), id })
    }

    /// Sends a part; they are numbered from 0.
    ///
    /// # Errors
    /// The bucket does not take it.
    pub async fn put_part(&self, partial: &PartialObject, number: usize, bytes: Bytes) -> Result<Part, BucketError> {
        let PartialObject { object, path, id } = partial;
        let objects = self.objects();
        let sent = objects.put_part(path, id, number, PutPayload::from(bytes));
        self.ask(&format!("take part {number} of {object}"), sent).await.map(Part)
    }

    /// Makes an object of its parts, which are proven.
    ///
    /// # Errors
    /// It may be stored all the same: an answer can be lost.
    pub async fn complete<T: ?Sized>(
        &self,
        partial: &PartialObject,
        parts: &[Part],
        _: &Verified<T>,
    ) -> Result<(), BucketError> {
        let PartialObject { object, path, id } = partial;
        let parts = parts.iter().map(|Part(id)| id.clone()).collect();
        let objects = self.objects();
        let completed = objects.complete_multipart(path, id, parts);
        self.ask(&format!("complete {object}"), completed).await.map(drop)
    }

    /// Gives an upload up: its parts go.
    ///
    /// # Errors
    /// The bucket did not say so. Its parts stay until a rule of the bucket removes them.
    pub async fn abort(&self, partial: &PartialObject) -> Result<(), BucketError> {
        let PartialObject { object, path, id } = partial;
        self.ask(&format!("give up {object}"), self.objects().abort_multipart(path, id)).await
    }

    /// Reads an object from byte `from` on.
    ///
    /// # Errors
    /// The bucket does not send it. [`BucketTrouble::NoObject`] where it says that there is none.
    pub async fn get(&self, object: &ObjectName, from: u64) -> Result<ArrivingObject, BucketError> {
        let path = self.path(object);
        let mut extensions = Extensions::new();
        extensions.insert(TakesObject);
        let range = (from > 0).then_some(GetRange::Offset(from));
        let options = GetOptions { range, extensions, ..GetOptions::default() };
        let doing = format!("send {object}");
        let sent = self.ask(&doing, self.objects().get_opts(&path, options)).await?;
        let (length, bucket) = (sent.meta.size, self.clone());
        let bytes = sent.into_stream().map_err(move |error| bucket.failed(&doing, fault_of(&error))).boxed();
        Ok(ArrivingObject { length, bytes })
    }

    /// The length of an object in bytes.
    ///
    /// # Errors
    /// The bucket does not say it. [`BucketTrouble::NoObject`] where it says that there is none.
    pub async fn length(&self, object: &ObjectName) -> Result<u64, BucketError> {
        let path = self.path(object);
        let head = self.ask(&format!("find {object}"), self.objects().head(&path)).await;
        head.map(|found| found.size)
    }

    /// Removes an object. One that is absent is removed.
    ///
    /// # Errors
    /// The bucket does not remove it.
    pub async fn delete(&self, object: &ObjectName) -> Result<(), BucketError> {
        let path = self.path(object);
        match self.ask(&format!("remove {object}"), self.objects().delete(&path)).await {
            Err(error) if error.fault.trouble == BucketTrouble::NoObject => Ok(()),
            removed => removed,
        }
    }

    /// The bucket, as the configuration names it.
    pub fn place(&self) -> String {
        self.place.to_string()
    }

    /// The error of an upload whose bytes cannot be read on this machine.
    pub fn unreadable(&self, object: &ObjectName, error: &std::io::Error) -> BucketError {
        let fault =
            BucketFault { trouble: BucketTrouble::Broken, said: format!("the staged file cannot be read: {error}") };
        self.failed(&format!("take {object}"), fault)
    }

    fn path(&self, ObjectName(name): &ObjectName) -> Path {
        Path::from(format!("{}{name}", self.place.prefix))
    }

    async fn ask<T>(
        &self,
        doing: &str,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, BucketError> {
        request.await.map_err(|error| self.failed(doing, fault_of(&error)))
    }

    /// The error of an attempt.
    pub fn failed(&self, doing: &str, fault: BucketFault) -> BucketError {
        BucketError { bucket: self.place.to_string(), doing: doing.to_owned(), fault }
    }
}

/// The fault in an error of the library, or its own text: the key is in none of them.
fn fault_of(error: &(dyn StdError + 'static)) -> BucketFault {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(fault) = error.downcast_ref::<BucketFault>() {
            return fault.clone();
        }
        cause = error.source();
    }
    BucketFault { trouble: BucketTrouble::Broken, said: error.to_string() }
}
