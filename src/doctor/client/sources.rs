//! Checks where clients take the providers and modules of a registry from: the services in its `host` block (service
//! discovery), and the methods of a `provider_installation` block (provider network mirror protocol). Tries each URL as
//! the client would: is it the base of a larder service?

use http::StatusCode;
use url::Url;

use super::{Check, ClientChecks, ClientFiles, OVERRIDE, default_host, proxied_by};
use crate::address::Hostname;
use crate::doctor::PROBE_TIMEOUT;
use crate::doctor::listener::{
    Identified, ProbedService, ServerKind, certificate_advice, identify_server, is_own_listener,
};
use crate::doctor::machine::LarderState;
use crate::http::probe_client::{ProbeError, probe};
use crate::protocol::route::{MIRROR_BASE, Route, modules_base, providers_base};
use crate::requirements::cli_config::{Coverage, InstallationSource, ServiceValue, Services};
use crate::upstream::providers::RawObject;

const SERVICES: &str = "client.services";

const PORT_IS_TAKEN: &str =
    "another program has larder's port; stop it (ss -ltnp names it) and start larder, or give larder another";

const NO_SLASH: &str = "providers.v1 has no final slash: the client drops its last path segment, and finds no provider";

/// The services that a registry offers and larder serves.
#[derive(Debug, Clone, Copy)]
struct OfferedServices {
    providers: bool,
    modules: bool,
}

impl OfferedServices {
    const BOTH: Self = Self { providers: true, modules: true };
}

