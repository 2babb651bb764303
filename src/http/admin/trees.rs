//! Provider trees over the admin listener: exported and imported as tar streams.

use std::collections::HashSet;
use std::sync::Arc;

use http::{Request, Response, StatusCode, header};
use hyper::body::Incoming;

use super::super::body::Body;
use super::super::response;
use super::super::sync_bridge::pipe;
use super::{Admin, NDJSON, bodies};
use crate::address::{Artifact, Package};
use crate::digest::Digest;
use crate::jobs::JobId;
use crate::jobs::job_report::JobState;
use crate::mirror::{Export, TransferPermit};
use crate::protocol::admin::bundle::{ExportRequest, parse_unsigned_query};
use crate::protocol::admin::warm::no_job;
use crate::protocol::route::Api;

const TAR: header::HeaderValue = header::HeaderValue::from_static("application/x-tar");
/// Size limit of an export request, which may name the archives that the client already has.
const MAX_REQUEST_BYTES: usize = 4 << 20;

impl Admin {
    /// Exports the packages of a job as a tree.
    pub(super) async fn export(self: &Arc<Self>, request: Request<Incoming>) -> Response<Body> {
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
        let (export_request, id) = match ExportRequest::read(&body) {
            Ok(export_request) => export_request,
            Err(reason) => return response::errors(StatusCode::BAD_REQUEST, vec![reason]),
        };
        match self.gather_tree(id, export_request.partial, &export_request.have).await {
            Ok(export) => self.stream_tree(export, permit),
            Err((status, problems)) => response::errors(status, problems),
        }
    }

    async fn gather_tree(
        &self,
        id: JobId,
        partial: bool,
        have: &HashSet<Digest>,
    ) -> Result<Export, (StatusCode, Vec<String>)> {
        let no_job = || (StatusCode::NOT_FOUND, vec![no_job(id)]);
        let conflict = |reason: String| Err((StatusCode::CONFLICT, vec![reason]));
        let (job, stored) = self.jobs.report(id).zip(self.jobs.stored_archives(id)).ok_or_else(no_job)?;
        match job.state {
            JobState::Done => {}
            JobState::Running => {
                return conflict(format!("job {id} is still running: repeat the request when the job has ended"));
            }
            _ if partial => {}
            _ => {
                return conflict(format!(
                    "not everything of job {id} is stored: look at the job, or send \"partial\":true for a tree of the rest"
                ));
            }
        }
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
        let mut response = Response::new(Body::stream(receiver.stream(), None));
        response.headers_mut().insert(header::CONTENT_TYPE, TAR);
        response
    }

    /// Imports a tree, for as long as the client reads the answer.
    pub(super) fn import(&self, request: Request<Incoming>) -> Response<Body> {
        let unsigned = match parse_unsigned_query(request.uri().query()) {
            Ok(unsigned) => unsigned,
            Err(reason) => return response::errors(StatusCode::BAD_REQUEST, vec![reason]),
        };
        let tar = match bodies::stream_body(request, "application/x-tar") {
            Ok(tar) => tar,
            Err(refused) => return response::errors(refused.status, vec![refused.reason]),
        };
        match self.mirror.transfers.import(tar, unsigned, &self.call()) {
            Ok(steps) => {
                let mut response = Response::new(Body::stream(bodies::lines(steps), None));
                response.headers_mut().insert(header::CONTENT_TYPE, NDJSON);
                response
            }
            Err(error) => response::failure(&error.into(), Api::Other),
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
