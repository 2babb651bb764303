//! Pull-through for a download document with its SHA256SUMS and signature: fetched together, proven,
//! kept as one file, replaced as one (promise 2). Nothing of an unproven set is answered.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use url::Url;

use super::documents::RETRIES;
use super::freshness::Age;
use super::pull::{Flight, Landed};
use super::seen::{self, History};
use super::{Answer, Call, Mirror, Outcome, parts};
use crate::address::{Package, Platform, ProviderAddress, Version};
use crate::clock::Timestamp;
use crate::digest::{Digest, DigestPrefix};
use crate::error::Error;
use crate::store::{Durability, Key, StoreError};
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::outbound::{Ask, Document, Fetched, Link, Validators, origin};
use crate::upstream::providers::{DownloadDocument, download_url};
use crate::upstream::{Grant, Upstream};
use crate::verify::{Checksums, How, Policy, Proof, judge};

const LARGEST_SUMS: u64 = 4 << 20;
const LARGEST_SIGNATURE: u64 = 64 << 10;
const PREDECESSOR_ANSWERS_SECONDS: u64 = 24 * 3600;

pub(super) type SetFlight = Flight<Arc<KeptSet>>;

/// A download document, its SHA256SUMS and its signature, proven together.
#[derive(Debug, Clone)]
pub struct ProofSet {
    about: About,
    body: Bytes,
    /// SHA256SUMS, byte for byte.
    pub sums: Bytes,
    /// Its signature, byte for byte; empty where the upstream has none and need not.
    pub signature: Bytes,
    /// What the document says.
    pub document: DownloadDocument,
    sums_digest: Digest,
    signature_digest: Digest,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct About {
    asked: Url,
    url: Url,
    validators: Validators,
    sums_validators: Validators,
    signature_validators: Validators,
    fetched: Timestamp,
    proof: Proof,
}

/// Which file of a set a digest names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SetFile {
    Archive,
    Sums,
    Signature,
}

impl ProofSet {
    fn new(about: About, body: Bytes, sums: Bytes, signature: Bytes, package: &Package) -> Result<Self, String> {
        let document = DownloadDocument::parse(&body, &about.url, &package.platform)?;
        let (sums_digest, signature_digest) = (Digest::of(&sums), Digest::of(&signature));
        Ok(Self { about, body, sums, signature, document, sums_digest, signature_digest })
    }

    /// The digest of SHA256SUMS.
    pub fn sums_digest(&self) -> Digest {
        self.sums_digest
    }

    /// The digest of the signature.
    pub fn signature_digest(&self) -> Digest {
        self.signature_digest
    }

    /// The checksums, which were proven when the set was kept.
    pub fn checksums(&self) -> Option<Checksums> {
        Checksums::parse(&self.sums).ok()
    }

    /// When it was fetched and proven.
    pub fn fetched(&self) -> Timestamp {
        self.about.fetched
    }

    pub(super) fn proof(&self) -> &Proof {
        &self.about.proof
    }

    pub(super) fn file(&self, prefix: &DigestPrefix) -> Option<SetFile> {
        if prefix.matches(&self.document.shasum) {
            Some(SetFile::Archive)
        } else if prefix.matches(&self.sums_digest) {
            Some(SetFile::Sums)
        } else if prefix.matches(&self.signature_digest) && !self.signature.is_empty() {
            Some(SetFile::Signature)
        } else {
            None
        }
    }

    fn names_the_same_files_as(&self, other: &Self) -> bool {
        self.document.shasum == other.document.shasum
            && self.sums_digest == other.sums_digest
            && self.signature_digest == other.signature_digest
    }
}

/// A set as it is held, with the one it replaced.
#[derive(Debug, Clone)]
pub struct KeptSet {
    /// The set that is answered.
    pub current: Arc<ProofSet>,
    /// The set before it, and when it was replaced.
    pub predecessor: Option<(Arc<ProofSet>, Timestamp)>,
    age: Age,
}

#[derive(Serialize, Deserialize)]
struct Record {
    checked: Timestamp,
    gone: bool,
    current: About,
    predecessor: Option<(About, Timestamp)>,
}

