//! Passes an archive that cannot be stored from upstream to one client. It is hashed in transit, and its last bytes are
//! withheld until it is verified (Promise 9).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, stream};
use tokio::sync::OwnedSemaphorePermit;

use super::archives::Archive;
use super::asking::{Asking, announced, contradiction};
use super::attempts::{Agreed, AnnouncedLength, Before};
use super::download::next_piece;
use super::fill::FillKey;
use super::follow::TAIL_BYTES;
use super::proof_set::ProofSet;
use super::{Mirror, RequestContext, SMALL_ARCHIVE_BYTES};
use crate::address::Package;
use crate::digest::Hasher;
use crate::error::Error;
use crate::store::StoreError;
use crate::upstream::ask::{IncomingFile, Validators};
use crate::upstream::error::{Fault, UpstreamError};
use crate::upstream::outbound::Connectivity;

/// The most clients with a pass-through at a time. Each takes a connection to upstream.
pub(super) const MOST_PASSING: usize = 16;
/// The time for which the length of an archive is remembered that upstream sent without one.
const LENGTH_REMEMBERED: Duration = Duration::from_secs(24 * 3600);

impl Mirror {
    /// Passes an archive through to one client. `why` is the reason that it cannot be stored.
    pub(super) async fn pass_through(
        self: &Arc<Self>,
        package: &Package,
        set: &Arc<ProofSet>,
        why: StoreError,
        call: &RequestContext,
    ) -> Result<Archive, Error> {
        if self.link() == Connectivity::Offline {
            return Err(why.into());
        }
        let Ok(permit) = Arc::clone(&self.passing).try_acquire_owned() else {
            let why = format!(
                "this mirror cannot store it ({}), and as many clients as may be at one time get archives straight from upstream",
                why.in_short()
            );
            return Err(Error::Busy { what: format!("the archive of {package}"), why });
        };
        self.counters.passed_through.inc();
        let asking = Asking::new(Arc::clone(self), package.clone(), Arc::clone(set), self.inner(call));
        Passing::begin(asking, permit).await?.into_archive(call).await
    }

    /// Remembers the length of an archive that upstream sends without one. The next fill reserves that much disk space
    /// before a client gets a byte.
    pub(super) fn remember_length(&self, asking: &Asking, bytes: u64) {
        let key = FillKey { package: asking.package.clone(), digest: asking.set.document.shasum };
        let now = asking.call.now;
        self.lengths.put(key, bytes, now.after(LENGTH_REMEMBERED), now);
    }
}

/// A pass-through of an archive to one client.
pub struct Passing {
    asking: Asking,
    /// `None` while reconnecting: a request that waits for a concurrency permit must not hold another.
    incoming: Option<IncomingFile>,
    validators: Validators,
    length: Option<u64>,
    /// `received` counts all connections; `had` is its value at the start of the last one.
    received: u64,
    had: u64,
    hasher: Hasher,
    /// The bytes received and not yet sent.
    held_back: BytesMut,
    _permit: OwnedSemaphorePermit,
}

impl std::fmt::Debug for Passing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Passing").field("received", &self.received).finish_non_exhaustive()
    }
}

impl Passing {
    async fn begin(mut asking: Asking, permit: OwnedSemaphorePermit) -> Result<Self, Error> {
        let incoming = asking.ask(0, &Validators::default()).await?;
        let limit = asking.mirror.limits.archive_bytes;
        if incoming.length.is_some_and(|length| length > limit) {
            return Err(incoming.failed(Fault::TooLarge(limit)).into());
        }
        Ok(Self {
            validators: incoming.validators.clone(),
            length: incoming.length,
            asking,
            incoming: Some(incoming),
            received: 0,
            had: 0,
            hasher: Hasher::new(),
            held_back: BytesMut::new(),
            _permit: permit,
        })
    }

    /// Receives the bytes that are needed before the status line (Promise 3).
    async fn into_archive(mut self, call: &RequestContext) -> Result<Archive, Error> {
        loop {
            let may_begin = match self.length {
                Some(length) => length > SMALL_ARCHIVE_BYTES,
                None => self.received > SMALL_ARCHIVE_BYTES,
            };
            if may_begin && self.length.is_none() && !call.takes_unknown_length {
                let why = "upstream does not say how long it is, this mirror cannot store it, and a client of HTTP/1.0 could not tell a part of it from the whole";
                return Err(Error::Busy { what: self.asking.what.clone(), why: why.to_owned() });
            }
            if may_begin {
                self.asking.attempts.tell(self.length);
                let length = self.length;
                return Ok(Archive::Passing { passing: Box::new(self), length });
            }
            match self.next().await? {
                Some(piece) => self.held_back.extend_from_slice(&piece),
                None => {
                    self.prove().await?;
                    let digest = self.asking.set.document.shasum;
                    return Ok(Archive::InMemory { bytes: self.held_back.freeze(), digest, stored: None });
                }
            }
        }
    }

