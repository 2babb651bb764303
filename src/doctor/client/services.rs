//! A `host` block: whether what it names instead of a registry's own services is this larder (PROTOCOL 1.1, 1.2).

use url::Url;

use super::installation::Ways;
use super::{Check, OVERRIDE, Scene};
use crate::address::Hostname;
use crate::closure::cli_config::{Service, Services};
use crate::doctor::listener::{is_ours, what_to_do_about};
use crate::doctor::recognise::{Met, Who, meet};
use crate::http::visit::NoVisit;
use crate::protocol::route::{MIRROR_BASE, providers_base};

const SERVICES: &str = "client.services";
const SLASH: &str = "client.slash";
const ADDRESS: &str = "client.address";
const SCHEME: &str = "client.scheme";
const CERTIFICATE: &str = "client.certificate";
const PATH: &str = "client.path";
const OTHER_HOST: &str = "client.host";

const NO_SLASH: &str =
    "providers.v1 has no slash at its end: the client leaves out its last part, and finds no provider";

/// What came of trying a URL of the client's.
pub(super) enum Tried {
    /// It is larder's.
    Larder,
    /// It is somebody's who is no larder, or nobody's.
    Elsewhere(Check),
    /// The client would not get that far.
    Unusable(Check),
}

impl Scene<'_> {
    /// Everything about one block.
    pub(super) async fn services(&self, services: &Services, host: &Hostname, ways: &Ways) -> Vec<Check> {
        let url_of = |name| match services.get(name) {
            Some(Service::Url(text)) => usable(text, host),
            Some(Service::Other) | None => None,
        };
        let mut checks = Vec::new();
        let (providers, modules) = (url_of("providers.v1"), url_of("modules.v1"));
        let missing = match (&providers, &modules) {
            (Some(_), Some(_)) => None,
            (Some(_), None) => Some(("only providers.v1", "modules.v1", "modules")),
            (None, Some(_)) => Some(("no providers.v1", "providers.v1", "providers")),
            (None, None) => Some(("neither providers.v1 nor modules.v1", "both", "everything")),
        };
        if let Some((named, add, fails)) = missing {
            checks.push(
                Check::fail(
                    SERVICES,
                    format!("its host block names {named}: it stands for the whole list, so {fails} from {host} fail"),
                )
                .advise(format!("add {add} to its services, as `larder client-config` prints them")),
            );
        }
        let Some(mut url) = providers else { return checks };
        // The client leaves it out of what it asks for, and it may be a secret.
        url.set_query(None);
        if !url.path().ends_with('/') {
            let shown = url.to_string();
            checks.push(Check::fail(SLASH, NO_SLASH).advise(format!("write \"providers.v1\" = \"{shown}/\"")));
            url.set_path(&format!("{}/", url.path()));
        }
        let tried = self.try_base(&url, "providers.v1", &self.right_url(host), host).await;
        match tried {
            Tried::Larder => match self.host_in(&url, host) {
                Some(fault) => checks.push(fault),
                None if checks.is_empty() && ways.come_by_the_block() => {
                    let modules = modules.filter(|modules| modules.origin() != url.origin());
                    let modules = modules
                        .map(|modules| format!("; modules are asked at {}", modules.origin().ascii_serialization()));
                    checks
                        .push(Check::ok(OVERRIDE, format!("its host block leads here{}", modules.unwrap_or_default())));
                }
                None => {}
            },
            Tried::Elsewhere(fault) | Tried::Unusable(fault) => checks.push(fault),
        }
        checks
    }

    /// Asks a base of the client's as the client would.
    pub(super) async fn try_base(&self, url: &Url, what: &str, right: &str, host: &Hostname) -> Tried {
        let shown = url.origin().ascii_serialization();
        let to_do = format!("write {right}");
        if !self.running.is_up && is_ours(url, self.config) {
            let check = Check::warn(OVERRIDE, format!("{what} leads to this larder, which does not run"));
            return Tried::Unusable(check.advise("start it: larder serve, or systemctl start larder"));
        }
        let named = host_of_path(url).unwrap_or_else(|| host.clone());
        match meet(url, &named, self.trust).await {
            Ok(Met { who: Who::Larder, .. }) => Tried::Larder,
            Ok(Met { who: Who::LarderWithout(missing), .. }) => Tried::Unusable(
                Check::fail(OTHER_HOST, format!("{what} leads to larder at {shown}, which does not mirror {missing}"))
                    .advise(to_do)
                    .advise(format!("or add {missing} to that larder as an [[upstream]]")),
            ),
            Ok(Met { who: Who::LarderThatRefuses(said), .. }) => Tried::Unusable(
                Check::fail(ADDRESS, format!("{what} leads to larder at {shown}, which refuses this machine: {said}"))
                    .advise("add the address of this machine to [server] clients"),
            ),
            Ok(Met { who: Who::SomebodyElse(status), .. }) => Tried::Elsewhere(
                Check::fail(
                    ADDRESS,
                    format!("{what} leads to {shown}, where somebody else answers ({status}), and not larder"),
                )
                .advise(to_do),
            ),
            Err(error) => Tried::Unusable(fault(&error, what, url, to_do)),
        }
    }

    /// What is wrong with the path of a URL that leads to larder.
    fn host_in(&self, url: &Url, host: &Hostname) -> Option<Check> {
        let to_do = format!("write {}", self.right_url(host));
        match host_of_path(url) {
            Some(named) if named == *host => None,
            Some(named) => Some(
                Check::fail(
                    OTHER_HOST,
                    format!("providers.v1 leads to what larder has of {named}: the same version has other bytes there"),
                )
                .advise(to_do),
            ),
            // Under the registry's own name larder serves it at the registry's own paths.
            None if url.host_str() == Some(host.name()) => None,
            None => Some(Check::fail(PATH, format!("{url} leads to larder, and there to no registry")).advise(to_do)),
        }
    }

    /// The URL of a network mirror, which must be https and end in a slash.
    pub(super) async fn try_mirror(&self, text: &str, host: &Hostname) -> Tried {
        let right = format!("url = \"{}{MIRROR_BASE}\" in network_mirror", self.base());
        let unusable = |id, found: String| Tried::Unusable(Check::fail(id, found).advise(format!("write {right}")));
        let Ok(mut url) = Url::parse(text) else {
            return unusable(ADDRESS, "the url of its network_mirror is none".to_owned());
        };
        // It may name a user and a password.
        let shown = format!("{}{}", url.origin().ascii_serialization(), url.path());
        if url.scheme() != "https" {
            let found = format!(
                "network_mirror {shown} is not https: the client takes no other, prints an error and goes on without it"
            );
            return Tried::Unusable(
                Check::fail(SCHEME, found)
                    .advise("give larder a certificate ([server] tls), or use host blocks, which may be http"),
            );
        }
        if !url.path().ends_with('/') {
            return unusable(
                SLASH,
                format!("network_mirror {shown} has no slash at its end: the client leaves out its last part"),
            );
        }
        url.set_query(None);
        let tried = self.try_base(&url, "network_mirror", &right, host).await;
        match tried {
            Tried::Larder if !url.path().ends_with(MIRROR_BASE) => {
                unusable(PATH, format!("network_mirror {shown} leads to larder, and there to no mirror"))
            }
            tried => tried,
        }
    }

    /// Whether a registry's own name leads to a larder from here.
    pub(super) async fn name_leads_here(&self, host: &Hostname) -> bool {
        let Ok(url) = Url::parse(&format!("https://{host}/v1/providers/")) else { return false };
        meet(&url, host, self.trust).await.is_ok_and(|met| met.who == Who::Larder)
    }

    fn right_url(&self, host: &Hostname) -> String {
        format!("\"providers.v1\" = \"{}{}\"", self.base(), providers_base(host))
    }
}

