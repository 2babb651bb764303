//! Tries one URL of a client as the client would: is it the base of a larder service?

use url::Url;

use super::environment::proxied_by;
use super::{Check, ClientChecks, OVERRIDE};
use crate::address::Hostname;
use crate::doctor::listener::{
    Identified, ProbedService, ServerKind, certificate_advice, identify_server, is_own_listener,
};
use crate::doctor::running::LarderState;
use crate::http::probe_client::ProbeError;
use crate::protocol::route::{MIRROR_BASE, providers_base};

pub(super) const ADDRESS: &str = "client.address";
pub(super) const PATH: &str = "client.path";
pub(super) const OTHER_HOST: &str = "client.host";
pub(super) const SLASH: &str = "client.slash";
const SCHEME: &str = "client.scheme";
const CERTIFICATE: &str = "client.certificate";

const START: &str = "start it: larder serve, or systemctl start larder";

/// Result of trying a client's URL.
pub(super) enum UrlProbe {
    /// A larder serves the expected service there.
    Larder,
    /// Another server answers there.
    OtherServer(Check),
    /// The client could not use the URL.
    Unusable(Check),
}

impl ClientChecks<'_> {
    /// Requests a base URL as the client would. `right` proposes a correct value.
    pub(super) async fn try_base(
        &self,
        url: &Url,
        (setting, service): (&str, ProbedService),
        right: &str,
        host: &Hostname,
    ) -> UrlProbe {
        let shown = url.origin().ascii_serialization();
        let is_own_listener = is_own_listener(url, self.config);
        if self.running.state == LarderState::Down && is_own_listener {
            let check = Check::warn(OVERRIDE, format!("{setting} leads to this larder, which does not run"));
            return UrlProbe::Unusable(check.advise(START));
        }
        if self.is_off_limits(url) {
            let found = format!("{setting} leads to {shown}, which is not checked: larder is offline");
            let check = Check::warn(OVERRIDE, found);
            return UrlProbe::Unusable(check.advise("if that is this larder, set [server] public_url to it"));
        }
        let to_do = match self.running.state {
            LarderState::NeverSetUp if is_own_listener => START.to_owned(),
            LarderState::NeverSetUp => {
                format!("check that a larder runs at {shown}, and that this machine reaches it; or {right}")
            }
            LarderState::Up | LarderState::Down => right.to_owned(),
        };
        match identify_server(url, service, host, self.client_roots).await {
            Ok(Identified { kind: ServerKind::Larder, .. }) => UrlProbe::Larder,
            Ok(Identified { kind: ServerKind::LarderWithoutService, .. }) => {
                let found = format!("{setting} {shown}{} leads to larder, but not to a registry", url.path());
                UrlProbe::Unusable(Check::fail(PATH, found).advise(right))
            }
            Ok(Identified { kind: ServerKind::LarderWithoutHost(missing), .. }) => UrlProbe::Unusable(
                Check::fail(
                    OTHER_HOST,
                    format!("{setting} leads to larder at {shown}, which does not mirror {missing}"),
                )
                .advise(right)
                .advise(format!("or add {missing} to that larder as an [[upstream]]")),
            ),
            Ok(Identified { kind: ServerKind::LarderRefusing(message), .. }) => UrlProbe::Unusable(
                Check::fail(
                    ADDRESS,
                    format!("{setting} leads to larder at {shown}, which refuses this machine: {message}"),
                )
                .advise("add the address of this machine to [server] clients"),
            ),
            Ok(Identified { kind: ServerKind::OtherServer(status), .. }) => {
                let found = format!("{setting} leads to {shown}, where something else answers ({status}), not larder");
                UrlProbe::OtherServer(self.downgrade_if_proxied(url, Check::fail(ADDRESS, found).advise(to_do)))
            }
            Err(error) => UrlProbe::Unusable(self.downgrade_if_proxied(url, failed_probe(&error, setting, url, to_do))),
        }
    }

    /// True for a URL that the doctor of an offline larder must not request.
    pub(super) fn is_off_limits(&self, url: &Url) -> bool {
        self.running.is_offline && !is_own_listener(url, self.config)
    }

    /// The client would use a proxy and the doctor did not, so the finding is only a warning.
    pub(super) fn downgrade_if_proxied(&self, url: &Url, check: Check) -> Check {
        match proxied_by(url, self.environment) {
            Some(variable) => check.at_most_warn(&format!("; the proxy of {variable} may lead elsewhere")),
            None => check,
        }
    }

    /// Tries the URL of a network mirror, which must be https and end in a slash.
    pub(super) async fn try_mirror(&self, text: &str, host: &Hostname) -> UrlProbe {
        let unusable = |id, found: String, to_do: String| UrlProbe::Unusable(Check::fail(id, found).advise(to_do));
        let right = |base: &str| format!("write url = \"{base}{MIRROR_BASE}\" in network_mirror");
        let Ok(mut url) = Url::parse(text) else {
            return unusable(ADDRESS, "the url of its network_mirror is not a URL".to_owned(), right(&self.base()));
        };
        let right = right(&self.base_for(&url));
        // The URL may contain a user name and password.
        let shown = format!("{}{}", url.origin().ascii_serialization(), url.path());
        if url.scheme() != "https" {
            let found = format!(
                "network_mirror {shown} is not https: the client accepts only https, prints an error and continues without it"
            );
            let to_do = "give larder a certificate ([server] tls), or use host blocks, which may be http";
            return unusable(SCHEME, found, to_do.to_owned());
        }
        if !url.path().ends_with('/') {
            let found = format!("network_mirror {shown} has no final slash: the client drops its last path segment");
            return unusable(SLASH, found, right);
        }
        url.set_query(None);
        let probe = self.try_base(&url, ("network_mirror", ProbedService::Mirror), &right, host).await;
        match probe {
            UrlProbe::Unusable(check) if check.id == PATH => {
                unusable(PATH, format!("network_mirror {shown} leads to larder, but not to its mirror"), right)
            }
            probe => probe,
        }
    }

    /// Checks whether the registry's own host name resolves to a larder from here.
    pub(super) async fn host_name_leads_to_larder(&self, host: &Hostname) -> bool {
        let Ok(url) = Url::parse(&format!("https://{host}/v1/providers/")) else { return false };
        let identified = identify_server(&url, ProbedService::Providers, host, self.client_roots).await;
        identified.is_ok_and(|identified| identified.kind == ServerKind::Larder)
    }

    /// Proposes a correct `providers.v1`.
    pub(super) fn right_providers(&self, host: &Hostname, wrong_url: &Url) -> String {
        format!("write \"providers.v1\" = \"{}{}\"", self.base_for(wrong_url), providers_base(host))
    }

    /// Base URL of larder for this client, without a final slash: the larder of this machine, else the one that `url`
    /// points to.
    pub(super) fn base_for(&self, url: &Url) -> String {
        if self.running.state != LarderState::NeverSetUp {
            return self.base();
        }
        let path = url.path();
        let base_end = ["/registry/", MIRROR_BASE].iter().filter_map(|known| path.find(known)).min();
        format!(
            "{}{}",
            url.origin().ascii_serialization(),
            base_end.and_then(|end| path.get(..end)).unwrap_or_default()
        )
    }
}

