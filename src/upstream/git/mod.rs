//! One commit of one git repository, with its submodules, as a tree (DESIGN 6). Git's protocol and objects are the work
//! of gix's plumbing; what goes out goes through the connector, and nothing of a repository lies on a disk but its packs.

mod attributes;
mod carry;
mod chains;
mod checkout;
mod encoding;
mod error;
mod fetch;
mod http;
mod ident;
mod job;
mod pace;
mod refs;
mod repository;
mod ssh;
mod submodules;
#[cfg(test)]
mod tests;
mod watched;
mod wire;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::timeout;
use url::Url;

pub use self::error::GitError;
use self::error::Trouble;
use self::job::Job;
use self::repository::Repository;
use self::wire::Wire;
use super::Grant;
use super::ask::{Ask, Asker};
use super::error::{Fault, UpstreamError};
use super::outbound::Outbound;
use super::permits::Permit;
use super::source::GitSource;
use crate::address::Hostname;
use crate::cdn_loop::CdnLoop;
use crate::clock::Timestamp;
use crate::pack::Tree;

/// One repository to be asked, and for whom. The same as [`Ask`] for what is not one request.
#[derive(Debug, Clone, Copy)]
pub struct GitAsk<'a> {
    /// What is asked for, for people.
    pub what: &'a str,
    /// Which repository, and what of it.
    pub source: &'a GitSource,
    /// The upstream that led here.
    pub upstream: &'a Hostname,
    /// Which hosts may be shown which credential.
    pub grant: &'a Grant,
    /// Which proxies the request behind this one has been through.
    pub via: &'a CdnLoop,
    /// How often a passing failure of a first request is tried again.
    pub retries: usize,
    /// Who it is for.
    pub asker: Asker,
    /// When it is made.
    pub now: Timestamp,
}

/// What was fetched.
#[derive(Debug)]
pub struct GitTree {
    /// What a checkout leaves, submodules in, `.git` left out.
    pub tree: Tree,
    /// The id of the commit, in hex.
    pub commit: String,
    /// What a reader of the log should know: pointers of Git LFS that stay pointers, and the like.
    pub notes: Vec<String>,
    /// The place among the jobs: whoever holds on to it while the tree is packed has no more trees in memory than there
    /// may be jobs.
    pub turn: Option<GitPermit>,
}