/// A service as the client reads it: relative to the registry, http or https, without a user.
fn usable(text: &str, host: &Hostname) -> Option<Url> {
    let url = Url::parse(&format!("https://{host}/.well-known/terraform.json")).ok()?.join(text).ok()?;
    let is_usable = matches!(url.scheme(), "http" | "https") && url.username().is_empty() && url.password().is_none();
    is_usable.then_some(url)
}

/// The registry that a path of larder's names: `…/registry/HOST/v1/…`.
fn host_of_path(url: &Url) -> Option<Hostname> {
    let mut segments = url.path_segments()?.skip_while(|segment| *segment != "registry").skip(1);
    let named = percent_encoding::percent_decode_str(segments.next()?).decode_utf8().ok()?;
    Hostname::parse(&named).ok()
}

fn fault(error: &NoVisit, what: &str, url: &Url, to_do: String) -> Check {
    let shown = url.origin().ascii_serialization();
    let found = format!("{what} leads to {shown}: {error}");
    match error {
        NoVisit::Certificate(bad) => Check::fail(CERTIFICATE, found).advise(what_to_do_about(bad)),
        NoVisit::NoTls(_) => Check::fail(SCHEME, found).advise(format!("it may be plain http there; {to_do}")),
        NoVisit::NoHttp(_) => Check::fail(SCHEME, found).advise(format!("it may be https there; {to_do}")),
        NoVisit::NoSuchName { .. } | NoVisit::Unreachable(_) | NoVisit::Slow(_) | NoVisit::NoUrl => {
            Check::fail(ADDRESS, found).advise(to_do)
        }
    }
}