/// Registry in the path of a larder base URL: `…/registry/HOST/v1/providers/` or `…/registry/HOST/v1/modules/`.
pub(super) fn host_of_base(url: &Url, service: &str) -> Option<Hostname> {
    let mut segments = url.path_segments()?.rev();
    let is_base = ["", service, "v1"].into_iter().all(|part| segments.next() == Some(part));
    let named = percent_encoding::percent_decode_str(segments.next()?).decode_utf8().ok()?;
    if !is_base || segments.next() != Some("registry") {
        return None;
    }
    Hostname::parse(&named).ok()
}

/// The check of a URL that could not be requested.
fn failed_probe(error: &ProbeError, subject: &str, url: &Url, to_do: String) -> Check {
    let shown = url.origin().ascii_serialization();
    let found = format!("{subject} leads to {shown}: {error}");
    match error {
        ProbeError::Certificate(bad) => Check::fail(CERTIFICATE, found).advise(certificate_advice(bad)),
        ProbeError::NoTls(_) => {
            Check::fail(SCHEME, found).advise(format!("the server may speak plain http there; {to_do}"))
        }
        ProbeError::NoHttp(_) => {
            Check::fail(SCHEME, found).advise(format!("the server may speak https there; {to_do}"))
        }
        ProbeError::NoSuchName { .. } | ProbeError::Unreachable(_) | ProbeError::Slow(_) | ProbeError::NoUrl => {
            Check::fail(ADDRESS, found).advise(to_do)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registry_of_a_base_url_is_the_segment_before_the_service() {
        for (path, host) in [
            ("/registry/a.example/v1/providers/", Some("a.example")),
            ("/tools/registry/a.example:8443/v1/providers/", Some("a.example:8443")),
            ("/registry/registry/a.example/v1/providers/", Some("a.example")),
            ("/registry/a.example/", None),
            ("/registry/a.example/providers/", None),
            ("/registry/a.example/v1/modules/", None),
            ("/registry/a.example/v1/providers", None),
            ("/registry/a.example/v1/providers/x/", None),
            ("/v1/providers/", None),
        ] {
            let url = Url::parse(&format!("http://127.0.0.1:8080{path}")).unwrap();
            assert_eq!(host_of_base(&url, "providers"), host.map(|host| Hostname::parse(host).unwrap()), "{path}");
        }
    }
}