impl ClientChecks<'_> {
    /// Checks the services of one `host` block.
    pub(super) async fn check_services(
        &self,
        services: &Services,
        host: &Hostname,
        sources: &ProviderSources,
    ) -> Vec<Check> {
        let mut checks = Vec::new();
        let (providers, modules) = (url_of(services, "providers.v1", host), url_of(services, "modules.v1", host));
        // A registry may offer only one of the two services.
        let offered = match (&providers, &modules) {
            (Some(_), Some(_)) => OfferedServices::BOTH,
            (url, None) | (None, url) => {
                self.offered_services(url.as_ref(), host).await.unwrap_or(OfferedServices::BOTH)
            }
        };
        let missing = match (providers.is_none() && offered.providers, modules.is_none() && offered.modules) {
            (false, false) => None,
            (false, true) => Some(("modules.v1", "modules")),
            (true, false) => Some(("providers.v1", "providers")),
            (true, true) => Some(("both", "everything")),
        };
        let listed = match (&providers, &modules) {
            (Some(_), _) => "only providers.v1",
            (None, Some(_)) => "no providers.v1",
            (None, None) => "neither providers.v1 nor modules.v1",
        };
        if let Some((add, affected)) = missing {
            let finding =
                format!("its host block names {listed}: it replaces the whole list, so {affected} from {host} fail");
            let advice = format!("add {add} to its services, as `larder client-config` prints them");
            checks.push(Check::fail(SERVICES, finding).advise(advice));
        }
        if let Some(modules) = &modules {
            checks.extend(self.check_modules(modules, providers.as_ref(), host).await);
        }
        let Some(mut url) = providers else {
            if let Some(modules) = modules.filter(|_| checks.is_empty()) {
                checks.push(self.check_modules_alone(&modules, host).await);
            }
            return checks;
        };
        if !url.path().ends_with('/') {
            let shown = url.to_string();
            checks.push(Check::fail(SLASH, NO_SLASH).advise(format!("write \"providers.v1\" = \"{shown}/\"")));
            url.set_path(&format!("{}/", url.path()));
        }
        let host_in_path = host_of_base(&url, "providers").unwrap_or_else(|| host.clone());
        let correction = self.providers_correction(host, &url);
        match self.try_base(&url, ("providers.v1", ProbedService::Providers), &correction, &host_in_path).await {
            UrlProbe::Larder => match self.check_host_in_path(&url, host) {
                Some(fault) => checks.push(fault),
                None if checks.is_empty() && sources.covers_all_providers() => {
                    let modules = modules.filter(|modules| modules.origin() != url.origin());
                    let elsewhere = modules
                        .map(|modules| format!("; modules come from {}", modules.origin().ascii_serialization()));
                    let finding = format!("its host block leads to larder{}", elsewhere.unwrap_or_default());
                    checks.push(Check::passed(OVERRIDE, finding));
                }
                None => {}
            },
            UrlProbe::OtherServer(fault) | UrlProbe::Unusable(fault) => checks.push(fault),
        }
        checks
    }

    /// The services of a registry according to larder; `None` where larder cannot be asked or does not mirror it.
    async fn offered_services(&self, url: Option<&Url>, host: &Hostname) -> Option<OfferedServices> {
        let base = url.map_or_else(|| self.base(), |url| self.base_for(url));
        let url = Url::parse(&format!("{base}{}", Route::Discovery(host.clone()).path())).ok()?;
        if self.is_off_limits(&url) {
            return None;
        }
        let answer = probe(&url, self.client_roots, PROBE_TIMEOUT, None)
            .await
            .ok()
            .filter(|answer| answer.status == StatusCode::OK)?;
        let services: RawObject = serde_json::from_slice(&answer.body).ok()?;
        let has = |name: &str| services.get(name).is_some_and(|url| serde_json::from_str::<String>(url.get()).is_ok());
        Some(OfferedServices { providers: has("providers.v1"), modules: has("modules.v1") })
    }

    /// Checks a block with modules.v1 only, for a registry that offers nothing else.
    async fn check_modules_alone(&self, url: &Url, host: &Hostname) -> Check {
        let url = with_slash(url);
        let host_in_path = host_of_base(&url, "modules").unwrap_or_else(|| host.clone());
        let correction = format!("write \"modules.v1\" = \"{}{}\"", self.base_for(&url), modules_base(host));
        match self.try_base(&url, ("modules.v1", ProbedService::Modules), &correction, &host_in_path).await {
            UrlProbe::Larder => {
                Check::passed(OVERRIDE, "its host block leads to larder; the registry offers modules only")
            }
            UrlProbe::OtherServer(fault) | UrlProbe::Unusable(fault) => fault,
        }
    }

    /// Guesses from its URLs whether a block is meant for a larder.
    pub(super) fn seems_meant_for_larder(&self, services: &Services, host: &Hostname) -> bool {
        ["providers", "modules"].into_iter().any(|service| {
            let url = url_of(services, &format!("{service}.v1"), host);
            url.is_some_and(|url| is_own_listener(&url, self.config) || host_of_base(&url, service).is_some())
        })
    }

    /// Checks that modules.v1 leads to the modules of the same registry. A URL at the registry itself is not checked.
    async fn check_modules(&self, url: &Url, providers: Option<&Url>, host: &Hostname) -> Option<Check> {
        if url.host_str() == Some(host.name()) || self.is_off_limits(url) {
            return None;
        }
        let base = with_slash(url);
        let host_in_path = host_of_base(&base, "modules");
        let shown = url.origin().ascii_serialization();
        let expected_host = host_in_path.as_ref().unwrap_or(host);
        let base_for_modules = self.base_for(providers.unwrap_or(&base));
        let correction = || format!("write \"modules.v1\" = \"{base_for_modules}{}\"", modules_base(host));
        let leads = format!("modules.v1 leads to {shown}");
        match identify_server(&base, ProbedService::Modules, expected_host, self.client_roots, None).await {
            Ok(Identified { kind, .. }) => match kind {
                ServerKind::LarderWithoutService | ServerKind::LarderWithoutHost(_) => {
                    let finding = format!(
                        "modules.v1 leads to larder at {shown}, which serves no modules there: all of {host} fail"
                    );
                    Some(Check::fail(SERVICES, finding).advise(correction()))
                }
                ServerKind::Larder => {
                    let other = host_in_path.filter(|host_in_path| host_in_path != host)?;
                    let finding = format!("modules.v1 leads to larder's copy of {other}, which has other modules");
                    Some(Check::fail(OTHER_HOST, finding).advise(correction()))
                }
                ServerKind::OtherServer(status) if host_in_path.is_some() => {
                    let finding =
                        format!("{leads}, where something else answers ({status}): all modules of {host} fail");
                    let advice =
                        if is_own_listener(url, self.config) { PORT_IS_TAKEN.to_owned() } else { correction() };
                    Some(self.downgrade_if_proxied(url, Check::fail(SERVICES, finding).advise(advice)))
                }
                ServerKind::LarderNeedsToken(_) | ServerKind::LarderRefusing(_) | ServerKind::OtherServer(_) => None,
            },
            // The check of providers.v1 already reports this origin.
            Err(_) if providers.is_some_and(|providers| providers.origin() == url.origin()) => None,
            Err(_) if is_own_listener(url, self.config) => None,
            // Meant for larder, but with a wrong port or name.
            Err(error) if host_in_path.is_some() || providers.is_some_and(|url| url.host() == base.host()) => {
                let check = Check::fail(SERVICES, format!("{leads}: {error}: all modules of {host} fail"));
                Some(self.downgrade_if_proxied(url, check.advise(correction())))
            }
            Err(error) => {
                let advice = "write the URL that the registry's own discovery document names";
                Some(Check::warn(SERVICES, format!("{leads}: {error}")).advise(advice))
            }
        }
    }

    /// Reports a wrong path in a URL that leads to larder.
    fn check_host_in_path(&self, url: &Url, host: &Hostname) -> Option<Check> {
        let (id, finding) = match host_of_base(url, "providers") {
            Some(host_in_path) if host_in_path == *host => return None,
            Some(host_in_path) => (
                OTHER_HOST,
                format!(
                    "providers.v1 leads to larder's copy of {host_in_path}: the same version has other bytes there"
                ),
            ),
            // Under the registry's own name, larder serves it at the registry's own paths.
            None if url.host_str() == Some(host.name()) => return None,
            None => (PATH, format!("{url} leads to larder, but not to a registry")),
        };
        Some(Check::fail(id, finding).advise(self.providers_correction(host, url)))
    }
}

