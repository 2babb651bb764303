//! Bundles over the admin listener: exported and imported as streams.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use http::{Request, Response, StatusCode, header};
use hyper::body::Incoming;

use super::super::body::Body;
use super::super::response;
use super::super::sync_bridge::pipe;
use super::{Admin, NDJSON, bodies};
use crate::bundle::BundleWriter;
use crate::jobs::JobId;
use crate::jobs::job_report::JobState;
use crate::mirror::{ApplyError, GatherError, GatheredBundle, TransferPermit};
use crate::protocol::admin::bundle::{BundleRequest, TAR, apply_options};
use crate::protocol::admin::warm::no_job;
use crate::protocol::route::Api;
use crate::store::StoreError;

/// Size limit of a bundle request, which contains an inventory.
const MAX_REQUEST_BYTES: usize = 64 << 20;

impl Admin {
    /// Exports the packages of a job as a bundle.
    pub(super) async fn bundle(self: &Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        // The transfer permit is taken before the body is read, because the body may be large, too.
        let permit = match self.mirror.transfers.transfer() {
            Ok(permit) => permit,
            Err(busy) => {
                bodies::discard(request);
                return response::failure(&busy.into(), Api::Other);
            }
        };
        let body = match bodies::read_large_json(request, MAX_REQUEST_BYTES).await {
            Ok(body) => body,
            Err(refused) => return response::errors(refused.status, vec![refused.reason]),
        };
        let (bundle_request, id) = match BundleRequest::read(&body) {
            Ok(bundle_request) => bundle_request,
            Err(reason) => return response::errors(StatusCode::BAD_REQUEST, vec![reason]),
        };
        match self.gather_bundle(id, bundle_request, permit).await {
            Ok((gathered, permit)) => self.stream_bundle(gathered, permit),
            Err((status, problems)) => response::errors(status, problems),
        }
    }

    async fn gather_bundle(
        &self,
        id: JobId,
        request: BundleRequest,
        permit: TransferPermit,
    ) -> Result<(GatheredBundle, TransferPermit), (StatusCode, Vec<String>)> {
        let conflict = |reason: String| (StatusCode::CONFLICT, vec![reason]);
        let (job, stored) = self
            .jobs
            .report(id)
            .zip(self.jobs.stored_archives(id))
            .ok_or_else(|| (StatusCode::NOT_FOUND, vec![no_job(id)]))?;
        match job.state {
            JobState::Done => {}
            JobState::Running => {
                return Err(conflict(format!("job {id} is still running: repeat the request when the job has ended")));
            }
            _ if request.partial => {}
            _ => {
                let reason = "look at the job, or send \"partial\":true for a bundle of the rest";
                return Err(conflict(format!("not everything of job {id} is stored: {reason}")));
            }
        }
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
        let mut response = Response::new(Body::stream(receiver.stream(), Some(length)));
        response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(TAR));
        response
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
            Err(refused) => return response::errors(refused.status, vec![refused.reason]),
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
        let mut response = Response::new(Body::stream(first.chain(bodies::lines(steps)), None));
        response.headers_mut().insert(header::CONTENT_TYPE, NDJSON);
        response
    }

    /// Returns the inventory, for the next delta.
    pub(super) async fn inventory(self: &Arc<Self>) -> Response<Body> {
        self.on_blocking_thread(|admin| match admin.mirror.transfers.inventory(admin.clock.now()) {
            Ok(inventory) => response::json(StatusCode::OK, &inventory),
            Err(error) => response::failure(&error.into(), Api::Other),
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
