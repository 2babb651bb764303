//! A larder within the process of a run. Other runs may use it, and continue it when this run ends.

use std::time::Duration;

use anyhow::Context as _;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::handover;
use super::temp_folder::TempFolder;
use crate::app::{App, OneRun, Sockets, StartError, StartSettings};
use crate::cli::print_error;
use crate::config::Config;
use crate::http::admin_client::AdminClient;
use crate::http::{Runs, local_socket};
use crate::protocol::run::RunIds;
use crate::store::StoreError;

/// The name of the Unix socket in the folder of a run.
const HANDOVER: &str = "next";
/// The wait for downloads of other runs that needs no explanation.
const QUIET_WAIT: Duration = Duration::from_secs(1);
/// The longest wait for connections without a request, after the downloads: clients that connect meanwhile wait, too.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);
/// The longest wait for downloads of other runs: further ones may begin meanwhile.
const OTHERS_TIMEOUT: Duration = Duration::from_secs(600);

/// A larder within this process.
#[derive(Debug)]
pub(super) struct OwnLarder {
    /// The counts of the runs that it answers.
    pub(super) runs: Runs,
    stop: CancellationToken,
    serving: JoinHandle<Result<(), StoreError>>,
    /// Cancelled when the store is released.
    ended: CancellationToken,
    handing_over: Option<JoinHandle<()>>,
}

impl OwnLarder {
    /// Starts a larder for the runs with these ids, on the sockets of a run that has ended, else where the configuration says.
    /// `folder` belongs to this run.
    ///
    /// # Errors
    /// [`StoreError::Locked`] where another process has the store.
    pub(super) async fn start(
        config: &Config,
        folder: &TempFolder,
        ids: &RunIds,
        sockets: Option<Sockets>,
    ) -> Result<(Self, AdminClient), StartError> {
        let path = folder.file(HANDOVER);
        // Without the socket no other run continues this larder.
        let listener = local_socket::listen(&path);
        let one_run = OneRun { handover: listener.is_ok().then_some(path), ids: ids.clone() };
        let mut settings = StartSettings { one_run: Some(one_run), ..StartSettings::default() };
        settings.connections.drain = DRAIN_TIMEOUT;
        let app = App::start_on(config, settings, sockets).await?;
        let (admin, runs) = (app.admin(), app.runs());
        let (stop, ended) = (CancellationToken::new(), CancellationToken::new());
        let handing_over = listener.and_then(|listener| {
            let serving = handover::serve(listener, app.sockets()?, ids.clone(), runs.clone(), ended.clone());
            Ok(tokio::spawn(serving))
        });
        let handing_over =
            handing_over.inspect_err(|error| tracing::debug!(%error, "no run can continue this one")).ok();
        let serving = tokio::spawn(app.serve(stop.clone()));
        Ok((Self { runs, stop, serving, ended, handing_over }, admin))
    }

    /// Releases the store, and then tells the other runs. They may finish their downloads first.
    pub(super) async fn close(self) -> anyhow::Result<()> {
        let idle = self.runs.idle();
        tokio::pin!(idle);
        if timeout(QUIET_WAIT, &mut idle).await.is_err() {
            print_error("another run still downloads through this one, which waits for it; Ctrl-C cuts it off");
            let _ = timeout(OTHERS_TIMEOUT, idle).await;
        }
        self.stop.cancel();
        let closed = self.serving.await;
        self.ended.cancel();
        if let Some(handing_over) = self.handing_over {
            // It only sends the other runs their files, each within a time limit.
            let _ = handing_over.await;
        }
        closed.context("larder ended unexpectedly")?.context("the store would not close")
    }
}
