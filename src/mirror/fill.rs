//! One archive on its way into the store: asked for, staged, resumed, proven, committed. It outlives
//! whoever asked first, and tells all who follow it how far it is (promise 4).

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::watch;
use tokio::time::Instant;

use super::discovery::Faith;
use super::documents::RETRIES;
use super::download::{Ended, Pace, pump};
use super::eviction::Reservation;
use super::follow::Progress;
use super::names::HeldArchive;
use super::proof_set::{KeptSet, ProofSet};
use super::{Call, Mirror};
use crate::address::Package;
use crate::digest::{Digest, FastHash};
use crate::error::Error;
use crate::store::{FileBytes, Staged, StagedNote};
use crate::upstream::ask::{Ask, Incoming, Validators};
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::outbound::origin;
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

/// The work of one fill.
pub(super) struct Fill {
    mirror: Arc<Mirror>,
    package: Package,
    kept: Arc<KeptSet>,
    set: Arc<ProofSet>,
    call: Call,
    what: String,
    /// The length that clients were told, once they may have been told one.
    told: Option<Option<u64>>,
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
        Self { mirror, package, kept, set, call, what, told: None, progress }
    }

    /// Fills, and tells how it ended. What is held then still lacks its `h1:`.
    ///
    /// It lands before it tells: whoever asks after that finds the archive, or starts another fill.
    pub(super) async fn run<L>(mut self, landing: L) -> Option<Digest> {
        let counted = Counted::new(&self.mirror.counters.fills);
        let ended = self.fill().await;
        drop(counted);
        drop(landing);
        match ended {
            Ok((bytes, held)) => {
                let digest = held.digest;
                self.progress.send_replace(Progress::Committed { bytes, held: Box::new(held) });
                Some(digest)
            }
            Err(error) => {
                tracing::error!(package = %self.package, %error, "an archive could not be filled");
                self.progress.send_replace(Progress::Failed(error));
                None
            }
        }
    }

    async fn fill(&mut self) -> Result<(Option<FileBytes>, HeldArchive), Error> {
        if let Some(held) = self.mirror.adopt(&self.package, &self.kept, &self.set, self.call.now).await? {
            return Ok((None, held));
        }
        let mut staged = self.stage().await?;
        let mut room = self.mirror.reservation();
        let mut fruitless = 0;
        let mut asked_anew = false;
        let mut pace = Pace::default();
        let mut url = self.set.document.archive_url.clone();
        while !is_complete(&staged) {
            let had = staged.written();
            let asked = Instant::now();
            let answered = self.ask(&url, &staged).await;
            if self.told.is_some() && pace.is_too_slow(asked.elapsed(), 0, self.mirror.limits.stall) {
                return Err(self.too_slow(&url).into());
            }
            let incoming = match answered {
                Ok(incoming) => incoming,
                Err(error) if error.fault.may_be_an_expired_url() && !asked_anew => {
                    asked_anew = true;
                    url = self.url_asked_anew(&error).await?;
                    continue;
                }
                Err(error) => return Err(not_of_the_client(error).into()),
            };
            let length = match self.agreed_length(&staged, &incoming) {
                Agreed::Length(length) => length,
                Agreed::StartOver => {
                    self.discard(staged).await?;
                    staged = self.stage().await?;
                    if incoming.from > 0 {
                        continue;
                    }
                    incoming.length
                }
                Agreed::Never(error) => {
                    self.discard(staged).await?;
                    return Err(error);
                }
            };
            staged = self.take_room(&mut room, staged, &incoming, length).await?;
            self.tell(&staged, length);
            let (returned, ended) =
                pump(&self.mirror, staged, incoming, length, &mut pace, &mut room, &self.progress).await;
            staged = returned.ok_or_else(|| Error::Interrupted(self.what.clone()))?;
            match ended {
                Ended::Whole => break,
                Ended::Differs(error) => {
                    self.discard(staged).await?;
                    return Err(error);
                }
                Ended::Failed(error) => return Err(error),
                Ended::Broken(error) => {
                    let brought_some = staged.written() > had;
                    fruitless = if brought_some { 0 } else { fruitless + 1 };
                    asked_anew &= !brought_some;
                    let pause = PAUSE * (fruitless + 1);
                    if fruitless >= MOST_FRUITLESS {
                        return Err(error.into());
                    }
                    if pace.is_too_slow(pause, 0, self.mirror.limits.stall) {
                        return Err(self.too_slow(&url).into());
                    }
                    tracing::warn!(package = %self.package, %error, at_byte = staged.written(), "a download broke; it is resumed");
                    tokio::time::sleep(pause).await;
                }
            }
        }
        let bytes = staged.bytes();
        let held = self.prove_and_commit(staged, room).await?;
        Ok((Some(bytes), held))
    }

    /// Holds what upstream announces now against what was announced before. Clients that were told a length
    /// must get that length or an abort: with another one, they could take a part for the whole.
    fn agreed_length(&self, staged: &Staged, incoming: &Incoming) -> Agreed {
        if let Some(told) = self.told {
            return match (told, incoming.length) {
                (Some(told), Some(now)) if told != now => {
                    let why = format!("it announced {told} bytes, and then {now}");
                    Agreed::Never(incoming.failed(Fault::Unusable(why)).into())
                }
                (told, _) => Agreed::Length(told),
            };
        }
        // Nobody was told anything: what an earlier run left is only worth keeping if it fits.
        let before = staged.note().and_then(|note| note.length);
        let fits = before.is_none() || incoming.length.is_none() || before == incoming.length;
        let starts_over = incoming.from == 0 && staged.written() > 0;
        if starts_over || !fits { Agreed::StartOver } else { Agreed::Length(incoming.length) }
    }

    async fn stage(&self) -> Result<Staged, Error> {
        // A stage belongs to one fill: packages never mix, not even while they send the same bytes.
        let package = FastHash::of(self.package.to_string().as_bytes()).to_string();
        let name = format!("{}~{}", self.set.document.shasum, &package[..16]);
        self.mirror.on_disk(move |mirror| mirror.store.blobs.stage(&name)).await
    }

    async fn ask(&self, url: &url::Url, staged: &Staged) -> Result<Incoming, UpstreamError> {
        let upstream = self.mirror.upstreams.get(&self.package.provider.host);
        let grant = match upstream {
            // The service's origin is asked for again: it may have moved since the set was fetched.
            Some(upstream) => {
                match self.mirror.providers_service(upstream, Faith::InAny, &self.mirror.inner(&self.call)).await {
                    Ok((_, grant)) => grant,
                    Err(_) => upstream.grant.clone(),
                }
            }
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
            asker: self.call.asker,
            now: self.mirror.inner(&self.call).now,
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

    fn too_slow(&self, url: &url::Url) -> UpstreamError {
        let why = format!("less than 1 KiB/s over {} s", self.mirror.limits.stall.as_secs());
        UpstreamError { asked: self.what.clone(), at: origin(url), fault: Fault::Slow(why) }
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
    async fn take_room(
        &self,
        room: &mut Reservation,
        mut staged: Staged,
        incoming: &Incoming,
        length: Option<u64>,
    ) -> Result<Staged, Error> {
        let limit = self.mirror.limits.archive_bytes;
        if length.is_some_and(|length| length > limit) {
            return Err(incoming.failed(Fault::TooLarge(limit)).into());
        }
        self.mirror.reserve(room, length.unwrap_or_else(|| staged.written())).await?;
        let Validators { etag, last_modified } = incoming.validators.clone();
        let note = StagedNote { etag, last_modified, length };
        self.mirror
            .on_disk(move |mirror| {
                match staged.remember(note.clone()) {
                    Err(full) if full.is_full() => {
                        let missing = length.unwrap_or_default().saturating_sub(staged.written());
                        let again = mirror.make_room_on_disk(missing).and_then(|()| staged.remember(note));
                        if let Err(error) = again {
                            if staged.written() == 0 {
                                staged.discard()?;
                            }
                            return Err(error);
                        }
                    }
                    remembered => remembered?,
                }
                Ok(staged)
            })
            .await
    }

    fn tell(&mut self, staged: &Staged, length: Option<u64>) {
        self.told = Some(length);
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
            // Perhaps the version was published anew since the set was fetched: the next to ask is told.
            if let Err(error) = self.mirror.expire_set(&self.package, expected).await {
                tracing::error!(package = %self.package, %error, "a proof set could not be marked to be asked again");
            }
            let verdict = format!("its bytes have SHA-256 {actual}, and its proven SHA256SUMS say {expected}");
            return Err(Error::Unverified {
                asked: format!("{} from {}", self.what, origin(&self.set.document.archive_url)),
                verdict,
            });
        }
        let size_bytes = staged.written();
        let verified = Verified::by_digest(staged, actual, expected)
            .map_err(|verdict| Error::Unverified { asked: self.what.clone(), verdict: verdict.to_string() })?;
        let (package, kept, set) = (self.package.clone(), Arc::clone(&self.kept), Arc::clone(&self.set));
        let now = self.mirror.inner(&self.call).now;
        self.mirror
            .on_disk(move |mirror| {
                let held = mirror.commit(&package, &kept, &set, verified, fast, size_bytes, now);
                drop(room);
                // Where upstream gave no length, nothing was evicted for it yet.
                mirror.keep_to_the_limit();
                held
            })
            .await
    }
}

fn is_complete(staged: &Staged) -> bool {
    staged.note().and_then(|note| note.length).is_some_and(|length| length > 0 && staged.written() == length)
}

/// What upstream says to a file that a proven document names is upstream's trouble: the client asked for
/// something that exists.
fn not_of_the_client(error: UpstreamError) -> UpstreamError {
    let status = match error.fault {
        Fault::Absent(status) | Fault::Rejected { status, .. } => status,
        _ => return error,
    };
    let fault = Fault::Unusable(format!("{status} for a file that its own document names"));
    UpstreamError { fault, ..error }
}

/// What comes of holding two announcements against each other.
enum Agreed {
    /// They agree on this.
    Length(Option<u64>),
    /// What is staged is not worth keeping.
    StartOver,
    /// They contradict each other, and clients were told the first.
    Never(Error),
}

/// Counts a fill as under way for as long as it lives.
struct Counted(Gauge);

impl Counted {
    fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}