/// A place among the git jobs, for as long as it lives.
#[derive(Debug)]
pub struct GitPermit(#[expect(dead_code, reason = "held, and never looked at")] Permit);

impl<'a> GitAsk<'a> {
    /// The request of it that goes to `url`.
    fn at(self, url: &'a Url) -> Ask<'a> {
        let Self { what, upstream, grant, via, retries, asker, now, .. } = self;
        Ask { what, url, upstream, grant, via, retries, asker, now }
    }

    fn failed(&self, at: String, fault: Fault) -> UpstreamError {
        UpstreamError { asked: self.what.to_owned(), at, fault }
    }

    fn repository(&self) -> Result<Repository, GitError> {
        Repository::of(&self.source.url).map_err(|bad| {
            let at = super::outbound::origin(&self.source.url);
            self.failed(at, Fault::Unusable(format!("a source that is not fetched: {bad}"))).into()
        })
    }
}

impl Outbound {
    /// Fetches the commit that a source names, and lays it out in `tree`, which is empty. `scratch` is a folder for this
    /// job alone.
    ///
    /// # Errors
    /// [`GitError`]: what a repository has not is upstream's trouble; what may not be in a tree, and a disk that fails,
    /// are told apart from it.
    pub async fn git(&self, ask: GitAsk<'_>, scratch: &Path, tree: Tree) -> Result<GitTree, GitError> {
        let repository = ask.repository()?;
        let turn = self.git_turn(&ask, &repository).await?;
        let job = Job::new(ask.source, repository, scratch, self.git_limits);
        let fetched = self.carried(ask, self.git_limits.total, move |wire, stop| {
            job.fetch(wire, stop, tree).map(|fetched| GitTree { turn: Some(GitPermit(turn)), ..fetched })
        });
        let fetched = fetched.await?;
        let notes = fetched.notes.iter().map(|note| ask.grant.unless_quoted_in(note).to_owned()).collect();
        Ok(GitTree { notes, ..fetched })
    }

    /// The commit that a source names now; asks for the names of the repository and for nothing else. `None` where that
    /// does not tell: a part of an id can be looked up among fetched commits only. A whole id is what it names, and nobody
    /// is asked about it.
    ///
    /// # Errors
    /// As [`git`](Self::git).
    pub async fn git_commit(&self, ask: GitAsk<'_>) -> Result<Option<String>, GitError> {
        let repository = ask.repository()?;
        let at = repository.origin();
        let job = Job::new(ask.source, repository, Path::new(""), self.git_limits);
        if let Some(id) = job.whole_id() {
            return Ok(Some(id));
        }
        let permit = self.look_permits.take(ask.upstream, ask.asker).await;
        let crowded =
            || Fault::Crowded("as many git repositories are being looked at as may be at one time".to_owned());
        let permit = permit.ok_or_else(|| ask.failed(at, crowded()))?;
        self.carried(ask, self.git_limits.look, move |wire, _stop| {
            let _permit = permit;
            job.look(wire)
        })
        .await
    }

    /// Runs git's code, which blocks, beside the future that carries out what it orders. Whichever ends ends the other.
    async fn carried<T: Send + 'static>(
        &self,
        ask: GitAsk<'_>,
        limit: Duration,
        work: impl FnOnce(Wire, &AtomicBool) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, GitError> {
        let stop = Stop(Arc::default());
        let stopped = Arc::clone(&stop.0);
        let (wire, orders) = Wire::new(self.git_limits);
        let mut worker = tokio::task::spawn_blocking(move || work(wire, &stopped));
        let carried = timeout(limit, self.carry(ask, orders)).await;
        let at = || super::outbound::origin(&ask.source.url);
        let broken = match carried {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error),
            Err(_) => {
                let why = format!("it was not all there within {} s", limit.as_secs());
                Some(ask.failed(at(), Fault::Slow(why)))
            }
        };
        if broken.is_some() {
            stop.now();
        }
        // It ends by itself: it computes, and asks after `stop`, or waits for what does not come any more. Where it does
        // not, that is a fault of ours: its place stays with it, and nobody waits for it.
        let worked = timeout(self.git_limits.ending, &mut worker).await;
        if worked.is_err() {
            stop.now();
            tracing::error!(asked = ask.what, at = at(), "git's code does not end, and keeps its place until it does");
        }
        match (broken, worked) {
            (Some(error), _) => Err(error.into()),
            (None, Err(_)) => {
                let why = format!("what it sent was not read {} s after its end", self.git_limits.ending.as_secs());
                Err(ask.failed(at(), Fault::Slow(why)).into())
            }
            (None, Ok(Ok(worked))) => worked.map_err(|trouble| trouble.told(&ask)),
            (None, Ok(Err(_))) => {
                Err(ask.failed(at(), Fault::Unusable("something that breaks what reads it".into())).into())
            }
        }
    }

    /// A place among the jobs. They are so few that they need no archive's permit beside it.
    async fn git_turn(&self, ask: &GitAsk<'_>, repository: &Repository) -> Result<Permit, GitError> {
        let crowded = || Fault::Crowded("as many git repositories are being fetched as may be at one time".to_owned());
        let place = self.git_permits.take(ask.upstream, ask.asker).await;
        place.ok_or_else(|| ask.failed(repository.origin(), crowded()).into())
    }
}

/// Tells git's code to stop, at the latest when nobody waits for it any more.
struct Stop(Arc<AtomicBool>);

impl Stop {
    fn now(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Drop for Stop {
    fn drop(&mut self) {
        self.now();
    }
}
