//! Bundles and provider trees over the admin listener: exported and imported as streams.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;

use super::super::body::{Body, pipe};
use super::super::response;
use super::{Admin, NDJSON, bodies};
use crate::address::{Artifact, Package};
use crate::bundle::BundleWriter;
use crate::digest::Digest;
use crate::jobs::JobId;
use crate::jobs::job_report::JobState;
use crate::mirror::{ApplyError, Export, GatherError, GatheredBundle, TransferPermit};
use crate::protocol::admin::bundle::{BundleRequest, TAR, apply_options};
use crate::protocol::admin::bundle::{ExportRequest, parse_unsigned_query};
use crate::protocol::admin::warm::no_job;
use crate::store::StoreError;

/// The status and the errors of a refused export.
type ExportRefused = (StatusCode, Vec<String>);

/// Size limit of a bundle request, which contains an inventory.
const MAX_BUNDLE_REQUEST_BYTES: usize = 64 << 20;

impl Admin {
    /// Exports the packages of a job as a bundle.
    pub(super) async fn bundle(self: &Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let request = self.read_transfer_request(request, MAX_BUNDLE_REQUEST_BYTES, BundleRequest::read).await;
        let ((bundle_request, id), permit) = match request {
            Ok(request) => request,
            Err(refused) => return refused,
        };
        match self.gather_bundle(id, bundle_request, permit).await {
            Ok((gathered, permit)) => self.stream_bundle(gathered, permit),
            Err((status, problems)) => response::errors(status, problems),
        }
    }

    /// Reads a request for an export. The transfer permit is taken before the body is read, because the body may be
    /// large, too.
    async fn read_transfer_request<T>(
        &self,
        request: Request<Incoming>,
        max_bytes: usize,
        read: impl FnOnce(&[u8]) -> Result<T, String>,
    ) -> Result<(T, TransferPermit), Response<Body>> {
        let permit = match self.mirror.transfers.transfer() {
            Ok(permit) => permit,
            Err(busy) => {
                bodies::discard(request);
                return Err(self.failure(busy));
            }
        };
        let body = bodies::read_large_json(request, max_bytes).await?;
        let request = read(&body).map_err(|reason| response::errors(StatusCode::BAD_REQUEST, vec![reason]))?;
        Ok((request, permit))
    }

    /// The stored archives of an ended job: of a complete one, or of any with `partial`. `export` is the export's noun.
    fn archives_to_export(
        &self,
        id: JobId,
        partial: bool,
        export: &str,
    ) -> Result<Vec<(Artifact, Digest)>, ExportRefused> {
        let (job, stored) = self
            .jobs
            .report(id)
            .zip(self.jobs.stored_archives(id))
            .ok_or_else(|| (StatusCode::NOT_FOUND, vec![no_job(id)]))?;
        let reason = match job.state {
            JobState::Done => return Ok(stored),
            JobState::Running => format!("job {id} is still running: repeat the request when the job has ended"),
            JobState::Failed | JobState::Cancelled if partial => return Ok(stored),
            JobState::Failed | JobState::Cancelled => format!(
                "not everything of job {id} is stored: look at the job, or send \"partial\":true for a {export} of the rest"
            ),
        };
        Err((StatusCode::CONFLICT, vec![reason]))
    }

    async fn gather_bundle(
        &self,
        id: JobId,
        request: BundleRequest,
        permit: TransferPermit,
    ) -> Result<(GatheredBundle, TransferPermit), ExportRefused> {
        let stored = self.archives_to_export(id, request.partial, "bundle")?;
        let (mirror, created) = (Arc::clone(&self.mirror), request.created.unwrap_or_else(|| self.clock.now()));
        // The task holds the transfer permit while it works, even after the client has disconnected.
        let gathering = self.mirror.runtime.spawn_blocking(move || {
            let gathered = mirror.transfers.gather(stored, request.since.as_ref(), request.partial, created);
            gathered.map(|gathered| (gathered, permit))
        });
        match gathering.await {
            Ok(Ok(gathered)) => Ok(gathered),
            Ok(Err(GatherError::Missing(missing))) => Err((StatusCode::CONFLICT, missing)),
            Ok(Err(GatherError::Mirror(error))) => Err((StatusCode::SERVICE_UNAVAILABLE, vec![error.to_string()])),
            Err(_) => {
                Err((StatusCode::INTERNAL_SERVER_ERROR, vec!["gathering the bundle ended unexpectedly".to_owned()]))
            }
        }
    }

    fn stream_bundle(&self, gathered: GatheredBundle, permit: TransferPermit) -> Response<Body> {
        for missing in &gathered.missing {
            tracing::warn!(missing, "a package is missing from a bundle");
        }
        let (sender, receiver) = pipe();
        let (mirror, key) = (Arc::clone(&self.mirror), self.bundles.signing.clone());
        let length = BundleWriter::<Vec<u8>>::bundle_bytes(&gathered.manifest, key.as_ref());
        drop(self.mirror.runtime.spawn_blocking(move || {
            let _permit = permit;
            let mut writer = sender.writer();
            let written = mirror.transfers.write_bundle(&gathered, key.as_ref(), &mut writer).map(drop);
            if let Err(error) = &written {
                tracing::error!(%error, "a bundle was not written to its end");
            }
            writer.end(written);
        }));
        response::of_type(Body::stream(receiver.stream(), Some(length)), TAR)
    }