impl KeptSet {
    /// The set that has the file a digest names, and which file that is. The predecessor's digests
    /// answer for a day; longer, while nothing but its archive is held (which a name tells).
    pub(super) fn find(&self, prefix: &DigestPrefix, now: Timestamp) -> Option<(&Arc<ProofSet>, SetFile)> {
        let predecessor = self.predecessor.as_ref();
        let predecessor =
            predecessor.filter(|(_, replaced)| now.since(*replaced).as_secs() < PREDECESSOR_ANSWERS_SECONDS);
        let sets = [Some(&self.current), predecessor.map(|(set, _)| set)];
        sets.into_iter().flatten().find_map(|set| Some((set, set.file(prefix)?)))
    }

    fn read(record: Vec<u8>, package: &Package) -> Option<Self> {
        let (about, parts) = parts::read::<Record>(record)?;
        let mut parts = parts.into_iter();
        let mut set = |about| ProofSet::new(about, parts.next()?, parts.next()?, parts.next()?, package).ok();
        let current = Arc::new(set(about.current)?);
        let predecessor = match about.predecessor {
            Some((before, replaced)) => Some((Arc::new(set(before)?), replaced)),
            None => None,
        };
        Some(Self { current, predecessor, age: Age { checked: about.checked, gone: about.gone } })
    }

    pub(super) fn is_gone(&self) -> bool {
        self.age.gone
    }

    pub(super) fn write(&self) -> Vec<u8> {
        let predecessor = self.predecessor.as_ref();
        let record = Record {
            checked: self.age.checked,
            gone: self.age.gone,
            current: self.current.about.clone(),
            predecessor: predecessor.map(|(set, replaced)| (set.about.clone(), *replaced)),
        };
        let sets = [Some(&self.current), predecessor.map(|(set, _)| set)];
        let parts: Vec<&[u8]> =
            sets.into_iter().flatten().flat_map(|set| [&set.body[..], &set.sums[..], &set.signature[..]]).collect();
        parts::write(&record, &parts)
    }
}

impl Mirror {
    /// The proof set that answers for a package.
    pub async fn proof_set(self: &Arc<Self>, package: &Package, call: &Call) -> Result<Answer<Arc<ProofSet>>, Error> {
        let upstream = Arc::clone(self.upstream(&package.provider.host)?);
        let what = format!("the download document of {package}");
        let rule = upstream.rule(|fresh| fresh.download);
        let held = self.kept_set(package).await?;
        let key = Key::ProofSet(package.clone());
        if held.is_none()
            && let Some(said) = self.absent.get(&key, call.now)
        {
            return Err(Error::NotFound(said));
        }
        if held.is_none() && self.link() == Link::Offline && self.is_listed(package).await? {
            return Err(Error::NotFound(format!(
                "{package} is not held, and this mirror is offline; other platforms of the version may be"
            )));
        }
        let mut landed = held.map(|held| Landed { age: held.age, value: held });
        let fallback = landed.as_ref().and_then(|held| self.only_predecessor_is_held(&held.value));
        if let Some(landed) = landed.as_mut().filter(|_| fallback.is_some()) {
            // Whether the current archive can be had at all decides which set answers: so ask.
            landed.age.checked = Timestamp(0);
        }
        let before = landed.as_ref().map(|held| Arc::clone(&held.value));
        let answer = self
            .pull(&what, call, &rule, landed, || self.fly(package, upstream, before, Anew::IfChanged, call))
            .await?;
        Ok(match (answer.outcome, fallback) {
            (Outcome::Stale, Some(predecessor)) => {
                Answer { value: predecessor, outcome: Outcome::Stale, fresh_until: call.now }
            }
            (outcome, _) => {
                Answer { value: Arc::clone(&answer.value.current), outcome, fresh_until: answer.fresh_until }
            }
        })
    }

    /// Whether the held version list names a package's version.
    async fn is_listed(self: &Arc<Self>, package: &Package) -> Result<bool, Error> {
        let list = self.held_document(&Key::ProviderVersions(package.provider.clone())).await?;
        let list = list.and_then(|held| held.value.versions().ok());
        Ok(list.is_some_and(|list| list.get(&package.version).is_some()))
    }

    /// Asks the whole set anew, whatever is held and however fresh.
    pub(super) async fn ask_anew(self: &Arc<Self>, package: &Package, call: &Call) -> Result<Arc<KeptSet>, Error> {
        let upstream = Arc::clone(self.upstream(&package.provider.host)?);
        let before = self.kept_set(package).await?;
        Ok(self.fly(package, upstream, before, Anew::Whole, call).await?.value)
    }