/// A URL of modules as the client uses it: it adds a missing final slash.
fn with_slash(url: &Url) -> Url {
    let mut base = url.clone();
    base.set_path(&format!("{}/", url.path().trim_end_matches('/')));
    base
}

/// URL of a service as the client resolves it: relative to the registry, http or https, without userinfo. The query is
/// dropped, as the client does; it may hold a secret.
pub(super) fn url_of(services: &Services, name: &str, host: &Hostname) -> Option<Url> {
    let text = match services.get(name)? {
        ServiceValue::Url(text) => text,
        ServiceValue::Other => return None,
    };
    let mut url = Url::parse(&format!("https://{host}/.well-known/terraform.json")).ok()?.join(text).ok()?;
    let is_usable = matches!(url.scheme(), "http" | "https") && url.username().is_empty() && url.password().is_none();
    url.set_query(None);
    url.set_fragment(None);
    is_usable.then_some(url)
}

const INSTALLATION: &str = "client.installation";

const DIRECT_ALSO_USED: &str = "direct lets the client ask the registry too: it merges the versions of both, and fails without \
     the registry";

/// The sources that one registry's providers are installed from.
pub(super) struct ProviderSources {
    /// The registry itself, or the services in its `host` block.
    direct: Coverage,
    /// A network mirror that is larder.
    larder: Coverage,
    /// The names of other sources.
    other_sources: Vec<String>,
    /// The failed checks of network mirrors.
    faults: Vec<Check>,
}

impl ProviderSources {
    /// True where every provider is requested from the services in the `host` block or from larder's mirror.
    pub(super) fn covers_all_providers(&self) -> bool {
        self.direct == Coverage::All || self.larder == Coverage::All
    }
}

