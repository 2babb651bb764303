//! A site for the doctor, and what it finds.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::larder::HOST;
use super::process::{Said, command, run};
use super::site::{Site, json};
use super::terraform::host_override;
use super::upstream::{FakeUpstream, Provider};

/// An upstream that has what the doctor asks a public registry for.
pub(crate) async fn registry() -> FakeUpstream {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("hashicorp", "null"));
    upstream
}

/// A site whose store may grow to no more than any disk has.
pub(crate) fn site(upstream: &FakeUpstream) -> Site {
    let mut site = Site::new(upstream);
    site.text = site.text.replacen("[store]\n", "[store]\nmax_size = \"64MiB\"\n", 1);
    site
}

/// Where a site's larder has the providers of HOST.
pub(crate) fn providers(site: &Site) -> String {
    format!("{}/registry/{HOST}/v1/providers/", site.base())
}

/// Lets the client of this site come here.
pub(crate) fn paste(site: &Site) {
    let modules = format!("https://{HOST}/v1/modules/");
    write(site, ".terraformrc", &host_override(HOST, &providers(site), &modules));
}

/// Writes a file into the home of this site's client.
pub(crate) fn write(site: &Site, name: &str, text: &str) {
    let file = site.home.path().join(name);
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, text).unwrap();
}

/// Gives a site's larder this certificate and key.
pub(crate) fn speak_tls(site: &mut Site, certificate: &str, key: &str) {
    write(site, "cert.pem", certificate);
    write(site, "key.pem", key);
    let tls = "[server]\ntls = { certificate = \"cert.pem\", key = \"key.pem\" }\n";
    site.text = site.text.replacen("[server]\n", tls, 1);
}

/// What the doctor found.
#[derive(Debug)]
pub(crate) struct Found {
    code: Option<i32>,
    pub(crate) checks: Vec<Value>,
}

impl Found {
    pub(crate) fn said(said: &Said) -> Self {
        let found = json(&said.out);
        let code = said.code;
        assert_eq!(said.err, "", "{found}");
        assert_eq!(found["ok"], code == Some(0), "{found}");
        Self { code, checks: found["checks"].as_array().unwrap().clone() }
    }

    pub(crate) fn ids(&self, verdict: &str) -> Vec<&str> {
        let of = self.checks.iter().filter(|check| check["verdict"] == verdict);
        of.map(|check| check["id"].as_str().unwrap()).collect()
    }

    /// Nothing is wrong, and nothing is worth a warning.
    pub(crate) fn is_healthy(&self) {
        assert_eq!((self.code, self.ids("fail"), self.ids("warn")), (Some(0), vec![], vec![]), "{self:#?}");
    }

    /// These are wrong, and nothing else; the last of them says this, and what to do.
    pub(crate) fn fails(&self, ids: &[&str], said: &str) {
        assert_eq!((self.code, self.ids("fail")), (Some(1), ids.to_vec()), "{self:#?}");
        self.says(ids.last().unwrap(), "fail", said);
    }

    /// This is worth a warning, and no more.
    pub(crate) fn warns(&self, id: &str, said: &str) {
        assert_eq!((self.code, self.ids("fail"), self.ids("warn")), (Some(0), vec![], vec![id]), "{self:#?}");
        self.says(id, "warn", said);
    }

    fn says(&self, id: &str, verdict: &str, said: &str) {
        let is_it = |check: &&Value| check["id"] == id && check["verdict"] == verdict;
        let check = self.checks.iter().rfind(is_it).unwrap();
        assert!(check["found"].as_str().unwrap().contains(said), "{said:?} is not in {check:#}");
        assert!(check["to_do"].as_array().is_some_and(|to_do| !to_do.is_empty()), "{check:#} says nothing to do");
    }

    /// The ids of what is worth a warning.
    pub(crate) fn ids_of_warnings(&self) -> Vec<&str> {
        self.ids("warn")
    }

    /// What to do about what was found under an id.
    pub(crate) fn advice(&self, id: &str) -> String {
        let check = self.checks.iter().find(|check| check["id"] == id).unwrap();
        check["to_do"].to_string()
    }

    /// What was found under an id about one of several.
    pub(crate) fn of(&self, id: &str, of: &str) -> &str {
        let check = self.checks.iter().find(|check| check["id"] == id && check["of"] == of);
        check.unwrap_or_else(|| panic!("no {id} of {of} in {self:#?}"))["found"].as_str().unwrap()
    }

    /// What was found under an id, for one that is there once.
    pub(crate) fn found(&self, id: &str) -> &str {
        let mut found = self.checks.iter().filter(|check| check["id"] == id);
        let check = found.next().unwrap_or_else(|| panic!("no {id} in {self:#?}"));
        assert!(found.next().is_none(), "{id} is there twice: {self:#?}");
        check["found"].as_str().unwrap()
    }
}

/// The doctor's command, with a client's environment.
pub(crate) fn doctor(site: &Site, arguments: &[&str], set: Set<'_>) -> Command {
    let file = site.file();
    let mut command = command(site.home.path(), &[&["doctor", "--config", file.to_str().unwrap()], arguments].concat());
    for name in FOREIGN {
        command.env_remove(name);
    }
    // The clients that are there: none, so that both are looked at.
    command.env("PATH", site.home.path()).envs(set.iter().copied());
    command
}

pub(crate) async fn examine(site: &Site, set: Set<'_>) -> Found {
    Found::said(&run(doctor(site, &["--json"], set)).await)
}

/// The same on a machine where no larder was ever set up, for the one client that is there.
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

/// What nothing of this machine may decide.
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
