//! Real clients, each directly at a registry and through larder: the results must be equal, or differ for a written
//! reason. `tests/clients/run` installs the clients and runs this; it prints one table, and fails if a row is wrong.
#![expect(clippy::disallowed_methods, reason = "the limits on calls are for the modules of larder itself")]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "this program prints a table")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../it/support/mod.rs"]
#[expect(dead_code, reason = "the behaviour tests use the rest of it")]
mod support;

mod connect_proxy;
mod http;
mod proxies;
mod report;
mod terraform;
mod tools;

use std::path::PathBuf;
use std::process::ExitCode;

use self::report::Report;
use self::support::terraform::Terraform;

/// Where `tests/clients/run` has put the clients.
struct Tools {
    folder: PathBuf,
    selected: Vec<String>,
}

impl Tools {
    /// True if the clients of this name are selected.
    fn wants(&self, name: &str) -> bool {
        self.selected.is_empty() || self.selected.iter().any(|selected| selected == name)
    }

    /// An installed program.
    fn program(&self, name: &str) -> Option<PathBuf> {
        Some(self.folder.join("bin").join(name)).filter(|path| path.is_file())
    }

    /// A client by the name of its program, such as `terraform-1.13`.
    fn client(&self, name: &str) -> Option<Terraform> {
        Terraform::find_named(&self.program(name)?.display().to_string())
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let Some(folder) = std::env::var_os("LARDER_CLIENTS") else {
        eprintln!("run tests/clients/run: it installs the clients and sets LARDER_CLIENTS");
        return ExitCode::from(2);
    };
    let selected = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let tools = Tools { folder: folder.into(), selected };
    let mut report = Report::default();
    if tools.wants("terraform") {
        terraform::terraform_rows(&tools, &mut report).await;
    }
    if tools.wants("tofu") {
        terraform::tofu_rows(&tools, &mut report).await;
    }
    if tools.wants("renovate") {
        tools::renovate(&tools, &mut report).await;
    }
    if tools.wants("checkov") {
        tools::checkov(&tools, &mut report).await;
    }
    if tools.wants("trivy") {
        tools::trivy(&mut report).await;
    }
    if tools.wants("cdktf") {
        tools::cdktf(&tools, &mut report).await;
    }
    if tools.wants("terragrunt") {
        tools::terragrunt(&tools, &mut report).await;
    }
    if tools.wants("tfmodcache") {
        tools::tfmodcache(&tools, &mut report).await;
    }
    if tools.wants("registry-stub") {
        tools::registry_stub(&tools, &mut report).await;
    }
    if tools.wants("proxies") {
        proxies::rows(&tools, &mut report).await;
    }
    if tools.wants("http") {
        http::rows(&tools, &mut report).await;
    }
    report.print();
    if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