    /// The set that is held, without asking anybody.
    pub(super) async fn kept_set(self: &Arc<Self>, package: &Package) -> Result<Option<Arc<KeptSet>>, Error> {
        let package = package.clone();
        self.on_disk(move |mirror| mirror.read_set(&package)).await
    }

    pub(super) fn read_set(&self, package: &Package) -> Result<Option<Arc<KeptSet>>, StoreError> {
        let key = Key::ProofSet(package.clone());
        let Some(record) = self.store.records.get(&key)? else { return Ok(None) };
        let Some(kept) = KeptSet::read(record, package) else {
            self.store.records.set_aside(&key)?;
            return Ok(None);
        };
        Ok(Some(Arc::new(kept)))
    }

    /// The platforms of a version whose sets are held.
    pub async fn platforms_with_sets(
        self: &Arc<Self>,
        provider: &ProviderAddress,
        version: &Version,
    ) -> Result<Vec<Platform>, Error> {
        let folder = Key::sets_of(provider, version);
        let files = self.on_disk(move |mirror| mirror.store.records.list(&folder)).await?;
        Ok(files.iter().filter_map(|file| Platform::parse(file.strip_suffix(".set")?).ok()).collect())
    }

    fn only_predecessor_is_held(&self, kept: &KeptSet) -> Option<Arc<ProofSet>> {
        let (predecessor, _) = kept.predecessor.as_ref()?;
        let holds = |set: &ProofSet| self.store.blobs.holds(&set.document.shasum);
        (!holds(&kept.current) && holds(predecessor)).then(|| Arc::clone(predecessor))
    }

    fn fly(
        self: &Arc<Self>,
        package: &Package,
        upstream: Arc<Upstream>,
        before: Option<Arc<KeptSet>>,
        anew: Anew,
        call: &Call,
    ) -> super::Awaited<SetFlight> {
        let what = format!("the download document of {package}");
        self.sets.share(&self.tasks, package.clone(), Err(Error::Interrupted(what.clone())), || {
            let (mirror, package, call) = (Arc::clone(self), package.clone(), self.inner(call));
            async move {
                let work = mirror.fetch_set(&what, &upstream, &package, before, anew, &call);
                mirror.within_limits(&what, &package.provider.host, work).await
            }
        })
    }

    async fn fetch_set(
        self: &Arc<Self>,
        what: &str,
        upstream: &Upstream,
        package: &Package,
        before: Option<Arc<KeptSet>>,
        anew: Anew,
        call: &Call,
    ) -> SetFlight {
        let (base, grant) = self.providers_service(upstream, call).await?;
        let spelled = self.spelling(package, call).await;
        let unusable =
            |why: String| UpstreamError { asked: what.to_owned(), at: origin(&base), fault: Fault::Unusable(why) };
        let asked =
            download_url(&base, &package.provider, &spelled, &package.platform).map_err(|e| unusable(e.to_string()))?;
        let visit = Visit {
            what,
            asked: &asked,
            upstream,
            grant: &grant,
            package,
            call,
            retries: if before.is_some() { 0 } else { RETRIES },
        };
        let fetched = match self.visit(&visit, before.as_deref().filter(|_| anew == Anew::IfChanged)).await {
            Err(Error::Upstream(error)) if matches!(error.fault, Fault::Absent(_)) && error.asked == what => {
                return self.set_is_gone(upstream, package, before, &error, call).await;
            }
            // The document was asked already, and one of its files would not come: its URLs may be too old.
            Err(Error::Upstream(error)) if error.asked != what && error.fault.may_be_an_expired_url() => {
                self.visit(&visit, None).await.map_err(|error| not_of_the_document(error, what))
            }
            fetched => fetched,
        };
        let set = fetched?;
        self.admit(package, &set, call.now).await?;
        self.keep_set(package, before, set, call.now).await
    }

    /// The version as the upstream's own list spells it; as clients spell it, where the list cannot tell.
    async fn spelling(self: &Arc<Self>, package: &Package, call: &Call) -> String {
        let listed = Box::pin(self.provider_versions(&package.provider, call)).await.ok();
        let list = listed.and_then(|answer| answer.value.versions().ok());
        let spelled = list.and_then(|list| list.get(&package.version).map(|listed| listed.spelled.clone()));
        spelled.unwrap_or_else(|| package.version.to_string())
    }