impl ClientChecks<'_> {
    /// Tries every installation method that applies to providers of `host`.
    pub(super) async fn provider_sources(&self, client_files: &ClientFiles, host: &Hostname) -> ProviderSources {
        let (direct, larder) = (Coverage::None, Coverage::None);
        let mut sources = ProviderSources { direct, larder, other_sources: Vec::new(), faults: Vec::new() };
        let Some(methods) = &client_files.config.installation else {
            return ProviderSources { direct: Coverage::All, ..sources };
        };
        for method in methods {
            let coverage = method.coverage(host, default_host(client_files, host));
            if coverage == Coverage::None {
                continue;
            }
            match &method.source {
                InstallationSource::Direct => sources.direct = sources.direct.max(coverage),
                InstallationSource::Other(method) => sources.other_sources.push(method.clone()),
                InstallationSource::NetworkMirror { url } => match self.try_mirror(url, host).await {
                    UrlProbe::Larder => sources.larder = sources.larder.max(coverage),
                    UrlProbe::OtherServer(_) => sources.other_sources.push("another network_mirror".to_owned()),
                    UrlProbe::Unusable(fault) => sources.faults.push(fault),
                },
            }
        }
        sources
    }

    /// Checks the methods. No finding where everything is installed directly.
    pub(super) fn check_installation(&self, host: &Hostname, has_block: bool, sources: &ProviderSources) -> Vec<Check> {
        let all_pattern = format!("\"{}/*/*\"", host.to_unicode());
        let check =
            if has_block { sources.check_with_block(&all_pattern) } else { sources.check_without_block(&all_pattern) };
        sources.faults.iter().cloned().chain(check).collect()
    }
}

impl ProviderSources {
    /// Checks the methods where a `host` block redirects direct requests.
    fn check_with_block(&self, all_pattern: &str) -> Option<Check> {
        match self.larder.max(self.direct) {
            Coverage::None => {
                let only = if self.other_sources.is_empty() { "" } else { " only" };
                let sources = self.other_source_names();
                let finding =
                    format!("providers are installed from {sources}{only}: the host block is not used for them");
                let advice = format!(
                    "add the line direct {{ include = [{all_pattern}] }} to provider_installation, or remove that block"
                );
                Some(Check::fail(INSTALLATION, finding).advise(advice))
            }
            Coverage::Some => Some(partial_coverage_check(all_pattern)),
            Coverage::All => self.check_other_sources(all_pattern),
        }
    }

    /// Checks the methods without a `host` block, where direct requests go to the registry itself.
    fn check_without_block(&self, all_pattern: &str) -> Option<Check> {
        match (self.larder, self.direct) {
            (Coverage::All, Coverage::Some | Coverage::All) | (Coverage::Some, Coverage::All) => {
                let advice = format!("write exclude = [{all_pattern}] in direct");
                Some(Check::fail(INSTALLATION, DIRECT_ALSO_USED).advise(advice))
            }
            (Coverage::Some, Coverage::None | Coverage::Some) => Some(partial_coverage_check(all_pattern)),
            (Coverage::All, Coverage::None) => Some(self.check_other_sources(all_pattern).unwrap_or_else(|| {
                let finding =
                    "providers come from larder through the network mirror; modules come from the registry directly";
                Check::passed(OVERRIDE, finding)
            })),
            (Coverage::None, Coverage::None) if self.faults.is_empty() => {
                let finding = format!("providers are installed from {}, not from larder", self.other_source_names());
                let advice = "to install them from larder, see `larder client-config --mirror`";
                Some(Check::warn(OVERRIDE, finding).advise(advice))
            }
            (Coverage::None, _) => None,
        }
    }

    /// Warns about sources besides larder.
    fn check_other_sources(&self, all_pattern: &str) -> Option<Check> {
        let sources = self.other_source_names();
        let finding =
            format!("providers are installed from {sources} as well: those found there do not come from larder");
        let check =
            Check::warn(INSTALLATION, finding).advise(format!("write exclude = [{all_pattern}] there, or ignore this"));
        (!self.other_sources.is_empty()).then_some(check)
    }

    fn other_source_names(&self) -> String {
        if self.other_sources.is_empty() { "nowhere".to_owned() } else { self.other_sources.join(" and ") }
    }
}

/// The check for a registry of which larder provides only a part.
fn partial_coverage_check(all_pattern: &str) -> Check {
    Check::warn(INSTALLATION, "only some of its providers come from larder: provider_installation excludes the others")
        .advise(format!("write {all_pattern} to install all of them from larder"))
}

