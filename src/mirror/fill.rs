//! One archive on its way into the store: asked for, staged, resumed, proven, committed. It outlives
//! whoever asked first, and tells all who follow it how far it is (promise 4).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::documents::RETRIES;
use super::download::{Ended, pump};
use super::eviction::Reservation;
use super::names::HeldArchive;
use super::proof_set::{KeptSet, ProofSet};
use super::{Call, Mirror};
use crate::address::Package;
use crate::digest::Digest;
use crate::error::Error;
use crate::store::{FileBytes, Staged, StagedNote};
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::outbound::{Ask, Incoming, Validators, origin};
use crate::verify::Verified;

/// How often in a row a download may break without having brought a byte.
const MOST_FRUITLESS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(200);

/// What a fill is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct FillKey {
    pub(super) package: Package,
    pub(super) digest: Digest,
}

/// How far a fill is.
#[derive(Debug, Clone)]
pub(super) enum Progress {
    /// Upstream has not answered yet.
    Asking,
    /// Bytes arrive.
    Streaming { bytes: FileBytes, written: u64, length: Option<u64> },
    /// Proven and kept.
    Committed { bytes: Option<FileBytes>, held: Box<HeldArchive> },
    /// It came to nothing.
    Failed(Error),
}

/// The work of one fill.
pub(super) struct Fill {
    mirror: Arc<Mirror>,
    package: Package,
    kept: Arc<KeptSet>,
    set: Arc<ProofSet>,
    call: Call,
    what: String,
    progress: watch::Sender<Progress>,
}

impl Fill {
    pub(super) fn new(
        mirror: Arc<Mirror>,
        package: Package,
        kept: Arc<KeptSet>,
        set: Arc<ProofSet>,
        call: Call,
        progress: watch::Sender<Progress>,
    ) -> Self {
        let what = format!("the archive of {package}");
        Self { mirror, package, kept, set, call, what, progress }
    }

    /// Fills, and tells how it ended.
    pub(super) async fn run(mut self) {
        self.mirror.fills_under_way.inc();
        let ended = self.fill().await;
        self.mirror.fills_under_way.dec();
        match ended {
            Ok((bytes, held)) => {
                let (package, digest) = (self.package.clone(), held.digest);
                self.progress.send_replace(Progress::Committed { bytes, held: Box::new(held) });
                self.mirror.complete_hashes_of(package, digest);
            }
            Err(error) => {
                tracing::error!(package = %self.package, %error, "an archive could not be filled");
                self.progress.send_replace(Progress::Failed(error));
            }
        }
    }

    async fn fill(&mut self) -> Result<(Option<FileBytes>, HeldArchive), Error> {
        if let Some(held) = self.mirror.adopt(&self.package, &self.kept, &self.set, self.call.now).await? {
            return Ok((None, held));
        }
        let mut staged = self.stage().await?;
        let mut room = self.mirror.reserve(staged.written()).await?;
        let mut fruitless = 0;
        let mut asked_anew = false;
        let mut url = self.set.document.archive_url.clone();
        while !is_complete(&staged) {
            let had = staged.written();
            let incoming = match self.ask(&url, &staged).await {
                Ok(incoming) => incoming,
                Err(error) if error.fault.may_be_an_expired_url() && !asked_anew => {
                    asked_anew = true;
                    url = self.url_asked_anew(&error).await?;
                    continue;
                }
                Err(error) => return Err(not_absent(error).into()),
            };
            self.take_room(&mut room, &mut staged, &incoming).await?;
            self.tell(&staged, incoming.length);
            let (returned, ended) = pump(&self.mirror, staged, incoming, &self.progress).await;
            staged = returned.ok_or_else(|| Error::Interrupted(self.what.clone()))?;
            match ended {
                Ended::Whole => break,
                Ended::Differs(error) => {
                    self.discard(staged).await?;
                    return Err(error);
                }
                Ended::Failed(error) => return Err(error),
                Ended::Broken(error) => {
                    fruitless = if staged.written() > had { 0 } else { fruitless + 1 };
                    if fruitless >= MOST_FRUITLESS {
                        return Err(error.into());
                    }
                    tracing::warn!(package = %self.package, %error, at_byte = staged.written(), "a download broke; it is resumed");
                    tokio::time::sleep(PAUSE * (fruitless + 1)).await;
                }
            }
        }
        let bytes = staged.bytes();
        let held = self.prove_and_commit(staged, room).await?;
        Ok((Some(bytes), held))
    }