    /// Imports a bundle, and reports each entry as it finishes.
    pub(super) async fn apply(self: &Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let options = match apply_options(request.uri().query(), &self.bundles, &self.default_host) {
            Ok(options) => options,
            Err(problems) => {
                bodies::discard(request);
                return response::errors(StatusCode::BAD_REQUEST, problems);
            }
        };
        let reader = match bodies::stream_body(request, TAR) {
            Ok(reader) => reader,
            Err(refused) => return refused.into(),
        };
        let (mut steps, applied) = self.mirror.transfers.spawn_apply(reader, options, self.clock.clone());
        // A refusal before the first entry is a response with its own status.
        let Some(first) = steps.recv().await else {
            return match applied.await {
                Ok(Err(error)) => response::errors(status_of(&error), vec![error.to_string()]),
                Ok(Ok(_)) | Err(_) => response::errors(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    vec!["applying the bundle ended unexpectedly".to_owned()],
                ),
            };
        };
        let first = stream::once(async move { bodies::line(&first) });
        response::of_type(Body::stream(first.chain(bodies::lines(steps)), None), NDJSON)
    }

    /// Returns the inventory, for the next delta.
    pub(super) async fn inventory(self: &Arc<Self>) -> Response<Body> {
        self.on_blocking_thread(|admin| match admin.mirror.transfers.inventory(admin.clock.now()) {
            Ok(inventory) => response::json(StatusCode::OK, &inventory),
            Err(error) => admin.failure(error),
        })
        .await
    }
}

fn status_of(error: &ApplyError) -> StatusCode {
    match error {
        ApplyError::Busy => StatusCode::SERVICE_UNAVAILABLE,
        ApplyError::Bundle(_) => StatusCode::BAD_REQUEST,
        ApplyError::UnknownHosts(_) | ApplyError::TooOld { .. } => StatusCode::CONFLICT,
        ApplyError::NoRoom { .. } => StatusCode::INSUFFICIENT_STORAGE,
        ApplyError::Store(StoreError::Gone) => StatusCode::SERVICE_UNAVAILABLE,
        ApplyError::Store(_) | ApplyError::Mirror(_) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

const TREE_TAR: &str = "application/x-tar";
/// Size limit of an export request, which may name the archives that the client already has.
const MAX_EXPORT_REQUEST_BYTES: usize = 4 << 20;

impl Admin {
    /// Exports the packages of a job as a tree.
    pub(super) async fn export(self: &Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let request = self.read_transfer_request(request, MAX_EXPORT_REQUEST_BYTES, ExportRequest::read).await;
        let ((export_request, id), permit) = match request {
            Ok(request) => request,
            Err(refused) => return refused,
        };
        match self.gather_tree(id, export_request.partial, &export_request.have).await {
            Ok(export) => self.stream_tree(export, permit),
            Err((status, problems)) => response::errors(status, problems),
        }
    }

    async fn gather_tree(&self, id: JobId, partial: bool, have: &HashSet<Digest>) -> Result<Export, ExportRefused> {
        let stored = self.archives_to_export(id, partial, "tree")?;
        let export = self.mirror.transfers.export(provider_packages(stored), have, &self.call()).await;
        let export = export.map_err(|error| (StatusCode::SERVICE_UNAVAILABLE, vec![error.to_string()]))?;
        if partial || export.missing.is_empty() {
            return Ok(export);
        }
        let missing = export.missing.iter().map(|missing| format!("{}: {}", missing.package, missing.reason));
        Err((StatusCode::CONFLICT, missing.collect()))
    }

    fn stream_tree(&self, export: Export, permit: TransferPermit) -> Response<Body> {
        let (sender, receiver) = pipe();
        let mirror = Arc::clone(&self.mirror);
        self.mirror.runtime.spawn_until_closed(async move {
            match export.write(&mirror.transfers, sender.writer()).await {
                Ok(writer) => drop(mirror.runtime.spawn_blocking(move || writer.end(Ok(()))).await),
                // The pipe is dropped without an end, so the client gets a broken response.
                Err(error) => tracing::error!(%error, "a tree export broke off"),
            }
            drop(permit);
        });
        response::of_type(Body::stream(receiver.stream(), None), TREE_TAR)
    }

    /// Imports a tree, for as long as the client reads the answer.
    pub(super) fn import(&self, request: Request<Incoming>) -> Response<Body> {
        let unsigned = match parse_unsigned_query(request.uri().query()) {
            Ok(unsigned) => unsigned,
            Err(reason) => return response::errors(StatusCode::BAD_REQUEST, vec![reason]),
        };
        let tar = match bodies::stream_body(request, TREE_TAR) {
            Ok(tar) => tar,
            Err(refused) => return refused.into(),
        };
        match self.mirror.transfers.import(tar, unsigned, &self.call()) {
            Ok(steps) => response::of_type(Body::stream(bodies::lines(steps), None), NDJSON),
            Err(error) => self.failure(error),
        }
    }
}

/// Selects the provider packages. No client reads modules from a tree.
fn provider_packages(stored: Vec<(Artifact, Digest)>) -> Vec<(Package, Digest)> {
    let package = |(artifact, digest)| match artifact {
        Artifact::Provider(package) => Some((package, digest)),
        Artifact::Module(_) => None,
    };
    stored.into_iter().filter_map(package).collect()
}