const ADDRESS: &str = "client.address";
const PATH: &str = "client.path";
const OTHER_HOST: &str = "client.host";
const SLASH: &str = "client.slash";
const SCHEME: &str = "client.scheme";
const CERTIFICATE: &str = "client.certificate";

const START: &str = "start it: larder serve, or systemctl start larder";

/// Result of trying a client's URL.
enum UrlProbe {
    /// A larder serves the expected service there.
    Larder,
    /// Another server answers there.
    OtherServer(Check),
    /// The client could not use the URL.
    Unusable(Check),
}

impl ClientChecks<'_> {
    /// Requests a base URL as the client would. `correction` proposes a correct value.
    async fn try_base(
        &self,
        url: &Url,
        (setting, service): (&str, ProbedService),
        correction: &str,
        host: &Hostname,
    ) -> UrlProbe {
        let shown = url.origin().ascii_serialization();
        let is_own_listener = is_own_listener(url, self.config);
        if matches!(self.running.state, LarderState::Down | LarderState::RunsAlone) && is_own_listener {
            let check = Check::warn(OVERRIDE, format!("{setting} leads to this larder, which does not run"));
            return UrlProbe::Unusable(check.advise(START));
        }
        if self.is_off_limits(url) {
            let finding = format!("{setting} leads to {shown}, which is not checked: larder is offline");
            let check = Check::warn(OVERRIDE, finding);
            return UrlProbe::Unusable(check.advise("if that is this larder, set [server] public_url to it"));
        }
        let advice = match self.running.state {
            LarderState::NeverSetUp if is_own_listener => START.to_owned(),
            LarderState::NeverSetUp => {
                format!("check that a larder runs at {shown}, and that this machine reaches it; or {correction}")
            }
            LarderState::Up | LarderState::Down | LarderState::RunsAlone => correction.to_owned(),
        };
        let kind = match identify_server(url, service, host, self.client_roots, None).await {
            Ok(Identified { kind, .. }) => kind,
            Err(error) => {
                let check = failed_probe(&error, setting, url, advice);
                return UrlProbe::Unusable(self.downgrade_if_proxied(url, check));
            }
        };
        UrlProbe::Unusable(match kind {
            // A check of its own tries the client's token.
            ServerKind::Larder | ServerKind::LarderNeedsToken(_) => return UrlProbe::Larder,
            ServerKind::LarderWithoutService => {
                let finding = format!("{setting} {shown}{} leads to larder, but not to a registry", url.path());
                Check::fail(PATH, finding).advise(correction)
            }
            ServerKind::LarderWithoutHost(missing) => {
                let finding = format!("{setting} leads to larder at {shown}, which does not mirror {missing}");
                let or_add = format!("or add {missing} to that larder as an [[upstream]]");
                Check::fail(OTHER_HOST, finding).advise(correction).advise(or_add)
            }
            ServerKind::LarderRefusing(message) => {
                let finding = format!("{setting} leads to larder at {shown}, which refuses this machine: {message}");
                Check::fail(ADDRESS, finding).advise("add the address of this machine to [server] clients")
            }
            ServerKind::OtherServer(status) => {
                let finding =
                    format!("{setting} leads to {shown}, where something else answers ({status}), not larder");
                let check = Check::fail(ADDRESS, finding).advise(advice);
                return UrlProbe::OtherServer(self.downgrade_if_proxied(url, check));
            }
        })
    }

    /// True for a URL that the doctor of an offline larder must not request.
    pub(super) fn is_off_limits(&self, url: &Url) -> bool {
        self.running.is_offline && !is_own_listener(url, self.config)
    }

    /// The client would use a proxy and the doctor did not, so the finding is only a warning.
    fn downgrade_if_proxied(&self, url: &Url, check: Check) -> Check {
        match proxied_by(url, self.environment) {
            Some(variable) => check.at_most_warn(&format!("; the proxy of {variable} may lead elsewhere")),
            None => check,
        }
    }

    /// Tries the URL of a network mirror, which must be https and end in a slash.
    async fn try_mirror(&self, text: &str, host: &Hostname) -> UrlProbe {
        let unusable =
            |id, finding: String, advice: String| UrlProbe::Unusable(Check::fail(id, finding).advise(advice));
        let correction = |base: &str| format!("write url = \"{base}{MIRROR_BASE}\" in network_mirror");
        let Ok(mut url) = Url::parse(text) else {
            return unusable(
                ADDRESS,
                "the url of its network_mirror is not a URL".to_owned(),
                correction(&self.base()),
            );
        };
        let correction = correction(&self.base_for(&url));
        // The URL may contain a user name and password.
        let shown = format!("{}{}", url.origin().ascii_serialization(), url.path());
        if url.scheme() != "https" {
            let finding = format!(
                "network_mirror {shown} is not https: the client accepts only https, prints an error and continues without it"
            );
            let advice = "give larder a certificate ([server] tls), or use host blocks, which may be http";
            return unusable(SCHEME, finding, advice.to_owned());
        }
        if !url.path().ends_with('/') {
            let finding = format!("network_mirror {shown} has no final slash: the client drops its last path segment");
            return unusable(SLASH, finding, correction);
        }
        url.set_query(None);
        let probe = self.try_base(&url, ("network_mirror", ProbedService::Mirror), &correction, host).await;
        match probe {
            UrlProbe::Unusable(check) if check.id == PATH => {
                unusable(PATH, format!("network_mirror {shown} leads to larder, but not to its mirror"), correction)
            }
            probe => probe,
        }
    }

    /// Checks whether the registry's own host name resolves to a larder from here.
    pub(super) async fn host_name_leads_to_larder(&self, host: &Hostname) -> bool {
        let Ok(url) = Url::parse(&format!("https://{host}/v1/providers/")) else { return false };
        let identified = identify_server(&url, ProbedService::Providers, host, self.client_roots, None).await;
        identified
            .is_ok_and(|identified| matches!(identified.kind, ServerKind::Larder | ServerKind::LarderNeedsToken(_)))
    }

    /// Proposes a correct `providers.v1`.
    fn providers_correction(&self, host: &Hostname, wrong_url: &Url) -> String {
        format!("write \"providers.v1\" = \"{}{}\"", self.base_for(wrong_url), providers_base(host))
    }

    /// Base URL of larder for this client, without a final slash: the larder of this machine, else the one that `url`
    /// points to.
    fn base_for(&self, url: &Url) -> String {
        if self.running.state != LarderState::NeverSetUp {
            return self.base();
        }
        let path = url.path();
        let base_end = ["/registry/", MIRROR_BASE].iter().filter_map(|known| path.find(known)).min();
        let base_path = base_end.and_then(|end| path.get(..end)).unwrap_or_default();
        format!("{}{base_path}", url.origin().ascii_serialization())
    }
}