    async fn stage(&self) -> Result<Staged, Error> {
        // Two registries never mix, not even while they send the same bytes.
        let name = format!("{}~{}~{}", self.package.provider.host, self.package.platform, self.set.document.shasum);
        self.mirror.on_disk(move |mirror| mirror.store.blobs.stage(&name)).await
    }

    async fn ask(&self, url: &url::Url, staged: &Staged) -> Result<Incoming, UpstreamError> {
        let upstream = self.mirror.upstreams.get(&self.package.provider.host);
        let grant = match upstream {
            // The service's origin is asked for again: it may have moved since the set was fetched.
            Some(upstream) => match self.mirror.providers_service(upstream, &self.call).await {
                Ok((_, grant)) => grant,
                Err(_) => upstream.grant.clone(),
            },
            None => Default::default(),
        };
        let note = staged.note().cloned().unwrap_or_default();
        let held = Validators { etag: note.etag, last_modified: note.last_modified };
        let ask = Ask {
            what: &self.what,
            url,
            upstream: &self.package.provider.host,
            grant: &grant,
            via: &self.call.via,
            retries: RETRIES,
        };
        let limit = self.mirror.limits.stall;
        match tokio::time::timeout(limit, self.mirror.outbound.file(ask, staged.written(), &held)).await {
            Ok(answered) => answered,
            Err(_) => Err(UpstreamError {
                asked: self.what.clone(),
                at: origin(url),
                fault: Fault::Slow(format!("no first byte within {} s", limit.as_secs())),
            }),
        }
    }

    /// Registries sign the URLs in their documents, and those expire: the document is asked once more.
    async fn url_asked_anew(&self, error: &UpstreamError) -> Result<url::Url, Error> {
        tracing::warn!(package = %self.package, %error, "the archive's URL was refused; its document is asked anew");
        let kept = self.mirror.ask_anew(&self.package, &self.call).await?;
        if kept.current.document.shasum != self.set.document.shasum {
            return Err(Error::Interrupted(format!("{}: upstream has replaced it meanwhile", self.what)));
        }
        Ok(kept.current.document.archive_url.clone())
    }

    /// Makes room for the whole length before anybody is told of it, and notes what a resumption needs.
    async fn take_room(&self, room: &mut Reservation, staged: &mut Staged, incoming: &Incoming) -> Result<(), Error> {
        let limit = self.mirror.limits.archive_bytes;
        if incoming.length.is_some_and(|length| length > limit) {
            return Err(incoming.failed(Fault::TooLarge(limit)).into());
        }
        if let Some(length) = incoming.length {
            *room = self.mirror.reserve(length).await?;
        }
        let Validators { etag, last_modified } = incoming.validators.clone();
        staged.remember(StagedNote { etag, last_modified, length: incoming.length })?;
        Ok(())
    }

    fn tell(&self, staged: &Staged, length: Option<u64>) {
        self.progress.send_replace(Progress::Streaming { bytes: staged.bytes(), written: staged.written(), length });
    }

    async fn discard(&self, staged: Staged) -> Result<(), Error> {
        self.mirror.on_disk(move |_| staged.discard()).await
    }

    async fn prove_and_commit(&self, staged: Staged, room: Reservation) -> Result<HeldArchive, Error> {
        let expected = self.set.document.shasum;
        let (actual, fast) = staged.hashes();
        if actual != expected {
            // Thrown away before anything is said, so that the next request starts afresh.
            self.discard(staged).await?;
            let verdict = format!("its bytes have SHA-256 {actual}, and its proven SHA256SUMS say {expected}");
            return Err(Error::Unverified {
                asked: format!("{} from {}", self.what, origin(&self.set.document.archive_url)),
                verdict,
            });
        }
        let size_bytes = staged.written();
        let verified = Verified::by_digest(staged, actual, expected)
            .map_err(|verdict| Error::Unverified { asked: self.what.clone(), verdict: verdict.to_string() })?;
        let (package, kept, set, now) =
            (self.package.clone(), Arc::clone(&self.kept), Arc::clone(&self.set), self.call.now);
        self.mirror
            .on_disk(move |mirror| {
                let held = mirror.commit(&package, &kept, &set, verified, fast, size_bytes, now);
                drop(room);
                held
            })
            .await
    }
}

fn is_complete(staged: &Staged) -> bool {
    staged.note().and_then(|note| note.length).is_some_and(|length| length > 0 && staged.written() == length)
}

/// A file that a proven document names is missing: upstream's trouble, and not "no such package".
fn not_absent(error: UpstreamError) -> UpstreamError {
    match error.fault {
        Fault::Absent(status) => {
            let fault = Fault::Unusable(format!("{status} for a file that its own document names"));
            UpstreamError { fault, ..error }
        }
        _ => error,
    }
}