    /// Fetches a document, and its sums and signature side by side; proves them.
    async fn visit(self: &Arc<Self>, visit: &Visit<'_>, before: Option<&KeptSet>) -> Result<ProofSet, Error> {
        let held = before.map(|kept| &*kept.current).filter(|held| held.about.asked == *visit.asked);
        let conditions = held.map(|held| &held.about.validators);
        let fetched =
            self.outbound.document(visit.ask(visit.what, visit.asked), conditions, self.limits.document_bytes).await?;
        let unusable = |at: &Url, why: String| UpstreamError {
            asked: visit.what.to_owned(),
            at: origin(at),
            fault: Fault::Unusable(why),
        };
        let (body, url, validators) = match (fetched, held) {
            (Fetched::New(Document { body, validators, url, .. }), _) => (body, url, validators),
            (Fetched::Unchanged, Some(held)) => {
                (held.body.clone(), held.about.url.clone(), held.about.validators.clone())
            }
            (Fetched::Unchanged, None) => {
                return Err(unusable(visit.asked, "304 to an unconditional request".into()).into());
            }
        };
        let document =
            DownloadDocument::parse(&body, &url, &visit.package.platform).map_err(|why| unusable(&url, why))?;
        let policy = visit.upstream.settings.verification;
        let sums_held = held.filter(|held| held.document.sums_url == document.sums_url);
        let sums_held = sums_held.map(|held| (&held.sums, &held.about.sums_validators));
        let signature_held = held.filter(|held| held.document.signature_url == document.signature_url);
        let signature_held = signature_held.map(|held| (&held.signature, &held.about.signature_validators));
        let (sums, signature) = tokio::try_join!(
            self.companion(visit, "SHA256SUMS", &document.sums_url, sums_held, LARGEST_SUMS),
            self.signature(visit, policy, &document, signature_held),
        )?;
        let proven = judge(policy, &sums.0, &signature.0, &document.keys, document.filename.as_str(), &document.shasum);
        let (proof, _) = proven.map_err(|verdict| unverified(visit.what, &url, verdict.to_string()))?;
        for warning in &proof.warnings {
            tracing::warn!(package = %visit.package, warning, "a proof was accepted with a warning");
        }
        let about = About {
            asked: visit.asked.clone(),
            url: url.clone(),
            validators,
            sums_validators: sums.1,
            signature_validators: signature.1,
            fetched: visit.call.now,
            proof,
        };
        Ok(ProofSet::new(about, body, sums.0, signature.0, visit.package).map_err(|why| unusable(&url, why))?)
    }

    async fn signature(
        &self,
        visit: &Visit<'_>,
        policy: Policy,
        document: &DownloadDocument,
        held: Option<(&Bytes, &Validators)>,
    ) -> Result<(Bytes, Validators), Error> {
        let none = Ok((Bytes::new(), Validators::default()));
        let Some(url) = &document.signature_url else { return none };
        match self.companion(visit, "the signature of SHA256SUMS", url, held, LARGEST_SIGNATURE).await {
            // Nobody asked for a signature where checksums suffice, so its absence is no failure there.
            Err(Error::Upstream(error)) if policy == Policy::Checksum && matches!(error.fault, Fault::Absent(_)) => {
                none
            }
            fetched => fetched,
        }
    }

    /// Fetches a file that the document names, byte for byte.
    async fn companion(
        &self,
        visit: &Visit<'_>,
        name: &str,
        url: &Url,
        held: Option<(&Bytes, &Validators)>,
        limit: u64,
    ) -> Result<(Bytes, Validators), Error> {
        let what = format!("{name} of {}", visit.package);
        let fetched =
            self.outbound.small_file(visit.ask(&what, url), held.map(|(_, validators)| validators), limit).await?;
        match (fetched, held) {
            (Fetched::New(document), _) => Ok((document.body, document.validators)),
            (Fetched::Unchanged, Some((bytes, validators))) => Ok((bytes.clone(), validators.clone())),
            (Fetched::Unchanged, None) => {
                let fault = Fault::Unusable("304 to an unconditional request".into());
                Err(UpstreamError { asked: what, at: origin(url), fault }.into())
            }
        }
    }