    /// Streams the bytes, the last of them only after verification. Ends in an error where they are wrong or do not
    /// arrive, so that the client does not take the body for complete.
    pub fn stream(self) -> impl Stream<Item = io::Result<Bytes>> + Send {
        stream::try_unfold(Some(self), |passing| async move {
            let Some(mut passing) = passing else { return Ok(None) };
            match passing.give().await {
                Ok((bytes, Whole::No)) => Ok(Some((bytes, Some(passing)))),
                Ok((bytes, Whole::Yes)) => Ok(Some((bytes, None))),
                Err(error) => {
                    tracing::error!(package = %passing.asking.package, %error, "an archive that is passed through broke off");
                    Err(io::Error::other(error.to_string()))
                }
            }
        })
    }

    async fn give(&mut self) -> Result<(Bytes, Whole), Error> {
        loop {
            let before_the_tail = self.length.unwrap_or(self.received).saturating_sub(TAIL_BYTES).min(self.received);
            let given = self.received.saturating_sub(self.held_back.len() as u64);
            // The withheld bytes are in memory, so their length fits a usize.
            let more = (before_the_tail.saturating_sub(given) as usize).min(self.held_back.len());
            if more > 0 {
                return Ok((self.held_back.split_to(more).freeze(), Whole::No));
            }
            match self.next().await? {
                Some(piece) => self.held_back.extend_from_slice(&piece),
                None => {
                    self.prove().await?;
                    return Ok((self.held_back.split().freeze(), Whole::Yes));
                }
            }
        }
    }

    /// Returns the next bytes, over as many connections as needed; `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            let Asking { mirror, attempts, what, .. } = &mut self.asking;
            let incoming = self.incoming.as_mut().ok_or_else(|| Error::Interrupted(what.clone()))?;
            let error = match next_piece(mirror, incoming, attempts, self.received).await {
                Ok(Some(piece)) => {
                    self.received += piece.len() as u64;
                    if self.length.is_some_and(|length| self.received > length) {
                        let fault = Fault::Unusable("it sent more than it announced".into());
                        return Err(incoming.failed(fault).into());
                    }
                    self.hasher.update(&piece);
                    return Ok(Some(piece));
                }
                Ok(None) if self.length.is_none_or(|length| self.received == length) => return Ok(None),
                Ok(None) => incoming.failed(Fault::Unreachable("the body ended early".into())),
                Err(error) if matches!(error.fault, Fault::Slow(_) | Fault::TooLarge(_)) => return Err(error.into()),
                Err(error) => error,
            };
            self.incoming = None;
            self.resume(error).await?;
        }
    }

    async fn resume(&mut self, broken: UpstreamError) -> Result<(), Error> {
        self.asking.broke(broken, self.received.saturating_sub(self.had), self.received).await?;
        loop {
            let incoming = self.asking.ask(self.received, &self.validators).await?;
            let before = Before { bytes: self.received, length: self.length };
            let agreed = self.asking.attempts.agreed(before, announced(&incoming));
            let length = match agreed {
                Agreed::Length(length) if incoming.from == self.received => length,
                Agreed::Never { told, now } => return Err(contradiction(&incoming, told, now)),
                Agreed::StartOver if self.asking.attempts.told() == AnnouncedLength::Nothing => {
                    self.forget();
                    if incoming.from > 0 {
                        continue;
                    }
                    incoming.length
                }
                // The bytes already sent were not stored, so a restart cannot be compared with them.
                Agreed::Length(_) | Agreed::StartOver => {
                    let fault = Fault::Unusable("it started the download over instead of resuming it".into());
                    return Err(incoming.failed(fault).into());
                }
            };
            self.validators = incoming.validators.clone();
            (self.length, self.had, self.incoming) = (length, self.received, Some(incoming));
            return Ok(());
        }
    }

    fn forget(&mut self) {
        self.held_back.clear();
        self.hasher = Hasher::new();
        self.received = 0;
    }

    async fn prove(&mut self) -> Result<(), Error> {
        let (actual, _) = std::mem::take(&mut self.hasher).finish();
        if actual != self.asking.set.document.shasum {
            return Err(self.asking.wrong(actual).await);
        }
        if self.length.is_none() {
            self.asking.mirror.remember_length(&self.asking, self.received);
        }
        Ok(())
    }
}

enum Whole {
    Yes,
    No,
}
