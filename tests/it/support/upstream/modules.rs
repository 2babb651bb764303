//! Versions and locations of modules, in every form in which registries report them, and the files of an archive host.
//! Lists, search and details of modules are in `api`.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde_json::json;

use super::FakeUpstream;
use super::reply::Reply;

/// The form in which a registry reports a location (module registry protocol).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LocationReply {
    /// `204` and `X-Terraform-Get`, as registry.terraform.io does.
    NoContent,
    /// `200` and `{"location": …}` without a header, as registry.opentofu.org does; Terraform does not accept it.
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
    location_reply: LocationReply,
}

impl Module {
    /// Version 1.0.0 with an empty location, reported by `204`.
    pub(crate) fn new(namespace: &str, name: &str, system: &str) -> Self {
        Self {
            address: (namespace.to_owned(), name.to_owned(), system.to_owned()),
            version: "1.0.0".to_owned(),
            location: String::new(),
            location_reply: LocationReply::NoContent,
        }
    }

    /// Sets the version, in the only spelling under which the registry serves it.
    pub(crate) fn version(mut self, version: &str) -> Self {
        version.clone_into(&mut self.version);
        self
    }

    /// Sets the location: any text, which the registry sends unchanged.
    pub(crate) fn at(mut self, location: &str) -> Self {
        location.clone_into(&mut self.location);
        self
    }

    /// Sets the form in which the registry reports the location.
    pub(crate) fn location_reply(mut self, location_reply: LocationReply) -> Self {
        self.location_reply = location_reply;
        self
    }

    fn reply(&self) -> Reply {
        let with_header = |reply: Reply| reply.with_header("x-terraform-get", &self.location);
        match self.location_reply {
            LocationReply::NoContent => {
                let mut reply = Reply::new(204, "text/plain", "");
                reply.headers.remove(CONTENT_TYPE);
                with_header(reply)
            }
            LocationReply::Json => {
                Reply::new(200, "application/json", json!({ "location": self.location }).to_string())
            }
            LocationReply::HeaderAndEmptyJson => with_header(Reply::new(200, "application/json", "{}")),
        }
    }
}

/// All modules; the versions of each in the order of publishing.
#[derive(Default)]
pub(super) struct Modules(BTreeMap<(String, String, String), Vec<Module>>);

impl Modules {
    fn publish(&mut self, module: Module) {
        let versions = self.0.entry(module.address.clone()).or_default();
        match versions.iter_mut().find(|existing| existing.version == module.version) {
            Some(existing) => *existing = module,
            None => versions.push(module),
        }
    }

    fn versions(&self, namespace: &str, name: &str, system: &str) -> Option<&Vec<Module>> {
        self.0.get(&(namespace.to_owned(), name.to_owned(), system.to_owned()))
    }

    /// The answer below `/v1/modules/`; none for an unknown path.
    pub(super) fn answer(&self, path: &[&str]) -> Option<Reply> {
        match path {
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

impl FakeUpstream {
    /// Publishes a module version; replaces an existing one.
    pub(crate) fn publish_module(&self, module: Module) {
        self.change(|state| state.modules.publish(module));
    }

    /// Removes a module version: it is no longer listed, and its URLs are 404.
    pub(crate) fn withdraw_module(&self, namespace: &str, name: &str, system: &str, version: &str) {
        let address = (namespace.to_owned(), name.to_owned(), system.to_owned());
        self.change(|state| {
            if let Some(versions) = state.modules.0.get_mut(&address) {
                versions.retain(|module| module.version != version);
            }
        });
    }

    /// Serves these bytes at this path from now on, with validators, and with ranges if the path is below `/files/`.
    pub(crate) fn serve_file(&self, path: &str, content_type: &'static str, bytes: impl Into<Bytes>) {
        let bytes = bytes.into();
        self.change(|state| {
            let mut reply = Reply::new(200, content_type, bytes);
            // Each change has another time.
            reply.last_modified = Some(format!("Wed, 03 Jan 2024 00:00:{:02} GMT", state.changes % 60));
            state.replies.insert(path.to_owned(), reply);
        });
    }

    /// Serves a page that names another source by the `X-Terraform-Get` header, which go-getter reads first.
    pub(crate) fn serve_terraform_get(&self, path: &str, location: &str) {
        let mut headers = HeaderMap::new();
        headers.insert("x-terraform-get", location.parse().expect("a header value"));
        self.change(|state| {
            let reply = Reply { headers, ..Reply::new(200, "text/plain", "see the header\n") };
            state.replies.insert(path.to_owned(), reply);
        });
    }

    /// Serves an HTML page that names another source by a `terraform-get` meta tag.
    pub(crate) fn serve_meta_tag(&self, path: &str, location: &str) {
        let location = location.replace('&', "&amp;");
        let page = format!(
            "<!DOCTYPE html>\n<html><head><title>A module</title>\n<meta name=\"other\" content=\"no\">\n\
             <meta name=\"terraform-get\" content=\"{location}\" />\n</head><body><p>Hello.</p></body></html>\n"
        );
        self.serve_file(path, "text/html; charset=utf-8", page);
    }
}
