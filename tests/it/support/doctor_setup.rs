//! Runs `larder doctor` and reads its report.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::command_setup::{CommandSetup, json};
use super::larder::HOST;
use super::process::{CommandOutput, command, run};
use super::terraform::host_override;
use super::upstream::{FakeUpstream, Provider};

/// An upstream with everything that the doctor requests from a public registry.
pub(crate) async fn registry() -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("hashicorp", "null"));
    upstream
}

/// A setup whose store limit is small enough for any disk.
pub(crate) fn small_store_setup(upstream: &FakeUpstream) -> CommandSetup {
    let mut setup = CommandSetup::new(upstream);
    setup.text = setup.text.replacen("[store]\n", "[store]\nmax_size = \"64MiB\"\n", 1);
    setup
}

/// The URL at which the larder of a setup serves the providers of HOST.
pub(crate) fn providers_url(setup: &CommandSetup) -> String {
    format!("{}/registry/{HOST}/v1/providers/", setup.base())
}

/// Configures the client of a setup to use its larder.
pub(crate) fn configure_client(setup: &CommandSetup) {
    let modules = format!("https://{HOST}/v1/modules/");
    write(setup, ".terraformrc", &host_override(HOST, &providers_url(setup), &modules));
}

/// Writes a file into the home of a setup's client.
pub(crate) fn write(setup: &CommandSetup, name: &str, text: &str) {
    let file = setup.home.path().join(name);
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, text).unwrap();
}

/// Configures the larder of a setup with a certificate and key.
pub(crate) fn enable_tls(setup: &mut CommandSetup, certificate: &str, key: &str) {
    write(setup, "cert.pem", certificate);
    write(setup, "key.pem", key);
    let tls = "[server]\ntls = { certificate = \"cert.pem\", key = \"key.pem\" }\n";
    setup.text = setup.text.replacen("[server]\n", tls, 1);
}

/// The report of the doctor.
#[derive(Debug)]
pub(crate) struct DoctorReport {
    code: Option<i32>,
    pub(crate) checks: Vec<Value>,
}

impl DoctorReport {
    pub(crate) fn from_output(output: &CommandOutput) -> Self {
        let report = json(&output.out);
        let code = output.code;
        assert_eq!(output.err, "", "{report}");
        assert_eq!(report["ok"], code == Some(0), "{report}");
        Self { code, checks: report["checks"].as_array().unwrap().clone() }
    }

    /// The ids of the checks with this verdict.
    pub(crate) fn ids(&self, verdict: &str) -> Vec<&str> {
        let checks = self.checks.iter().filter(|check| check["verdict"] == verdict);
        checks.map(|check| check["id"].as_str().unwrap()).collect()
    }

    /// Asserts that no check fails or warns.
    pub(crate) fn assert_healthy(&self) {
        assert_eq!((self.code, self.ids("fail"), self.ids("warn")), (Some(0), vec![], vec![]), "{self:#?}");
    }

    /// Asserts that exactly these checks fail, that the last one's finding contains `text`, and that it has advice.
    pub(crate) fn assert_fails(&self, ids: &[&str], text: &str) {
        assert_eq!((self.code, self.ids("fail")), (Some(1), ids.to_vec()), "{self:#?}");
        self.assert_finding(ids.last().unwrap(), "fail", text);
    }

    /// Asserts that exactly this check warns and none fails, that its finding contains `text`, and that it has advice.
    pub(crate) fn assert_warns(&self, id: &str, text: &str) {
        assert_eq!((self.code, self.ids("fail"), self.ids("warn")), (Some(0), vec![], vec![id]), "{self:#?}");
        self.assert_finding(id, "warn", text);
    }

    fn assert_finding(&self, id: &str, verdict: &str, text: &str) {
        let is_wanted = |check: &&Value| check["id"] == id && check["verdict"] == verdict;
        let check = self.checks.iter().rfind(is_wanted).unwrap();
        assert!(check["found"].as_str().unwrap().contains(text), "{text:?} is not in {check:#}");
        assert!(check["to_do"].as_array().is_some_and(|to_do| !to_do.is_empty()), "no advice in {check:#}");
    }

    /// The ids of the warnings.
    pub(crate) fn ids_of_warnings(&self) -> Vec<&str> {
        self.ids("warn")
    }

    /// The advice of the check with an id.
    pub(crate) fn advice(&self, id: &str) -> String {
        let check = self.checks.iter().find(|check| check["id"] == id).unwrap();
        check["to_do"].to_string()
    }

    /// The finding of the check with an id and a subject.
    pub(crate) fn finding_of(&self, id: &str, subject: &str) -> &str {
        let check = self.checks.iter().find(|check| check["id"] == id && check["of"] == subject);
        check.unwrap_or_else(|| panic!("no {id} of {subject} in {self:#?}"))["found"].as_str().unwrap()
    }

    /// The finding of the only check with an id.
    pub(crate) fn finding(&self, id: &str) -> &str {
        let mut matches = self.checks.iter().filter(|check| check["id"] == id);
        let check = matches.next().unwrap_or_else(|| panic!("no {id} in {self:#?}"));
        assert!(matches.next().is_none(), "{id} is there twice: {self:#?}");
        check["found"].as_str().unwrap()
    }
}

/// The `larder doctor` command with a client's environment.
pub(crate) fn doctor(setup: &CommandSetup, arguments: &[&str], environment: Environment<'_>) -> Command {
    let file = setup.file();
    let mut command =
        command(setup.home.path(), &[&["doctor", "--config", file.to_str().unwrap()], arguments].concat());
    for name in CLIENT_VARIABLES {
        command.env_remove(name);
    }
    // No client is on PATH, so the doctor examines both.
    command.env("PATH", setup.home.path()).envs(environment.iter().copied());
    command
}

/// Runs the doctor with `--json` in a client's environment; returns its report.
pub(crate) async fn examine(setup: &CommandSetup, environment: Environment<'_>) -> DoctorReport {
    DoctorReport::from_output(&run(doctor(setup, &["--json"], environment)).await)
}

/// Runs the doctor in a home without a larder configuration, with terraform as the only client on PATH.
pub(crate) async fn examine_without_larder_config(home: &Path) -> DoctorReport {
    std::fs::write(home.join("terraform"), "").unwrap();
    let mut command = command(home, &["doctor", "--json"]);
    for name in CLIENT_VARIABLES.into_iter().chain(["XDG_CONFIG_HOME", "XDG_CACHE_HOME", "STATE_DIRECTORY"]) {
        command.env_remove(name);
    }
    command.env("PATH", home).env("HOME", home);
    DoctorReport::from_output(&run(command).await)
}

/// Environment variables of a client: names and values.
pub(crate) type Environment<'a> = &'a [(&'a str, &'a str)];

/// Variables that must not leak in from this machine.
pub(crate) const CLIENT_VARIABLES: [&str; 14] = [
    "TF_CLI_CONFIG_FILE",
    "TERRAFORM_CONFIG",
    "TF_PLUGIN_CACHE_DIR",
    "TF_REGISTRY_CLIENT_TIMEOUT",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "NO_PROXY",
    "no_proxy",
    "ALL_PROXY",
    "all_proxy",
];
