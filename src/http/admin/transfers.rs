//! Bundles and provider trees over the admin listener: exported and imported as streams.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;

use super::super::body::{Body, pipe};
use super::super::response;
use super::{Admin, Answer, NDJSON, bodies, errors, internal, refused};
use crate::address::Artifact;
use crate::bundle::BundleWriter;
use crate::digest::Digest;
use crate::jobs::JobId;
use crate::jobs::job_report::JobState;
use crate::mirror::{ApplyError, Export, GatherError, GatheredBundle, PlannedSignature, TransferPermit};
use crate::protocol::admin::bundle::{BundleRequest, ExportRequest, TAR, apply_options, parse_unsigned_query};
use crate::store::StoreError;

/// Size limit of a bundle request, which contains an inventory.
const MAX_BUNDLE_REQUEST_BYTES: usize = 64 << 20;

impl Admin {
    /// Exports the packages of a job as a bundle.
    pub(super) async fn bundle(self: &Arc<Self>, request: Request<Incoming>) -> Answer {
        let read = self.read_transfer_request(request, MAX_BUNDLE_REQUEST_BYTES, BundleRequest::read).await;
        let ((request, id), permit) = read?;
        let stored = self.archives_to_export(id, request.partial, "bundle")?;
        let (mirror, now) = (Arc::clone(&self.mirror), self.clock.now());
        let created = request.created.unwrap_or(now);
        let signature =
            if self.bundles.signing.is_some() { PlannedSignature::Signed } else { PlannedSignature::Unsigned };
        // The task holds the transfer permit while it works, even after the client has disconnected.
        let gathering = self.mirror.runtime.spawn_blocking(move || {
            let gathered =
                mirror.transfers.gather(stored, request.since.as_ref(), request.partial, created, now, signature);
            gathered.map(|gathered| (gathered, permit))
        });
        match gathering.await {
            Ok(Ok((gathered, permit))) => Ok(self.stream_bundle(gathered, permit)),
            Ok(Err(GatherError::Missing(missing))) => Err(errors(StatusCode::CONFLICT, missing)),
            Ok(Err(GatherError::Store(error))) => Err(unavailable(error)),
            Err(_) => Err(internal("gathering the bundle ended unexpectedly")),
        }
    }

    /// Reads a request for an export. The transfer permit is taken before the body is read, because the body may be
    /// large, too.
    async fn read_transfer_request<T>(
        &self,
        request: Request<Incoming>,
        max_bytes: usize,
        read: impl FnOnce(&[u8]) -> Result<T, String>,
    ) -> Answer<(T, TransferPermit)> {
        let permit = match self.mirror.transfers.transfer() {
            Ok(permit) => permit,
            Err(busy) => {
                bodies::discard(request);
                return Err(self.failure(busy));
            }
        };
        let body = bodies::read_json(request, max_bytes).await?;
        Ok((read(&body).map_err(|reason| refused(vec![reason]))?, permit))
    }

    /// The stored archives of an ended job: of a complete one, or of any with `partial`. `export` is the export's noun.
    fn archives_to_export(&self, id: JobId, partial: bool, export: &str) -> Answer<Vec<(Artifact, Digest)>> {
        let job = self.job(id)?;
        // The state comes first: an archive may be stored meanwhile.
        let state = job.report().state;
        let stored = job.stored_items().into_iter().map(|(_, artifact, digest)| (artifact, digest)).collect();
        let reason = match state {
            JobState::Done => return Ok(stored),
            JobState::Running => format!("job {id} is still running: repeat the request when the job has ended"),
            JobState::Failed | JobState::Cancelled if partial => return Ok(stored),
            JobState::Failed | JobState::Cancelled => format!(
                "not everything of job {id} is stored: look at the job, or send \"partial\":true for a {export} of the rest"
            ),
        };
        Err(errors(StatusCode::CONFLICT, vec![reason]))
    }

    fn stream_bundle(&self, gathered: GatheredBundle, permit: TransferPermit) -> Response<Body> {
        for missing in &gathered.missing {
            tracing::warn!(missing, "a package is missing from a bundle");
        }
        let (sender, receiver) = pipe();
        let (mirror, key) = (Arc::clone(&self.mirror), self.bundles.signing.clone());
        let length = BundleWriter::<Vec<u8>>::bundle_bytes(&gathered.manifest, key.as_ref());
        drop(self.mirror.runtime.spawn_blocking(move || {
            let mut writer = sender.writer();
            let written = mirror.transfers.write_bundle(&gathered, key.as_ref(), &mut writer).map(drop);
            if let Err(error) = &written {
                tracing::error!(%error, "a bundle was not written to its end");
            }
            // Released before the client sees the end: it may ask for its next bundle at once.
            drop(permit);
            writer.end(written);
        }));
        response::of_type(Body::stream(receiver.stream(), Some(length)), TAR)
    }