    /// Lets a proven set in, unless it changes what was proven of its version before.
    async fn admit(self: &Arc<Self>, package: &Package, set: &ProofSet, now: Timestamp) -> Result<(), Error> {
        let Some(checksums) = set.checksums() else { return Ok(()) };
        let fingerprint = match &set.about.proof.how {
            How::Signature { fingerprint } => Some(fingerprint.clone()),
            How::NoKeys | How::Checksum => None,
        };
        let of = package.clone();
        let judged =
            self.on_disk(move |mirror| seen::judge(mirror, &of, &checksums, fingerprint.as_deref(), now)).await?;
        match judged {
            History::Consistent => Ok(()),
            History::RepublishedByKnownKey { file } => {
                tracing::error!(%package, file, "ALARM: upstream has published this version anew, signed by a key known for the provider; the new set is served");
                Ok(())
            }
            History::RepublishedByStranger { file } => {
                let verdict = format!(
                    "its SHA256SUMS give {file} another digest than was proven before, and no key known for this provider vouches for that"
                );
                Err(unverified(&format!("the download document of {package}"), &set.about.url, verdict))
            }
        }
    }

    async fn set_is_gone(
        self: &Arc<Self>,
        upstream: &Upstream,
        package: &Package,
        before: Option<Arc<KeptSet>>,
        error: &UpstreamError,
        call: &Call,
    ) -> SetFlight {
        match before {
            Some(before) if upstream.settings.keep_gone => {
                if !before.age.gone {
                    tracing::warn!(%package, %error, "upstream has deleted it; what is held is kept (keep_gone)");
                }
                let kept = KeptSet { age: Age { checked: call.now, gone: true }, ..(*before).clone() };
                self.put_set(package, kept).await
            }
            before => {
                let key = Key::ProofSet(package.clone());
                let until = call.now.after(upstream.rule(|fresh| fresh.download).believed());
                self.absent.put(key.clone(), error.to_string(), until, call.now);
                if before.is_some() {
                    self.on_disk(move |mirror| mirror.remove_document(&key)).await?;
                    self.changed(&package.provider);
                }
                Err(Error::NotFound(error.to_string()))
            }
        }
    }

    async fn keep_set(
        self: &Arc<Self>,
        package: &Package,
        before: Option<Arc<KeptSet>>,
        set: ProofSet,
        now: Timestamp,
    ) -> SetFlight {
        let predecessor = before.and_then(|before| {
            let before_it = before.predecessor.clone();
            if set.names_the_same_files_as(&before.current) {
                return before_it;
            }
            // While only the archive of the one before the last is held, that one stays the way back.
            match (self.only_predecessor_is_held(&before), before_it) {
                (Some(_), Some(kept)) => Some(kept),
                _ => Some((Arc::clone(&before.current), now)),
            }
        });
        let kept = KeptSet { current: Arc::new(set), predecessor, age: Age { checked: now, gone: false } };
        self.put_set(package, kept).await
    }

    async fn put_set(self: &Arc<Self>, package: &Package, kept: KeptSet) -> SetFlight {
        let kept = Arc::new(kept);
        let (key, record, checked) = (Key::ProofSet(package.clone()), kept.write(), kept.age.checked);
        if let Err(error) =
            self.on_disk(move |mirror| mirror.put_document(&key, &record, checked, Durability::Lazy)).await
        {
            tracing::error!(%package, %error, "a proof set could not be kept");
        }
        self.changed(&package.provider);
        Ok(Landed { age: kept.age, value: kept })
    }
}

/// Whether a visit may build on what is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Anew {
    IfChanged,
    Whole,
}

struct Visit<'a> {
    what: &'a str,
    asked: &'a Url,
    upstream: &'a Upstream,
    grant: &'a Grant,
    package: &'a Package,
    call: &'a Call,
    retries: usize,
}

impl Visit<'_> {
    fn ask<'b>(&'b self, what: &'b str, url: &'b Url) -> Ask<'b> {
        let upstream = &self.upstream.settings.host;
        Ask { what, url, upstream, grant: self.grant, via: &self.call.via, retries: self.retries }
    }
}

fn unverified(asked: &str, url: &Url, verdict: String) -> Error {
    tracing::error!(asked, at = origin(url), verdict, "what upstream sent does not prove");
    Error::Unverified { asked: format!("{asked} from {}", origin(url)), verdict }
}

/// A file that a document names is missing: that is upstream's trouble, and not "no such package".
fn not_of_the_document(error: Error, what: &str) -> Error {
    match error {
        Error::Upstream(error) if error.asked != what && error.fault.may_be_an_expired_url() => {
            let fault =
                Fault::Unusable(format!("its own document leads to a file that it does not give: it {}", error.fault));
            UpstreamError { fault, ..(*error).clone() }.into()
        }
        error => error,
    }
}
