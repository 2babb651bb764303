//! The module side of the registry: versions and locations, in every way that registries report them, and the files of
//! an archive host. Lists, search and details are in `api`.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde_json::json;

use super::FakeUpstream;
use super::reply::Reply;

/// The way a registry reports a location (PROTOCOL 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Telling {
    /// `204` and `X-Terraform-Get`, as registry.terraform.io does.
    NoContent,
    /// `200` and `{"location": …}` without a header, as registry.opentofu.org does; Terraform does not take it.
    Json,
    /// `200`, `X-Terraform-Get` and `{}`.
    HeaderAndEmptyJson,
}

/// One version of a module, as its registry describes it.
#[derive(Clone, Debug)]
pub(crate) struct Module {
    address: (String, String, String),
    version: String,
    location: String,
    telling: Telling,
}

impl Module {
    /// 1.0.0, reported by `204`, without a location yet.
    pub(crate) fn new(namespace: &str, name: &str, system: &str) -> Self {
        Self {
            address: (namespace.to_owned(), name.to_owned(), system.to_owned()),
            version: "1.0.0".to_owned(),
            location: String::new(),
            telling: Telling::NoContent,
        }
    }

    /// Another version, in the registry's own spelling: it answers to no other.
    pub(crate) fn version(mut self, version: &str) -> Self {
        version.clone_into(&mut self.version);
        self
    }

    /// The location: any text, sent unchanged.
    pub(crate) fn at(mut self, location: &str) -> Self {
        location.clone_into(&mut self.location);
        self
    }

    /// Reports the location in this way.
    pub(crate) fn told(mut self, telling: Telling) -> Self {
        self.telling = telling;
        self
    }

    fn reply(&self) -> Reply {
        let with_header = |reply: Reply| reply.with_header("x-terraform-get", &self.location);
        match self.telling {
            Telling::NoContent => {
                let mut reply = Reply::new(204, "text/plain", "");
                reply.headers.remove(CONTENT_TYPE);
                with_header(reply)
            }
            Telling::Json => Reply::new(200, "application/json", json!({ "location": self.location }).to_string()),
            Telling::HeaderAndEmptyJson => with_header(Reply::new(200, "application/json", "{}")),
        }
    }
}

/// All modules, in the order of publishing.
#[derive(Default)]
pub(super) struct Modules(BTreeMap<(String, String, String), Vec<Module>>);

impl Modules {
    fn publish(&mut self, module: Module) {
        let versions = self.0.entry(module.address.clone()).or_default();
        match versions.iter_mut().find(|before| before.version == module.version) {
            Some(before) => *before = module,
            None => versions.push(module),
        }
    }

    fn versions(&self, namespace: &str, name: &str, system: &str) -> Option<&Vec<Module>> {
        self.0.get(&(namespace.to_owned(), name.to_owned(), system.to_owned()))
    }

    /// The answer below `/v1/modules/`; none for an unknown path.
    pub(super) fn answer(&self, rest: &[&str]) -> Option<Reply> {
        match rest {
            [namespace, name, system, "versions"] => {
                let versions = self.versions(namespace, name, system)?.iter();
                let versions: Vec<_> = versions.map(|module| json!({ "version": module.version })).collect();
                let source = format!("{namespace}/{name}/{system}");
                let list = json!({ "modules": [{ "source": source, "versions": versions }] });
                Some(Reply::new(200, "application/json", list.to_string()))
            }
            [namespace, name, system, version, "download"] => {
                let versions = self.versions(namespace, name, system)?;
                versions.iter().find(|module| module.version == *version).map(Module::reply)
            }
            _ => None,
        }
    }
}

/// Its modules.
impl FakeUpstream {
    /// Publishes a version of a module, or publishes it again in place of the one before.
    pub(crate) fn publish_module(&self, module: Module) {
        self.change(|state| state.modules.publish(module));
    }

    /// Takes a version of a module away: not listed, and 404.
    pub(crate) fn withdraw_module(&self, namespace: &str, name: &str, system: &str, version: &str) {
        let address = (namespace.to_owned(), name.to_owned(), system.to_owned());
        self.change(|state| {
            if let Some(versions) = state.modules.0.get_mut(&address) {
                versions.retain(|module| module.version != version);
            }
        });
    }

    /// Answers this path with these bytes from now on, with a validator, and with ranges where it is below `/files/`.
    pub(crate) fn serve_file(&self, path: &str, content_type: &'static str, bytes: impl Into<Bytes>) {
        let bytes = bytes.into();
        self.change(|state| {
            let mut reply = Reply::new(200, content_type, bytes);
            reply.last_modified = Some(format!("Wed, 03 Jan 2024 00:00:{:02} GMT", state.changes % 60));
            state.pages.insert(path.to_owned(), reply);
        });
    }

    /// Answers this path with a page that names another source by the header that go-getter reads first.
    pub(crate) fn serve_terraform_get(&self, path: &str, location: &str) {
        let mut headers = HeaderMap::new();
        headers.insert("x-terraform-get", location.parse().expect("a header value"));
        self.change(|state| {
            let reply = Reply { headers, ..Reply::new(200, "text/plain", "see the header\n") };
            state.pages.insert(path.to_owned(), reply);
        });
    }

    /// The same by the tag in the head of an HTML page.
    pub(crate) fn serve_meta_tag(&self, path: &str, location: &str) {
        let location = location.replace('&', "&amp;");
        let page = format!(
            "<!DOCTYPE html>\n<html><head><title>A module</title>\n<meta name=\"other\" content=\"no\">\n\
             <meta name=\"terraform-get\" content=\"{location}\" />\n</head><body><p>Hello.</p></body></html>\n"
        );
        self.serve_file(path, "text/html; charset=utf-8", page);
    }
}
