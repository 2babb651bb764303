//! `larder plan`: reports whether `init` will work offline, and which packages are stored, needed or unavailable.

mod table;

use anyhow::{Context, anyhow};
use bytes::Bytes;
use clap::Args;

use super::command::require_store;
use super::order::OrderArgs;
use super::text::width_of_stdout;
use super::{CommonOptions, ask_running, print_error, print_line, runtime};
use crate::app::{self, StartSettings};
use crate::config::Config;
use crate::http::admin_client::{self, AdminClientError};
use crate::jobs::{self, Plan};
use crate::protocol::admin::order::{OrderRequest, PLAN};

#[derive(Debug, Args)]
pub(super) struct PlanCommand {
    #[command(flatten)]
    common: CommonOptions,
    #[command(flatten)]
    order: OrderArgs,
    /// List stored packages too, and the places that require each
    #[arg(long, short)]
    verbose: bool,
}

impl PlanCommand {
    pub(super) fn common(&self) -> &CommonOptions {
        &self.common
    }

    /// Prints the plan; returns true if everything is stored.
    pub(super) fn run(self) -> anyhow::Result<bool> {
        let (config, _) = self.common.load()?;
        let order = self.order.to_order(&config.default_host())?;
        let runtime = runtime()?;
        let plan = runtime.block_on(fetch_plan(&config, &order))?;
        runtime.shutdown_timeout(std::time::Duration::from_secs(1));
        if self.common.json {
            print_line(&serde_json::to_string(&plan)?);
        } else {
            print_line(&table::text(&plan, &config.default_host(), self.verbose, width_of_stdout()));
        }
        Ok(plan.ready)
    }
}

async fn fetch_plan(config: &Config, order: &OrderRequest) -> anyhow::Result<Plan> {
    let body = Bytes::from(serde_json::to_vec(order)?);
    let response = ask_running(config, async |address, token| admin_client::post(address, PLAN, token, body).await);
    match response.await {
        Ok(body) => Ok(serde_json::from_slice(&body).context("the running larder is of another version")?),
        Err(AdminClientError::NotRunning(_)) => {
            require_store(config)?;
            let order = order.order(&config.default_host()).map_err(|bad| anyhow!(bad.join("; ")))?;
            let settings = StartSettings::default();
            let (mirror, _, _) = app::mirror(config, &settings)?;
            let plan = jobs::plan(&mirror, &settings.clock, &order).await;
            if let Err(error) = mirror.library.close().await {
                print_error(&format!("the store would not close: {error}"));
            }
            Ok(plan?)
        }
        Err(error) => Err(error.into()),
    }
}
