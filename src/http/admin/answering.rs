//! The part of every admin request that is the same: the larder that serves, failures, jobs, blocking work.

use std::sync::Arc;

use http::Response;

use super::{Admin, AdminProcess, Answer, ServingLarder, errors, internal, unknown_job};
use crate::error::Error;
use crate::http::body::Body;
use crate::http::response;
use crate::jobs::{JobId, RunningJob};
use crate::mirror::RequestContext;
use crate::protocol::RequestFailure;
use crate::protocol::route::Api;

impl AdminProcess {
    /// The larder that serves; `None` for one command.
    pub(super) fn serving(&self) -> Option<&ServingLarder> {
        match self {
            Self::Service(serving) | Self::Run(serving) => Some(serving),
            Self::Command { .. } => None,
        }
    }
}

impl Admin {
    /// Responds to a failure. Only a command's own user sees paths of this machine.
    pub(super) fn failure(&self, error: impl Into<Error>) -> Box<Response<Body>> {
        let failure = RequestFailure::from(error.into());
        match self.process.serving() {
            Some(_) => Box::new(response::failure(&failure, Api::Other)),
            None => errors(response::failure_status(&failure, Api::Other), vec![failure.to_string()]),
        }
    }

    /// The job with this ID; 404 where there is none.
    pub(super) fn job(&self, id: JobId) -> Answer<Arc<RunningJob>> {
        self.jobs.find(id).ok_or_else(|| unknown_job(id))
    }

    pub(super) fn job_context(&self) -> RequestContext {
        self.mirror.runtime.job_context(self.clock.now())
    }

    /// Makes the response with `work`, on a blocking thread.
    pub(super) async fn on_blocking_thread(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Answer + Send + 'static,
    ) -> Answer {
        let admin = Arc::clone(self);
        let answer = self.mirror.runtime.spawn_blocking(move || work(&admin)).await;
        answer.unwrap_or_else(|_| Err(internal("answering ended unexpectedly")))
    }
}