    /// Imports a bundle, and reports each entry as it finishes.
    pub(super) async fn apply(self: &Arc<Self>, request: Request<Incoming>) -> Answer {
        let options = match apply_options(request.uri().query(), &self.bundles, &self.default_host) {
            Ok(options) => options,
            Err(problems) => {
                bodies::discard(request);
                return Err(refused(problems));
            }
        };
        let reader = bodies::stream_body(request, TAR).await?;
        let (mut steps, applied) = self.mirror.transfers.spawn_apply(reader, options, self.clock.clone());
        // A refusal before the first entry is a response with its own status.
        let Some(first) = steps.recv().await else {
            return Err(match applied.await {
                Ok(Err(error)) => errors(status_of(&error), vec![error.to_string()]),
                Ok(Ok(_)) | Err(_) => internal("applying the bundle ended unexpectedly"),
            });
        };
        let first = stream::once(async move { bodies::line(&first) });
        Ok(response::of_type(Body::stream(first.chain(bodies::lines(steps)), None), NDJSON))
    }

    /// Returns the inventory, for the next delta.
    pub(super) async fn inventory(self: &Arc<Self>) -> Answer {
        self.on_blocking_thread(|admin| {
            let inventory = admin.mirror.transfers.inventory(admin.clock.now());
            let inventory = inventory.map_err(|error| admin.failure(error))?;
            // A file that another larder reads, and a delta names by its digest: exactly its own members.
            Ok(response::of_type(Body::full(inventory.to_bytes().into()), "application/json"))
        })
        .await
    }
}

fn unavailable(error: impl std::fmt::Display) -> Box<Response<Body>> {
    errors(StatusCode::SERVICE_UNAVAILABLE, vec![error.to_string()])
}

fn status_of(error: &ApplyError) -> StatusCode {
    match error {
        ApplyError::Busy => StatusCode::SERVICE_UNAVAILABLE,
        ApplyError::Bundle(_) => StatusCode::BAD_REQUEST,
        ApplyError::UnknownHosts(_) | ApplyError::TooOld { .. } => StatusCode::CONFLICT,
        ApplyError::NoRoom { .. } => StatusCode::INSUFFICIENT_STORAGE,
        ApplyError::Store(StoreError::Unavailable) => StatusCode::SERVICE_UNAVAILABLE,
        ApplyError::Store(_) | ApplyError::Mirror(_) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// Size limit of an export request, which may name the archives that the client already has.
const MAX_EXPORT_REQUEST_BYTES: usize = 4 << 20;

impl Admin {
    /// Exports the packages of a job as a tree.
    pub(super) async fn export(self: &Arc<Self>, request: Request<Incoming>) -> Answer {
        let read = self.read_transfer_request(request, MAX_EXPORT_REQUEST_BYTES, ExportRequest::read).await;
        let ((ExportRequest { partial, have, .. }, id), permit) = read?;
        let stored = self.archives_to_export(id, partial, "tree")?;
        // No client reads modules from a tree.
        let packages = stored.into_iter().filter_map(|(artifact, digest)| match artifact {
            Artifact::Provider(package) => Some((package, digest)),
            Artifact::Module(_) => None,
        });
        let export = self.mirror.transfers.export(packages.collect(), &have, &self.job_context()).await;
        let export = export.map_err(unavailable)?;
        if partial || export.missing.is_empty() {
            return Ok(self.stream_tree(export, permit));
        }
        let missing = export.missing.iter().map(|missing| format!("{}: {}", missing.package, missing.reason));
        Err(errors(StatusCode::CONFLICT, missing.collect()))
    }

    fn stream_tree(&self, export: Export, permit: TransferPermit) -> Response<Body> {
        let (sender, receiver) = pipe();
        let mirror = Arc::clone(&self.mirror);
        self.mirror.runtime.spawn_until_closed(async move {
            let written = export.write(&mirror.transfers, sender.writer()).await;
            // Released before the client sees the end: it may ask for its next tree at once.
            drop(permit);
            match written {
                Ok(writer) => drop(mirror.runtime.spawn_blocking(move || writer.end(Ok(()))).await),
                // The pipe is dropped without an end, so the client gets a broken response.
                Err(error) => tracing::error!(%error, "a tree export broke off"),
            }
        });
        response::of_type(Body::stream(receiver.stream(), None), TAR)
    }

    /// Imports a tree, for as long as the client reads the answer.
    pub(super) async fn import(&self, request: Request<Incoming>) -> Answer {
        let unsigned = parse_unsigned_query(request.uri().query()).map_err(|reason| refused(vec![reason]))?;
        let tar = bodies::stream_body(request, TAR).await?;
        let steps =
            self.mirror.transfers.import(tar, unsigned, &self.job_context()).map_err(|error| self.failure(error))?;
        Ok(response::of_type(Body::stream(bodies::lines(steps), None), NDJSON))
    }
}
