//! A setup for the doctor, and its findings.

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

/// A site whose store may grow to no more than any disk has.
pub(crate) fn site(upstream: &FakeUpstream) -> CommandSetup {
    let mut setup = CommandSetup::new(upstream);
    setup.text = setup.text.replacen("[store]\n", "[store]\nmax_size = \"64MiB\"\n", 1);
    setup
}

/// Where a site's larder has the providers of HOST.
pub(crate) fn providers(setup: &CommandSetup) -> String {
    format!("{}/registry/{HOST}/v1/providers/", setup.base())
}

/// Lets the client of this site come here.
pub(crate) fn paste(setup: &CommandSetup) {
    let modules = format!("https://{HOST}/v1/modules/");
    write(setup, ".terraformrc", &host_override(HOST, &providers(setup), &modules));
}

/// Writes a file into the home of this site's client.
pub(crate) fn write(setup: &CommandSetup, name: &str, text: &str) {
    let file = setup.home.path().join(name);
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, text).unwrap();
}

/// Gives a site's larder this certificate and key.
pub(crate) fn speak_tls(setup: &mut CommandSetup, certificate: &str, key: &str) {
    write(setup, "cert.pem", certificate);
    write(setup, "key.pem", key);
    let tls = "[server]\ntls = { certificate = \"cert.pem\", key = \"key.pem\" }\n";
    setup.text = setup.text.replacen("[server]\n", tls, 1);
}

/// The doctor's findings.
#[derive(Debug)]
pub(crate) struct Found {
    code: Option<i32>,
    pub(crate) checks: Vec<Value>,
}

impl Found {
    pub(crate) fn said(output: &CommandOutput) -> Self {
        let found = json(&output.out);
        let code = output.code;
        assert_eq!(output.err, "", "{found}");
        assert_eq!(found["ok"], code == Some(0), "{found}");
        Self { code, checks: found["checks"].as_array().unwrap().clone() }
    }

    pub(crate) fn ids(&self, verdict: &str) -> Vec<&str> {
        let name = self.checks.iter().filter(|check| check["verdict"] == verdict);
        name.map(|check| check["id"].as_str().unwrap()).collect()
    }

    /// Nothing is wrong, and nothing is worth a warning.
    pub(crate) fn is_healthy(&self) {
        assert_eq!((self.code, self.ids("fail"), self.ids("warn")), (Some(0), vec![], vec![]), "{self:#?}");
    }

    /// These are wrong, and nothing else; the last of them says this, and what to do.
    pub(crate) fn fails(&self, ids: &[&str], output: &str) {
        assert_eq!((self.code, self.ids("fail")), (Some(1), ids.to_vec()), "{self:#?}");
        self.says(ids.last().unwrap(), "fail", output);
    }

    /// This is worth a warning, and no more.
    pub(crate) fn warns(&self, id: &str, output: &str) {
        assert_eq!((self.code, self.ids("fail"), self.ids("warn")), (Some(0), vec![], vec![id]), "{self:#?}");
        self.says(id, "warn", output);
    }

    fn says(&self, id: &str, verdict: &str, output: &str) {
        let is_it = |check: &&Value| check["id"] == id && check["verdict"] == verdict;
        let check = self.checks.iter().rfind(is_it).unwrap();
        assert!(check["found"].as_str().unwrap().contains(output), "{output:?} is not in {check:#}");
        assert!(check["to_do"].as_array().is_some_and(|to_do| !to_do.is_empty()), "{check:#} says nothing to do");
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
    pub(crate) fn of(&self, id: &str, name: &str) -> &str {
        let check = self.checks.iter().find(|check| check["id"] == id && check["of"] == name);
        check.unwrap_or_else(|| panic!("no {id} of {name} in {self:#?}"))["found"].as_str().unwrap()
    }

    /// The finding of the only check with an id.
    pub(crate) fn found(&self, id: &str) -> &str {
        let mut found = self.checks.iter().filter(|check| check["id"] == id);
        let check = found.next().unwrap_or_else(|| panic!("no {id} in {self:#?}"));
        assert!(found.next().is_none(), "{id} is there twice: {self:#?}");
        check["found"].as_str().unwrap()
    }
}

/// The doctor's command, with a client's environment.
pub(crate) fn doctor(setup: &CommandSetup, arguments: &[&str], set: Set<'_>) -> Command {
    let file = setup.file();
    let mut command =
        command(setup.home.path(), &[&["doctor", "--config", file.to_str().unwrap()], arguments].concat());
    for name in FOREIGN {
        command.env_remove(name);
    }
    // No client is on PATH, so both are examined.
    command.env("PATH", setup.home.path()).envs(set.iter().copied());
    command
}

pub(crate) async fn examine(setup: &CommandSetup, set: Set<'_>) -> Found {
    Found::said(&run(doctor(setup, &["--json"], set)).await)
}

/// The doctor on a machine without a configured larder and with terraform only.
pub(crate) async fn examine_terraform_alone(home: &Path) -> Found {
    std::fs::write(home.join("terraform"), "").unwrap();
    let mut command = command(home, &["doctor", "--json"]);
    for name in FOREIGN.into_iter().chain(["XDG_CONFIG_HOME", "XDG_CACHE_HOME", "STATE_DIRECTORY"]) {
        command.env_remove(name);
    }
    command.env("PATH", home).env("HOME", home);
    Found::said(&run(command).await)
}

/// A client's environment, beside its home.
pub(crate) type Set<'a> = &'a [(&'a str, &'a str)];

/// Variables that must not leak in from this machine.
pub(crate) const FOREIGN: [&str; 14] = [
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
