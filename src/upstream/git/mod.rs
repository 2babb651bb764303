//! Fetches one commit of a git repository with its submodules, as a tree (DESIGN 6). gix implements protocol and
//! objects; all traffic goes through the connector. Of a repository, only packs are written to disk.

mod attributes;
mod blocking_bridge;
mod checkout;
mod delta_memory;
mod encoding;
mod error;
mod fetch;
mod http;
mod ident_filter;
mod job;
mod pack_scanner;
mod refs;
mod repository;
mod ssh;
mod submodules;
#[cfg(test)]
mod tests;
mod throughput_guard;
mod transport;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::timeout;
use url::Url;

use self::blocking_bridge::GitBridge;
use self::error::GitCodeError;
pub use self::error::GitError;
use self::job::Job;
use self::repository::Repository;
use super::CredentialScope;
use super::concurrency_limits::Permit;
use super::error::{Fault, UpstreamError};
use super::outbound::Outbound;
use super::request::{RequestPriority, UpstreamRequest};
use super::source::GitSource;
use crate::address::Hostname;
use crate::cdn_loop::CdnLoop;
use crate::clock::Timestamp;
use crate::pack::Tree;

/// A git request: like [`UpstreamRequest`], for several HTTP requests or an ssh connection.
#[derive(Debug, Clone, Copy)]
pub struct GitRequest<'a> {
    /// Label for people.
    pub subject: &'a str,
    /// The repository and the reference.
    pub source: &'a GitSource,
    /// The upstream that the request is for.
    pub upstream: &'a Hostname,
    /// The credentials it may carry, by origin.
    pub credential_scope: &'a CredentialScope,
    /// The proxies that the client's request has passed (CDN-Loop).
    pub via: &'a CdnLoop,
    /// Retries of a first request after a temporary failure.
    pub retries: usize,
    /// Priority of the request.
    pub priority: RequestPriority,
    /// Time of the request.
    pub now: Timestamp,
}

/// A fetched tree.
#[derive(Debug)]
pub struct GitTree {
    /// The files of a checkout with submodules, without `.git`.
    pub tree: Tree,
    /// The id of the commit, in hex.
    pub commit: String,
    /// Notes for the log, such as Git LFS pointers that stay pointers.
    pub notes: Vec<String>,
    /// The permit of the git job. Holding it until the tree is packed limits the number of trees in memory.
    pub permit: Option<GitPermit>,
}