/// Registry in the path of a larder base URL: `…/registry/HOST/v1/providers/` or `…/registry/HOST/v1/modules/`.
fn host_of_base(url: &Url, service: &str) -> Option<Hostname> {
    let mut segments = url.path_segments()?.rev();
    let is_base = ["", service, "v1"].into_iter().all(|part| segments.next() == Some(part));
    let host_in_path = percent_encoding::percent_decode_str(segments.next()?).decode_utf8().ok()?;
    if !is_base || segments.next() != Some("registry") {
        return None;
    }
    Hostname::parse(&host_in_path).ok()
}

/// The check of a URL that could not be requested.
fn failed_probe(error: &ProbeError, subject: &str, url: &Url, advice: String) -> Check {
    let shown = url.origin().ascii_serialization();
    let finding = format!("{subject} leads to {shown}: {error}");
    let (id, advice) = match error {
        ProbeError::Certificate(bad) => (CERTIFICATE, certificate_advice(bad).to_owned()),
        ProbeError::NoTls(_) => (SCHEME, format!("the server may speak plain http there; {advice}")),
        ProbeError::NoHttp(_) => (SCHEME, format!("the server may speak https there; {advice}")),
        ProbeError::HostNotFound { .. } | ProbeError::Unreachable(_) | ProbeError::Slow(_) | ProbeError::NoUrl => {
            (ADDRESS, advice)
        }
    };
    Check::fail(id, finding).advise(advice)
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