/// A permit to run one git job, released on drop.
#[derive(Debug)]
pub struct GitPermit(#[expect(dead_code, reason = "held only for its Drop")] Permit);

impl<'a> GitRequest<'a> {
    /// The HTTP request of this job to `url`.
    fn to_url(self, url: &'a Url) -> UpstreamRequest<'a> {
        let Self { subject, upstream, credential_scope, via, retries, priority, now, .. } = self;
        UpstreamRequest { label: subject, url, upstream, credentials: credential_scope, via, retries, priority, now }
    }

    fn failed(&self, origin: String, fault: Fault) -> UpstreamError {
        UpstreamError { subject: self.subject.to_owned(), origin, fault }
    }

    fn repository(&self) -> Result<Repository, GitError> {
        Repository::of(&self.source.url).map_err(|bad| {
            let origin = super::outbound::origin(&self.source.url);
            self.failed(origin, Fault::Unusable(format!("a source that is not fetched: {bad}"))).into()
        })
    }
}

impl Outbound {
    /// Fetches the commit that a source names, and lays it out in the empty `tree`. `scratch` is a private folder.
    ///
    /// # Errors
    /// [`GitError`], separately for upstream failures, refused trees and disk errors.
    pub async fn git(&self, ask: GitRequest<'_>, scratch: &Path, tree: Tree) -> Result<GitTree, GitError> {
        let repository = ask.repository()?;
        let turn = self.take_git_permit(&ask, &repository).await?;
        let job = Job::new(ask.source, repository, scratch, self.git_limits);
        let fetched = self.run_blocking_job(ask, self.git_limits.total, move |wire, stop| {
            job.fetch(wire, stop, tree).map(|fetched| GitTree { permit: Some(GitPermit(turn)), ..fetched })
        });
        let fetched = fetched.await?;
        let notes =
            fetched.notes.iter().map(|note| ask.credential_scope.text_without_credentials(note).to_owned()).collect();
        Ok(GitTree { notes, ..fetched })
    }

    /// Resolves a source to a commit by its refs alone. `None` for an abbreviated id, which only a fetch can resolve. A
    /// full id is returned without a request.
    ///
    /// # Errors
    /// As [`git`](Self::git).
    pub async fn git_commit(&self, ask: GitRequest<'_>) -> Result<Option<String>, GitError> {
        let repository = ask.repository()?;
        let origin = repository.origin();
        let job = Job::new(ask.source, repository, Path::new(""), self.git_limits);
        if let Some(id) = job.whole_id() {
            return Ok(Some(id));
        }
        let permit = self.resolve_permits.take(ask.upstream, ask.priority).await;
        let crowded = || Fault::Crowded("the limit of concurrent git ref lookups is reached".to_owned());
        let permit = permit.ok_or_else(|| ask.failed(origin, crowded()))?;
        self.run_blocking_job(ask, self.git_limits.resolve_time, move |wire, _stop| {
            let _permit = permit;
            job.resolve_by_name(wire)
        })
        .await
    }

    /// Runs git's blocking code next to the future that executes its requests. If one ends, the other is stopped.
    async fn run_blocking_job<T: Send + 'static>(
        &self,
        ask: GitRequest<'_>,
        limit: Duration,
        work: impl FnOnce(GitBridge, &AtomicBool) -> Result<T, GitCodeError> + Send + 'static,
    ) -> Result<T, GitError> {
        let stop = CancelOnDrop(Arc::default());
        let stopped = Arc::clone(&stop.0);
        let (wire, orders) = GitBridge::new(self.git_limits);
        let mut worker = tokio::task::spawn_blocking(move || work(wire, &stopped));
        let carried = timeout(limit, self.execute_git(ask, orders)).await;
        let origin = || super::outbound::origin(&ask.source.url);
        let broken = match carried {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error),
            Err(_) => {
                let reason = format!("not complete within {} s", limit.as_secs());
                Some(ask.failed(origin(), Fault::Slow(reason)))
            }
        };
        if broken.is_some() {
            stop.cancel();
        }
        // The blocking code checks `stop` while it computes, and its reads fail. If it still runs after that, it is a
        // bug: the code keeps its permit and is abandoned.
        let worked = timeout(self.git_limits.stop_time, &mut worker).await;
        if worked.is_err() {
            stop.cancel();
            tracing::error!(
                asked = ask.subject,
                at = origin(),
                "the git worker thread did not stop; it keeps its permit until it does"
            );
        }
        match (broken, worked) {
            (Some(error), _) => Err(error.into()),
            (None, Err(_)) => {
                let reason = format!(
                    "the response was not processed within {} s after it was received",
                    self.git_limits.stop_time.as_secs()
                );
                Err(ask.failed(origin(), Fault::Slow(reason)).into())
            }
            (None, Ok(Ok(worked))) => worked.map_err(|trouble| trouble.into_git_error(&ask)),
            (None, Ok(Err(_))) => {
                Err(ask.failed(origin(), Fault::Unusable("data that made the git parser panic".into())).into())
            }
        }
    }

    /// Takes a permit for a git job. These are so few that a job needs no archive permit as well.
    async fn take_git_permit(&self, ask: &GitRequest<'_>, repository: &Repository) -> Result<Permit, GitError> {
        let crowded = || Fault::Crowded("the limit of concurrent git fetches is reached".to_owned());
        let place = self.git_permits.take(ask.upstream, ask.priority).await;
        place.ok_or_else(|| ask.failed(repository.origin(), crowded()).into())
    }
}

/// Cancels a job; dropping it cancels too.
struct CancelOnDrop(Arc<AtomicBool>);

impl CancelOnDrop {
    fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.cancel();
    }
}
