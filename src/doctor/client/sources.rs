//! Checks where clients take the providers and modules of a registry from: the services in its `host` block (PROTOCOL,
//! section 1.1), and the methods of a `provider_installation` block (PROTOCOL, section 3).

use http::StatusCode;
use url::Url;

use super::connection_attempts::{OTHER_HOST, PATH, SLASH, UrlProbe, host_of_base};
use super::{Check, ClientChecks, ClientFiles, OVERRIDE, default_host};
use crate::address::Hostname;
use crate::doctor::PROBE_TIMEOUT;
use crate::doctor::listener::{Identified, ProbedService, ServerKind, identify_server, is_own_listener};
use crate::http::probe_client::probe;
use crate::protocol::route::{Route, modules_base};
use crate::requirements::cli_config::Coverage;
use crate::requirements::cli_config::{self, InstallationSource, Services};
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
            (named, None) | (None, named) => {
                self.offered_services(named.as_ref(), host).await.unwrap_or(OfferedServices::BOTH)
            }
        };
        let missing = match (providers.is_none() && offered.providers, modules.is_none() && offered.modules) {
            (false, false) => None,
            (false, true) => Some(("modules.v1", "modules")),
            (true, false) => Some(("providers.v1", "providers")),
            (true, true) => Some(("both", "everything")),
        };
        let named = match (&providers, &modules) {
            (Some(_), _) => "only providers.v1",
            (None, Some(_)) => "no providers.v1",
            (None, None) => "neither providers.v1 nor modules.v1",
        };
        if let Some((add, affected)) = missing {
            checks.push(
                Check::fail(
                    SERVICES,
                    format!("its host block names {named}: it replaces the whole list, so {affected} from {host} fail"),
                )
                .advise(format!("add {add} to its services, as `larder client-config` prints them")),
            );
        }
        if let Some(modules) = &modules {
            checks.extend(self.check_modules(modules, providers.as_ref(), host).await);
        }
        let Some(mut url) = providers else {
            if let Some(modules) = modules.filter(|_| checks.is_empty()) {
                checks.push(self.check_modules_alone(modules, host).await);
            }
            return checks;
        };
        if !url.path().ends_with('/') {
            let shown = url.to_string();
            checks.push(Check::fail(SLASH, NO_SLASH).advise(format!("write \"providers.v1\" = \"{shown}/\"")));
            url.set_path(&format!("{}/", url.path()));
        }
        let named = host_of_base(&url, "providers").unwrap_or_else(|| host.clone());
        let right = self.right_providers(host, &url);
        match self.try_base(&url, ("providers.v1", ProbedService::Providers), &right, &named).await {
            UrlProbe::Larder => match self.check_host_in_path(&url, host) {
                Some(fault) => checks.push(fault),
                None if checks.is_empty() && sources.covers_all_providers() => {
                    let modules = modules.filter(|modules| modules.origin() != url.origin());
                    let modules = modules
                        .map(|modules| format!("; modules come from {}", modules.origin().ascii_serialization()));
                    checks.push(Check::ok(
                        OVERRIDE,
                        format!("its host block leads to larder{}", modules.unwrap_or_default()),
                    ));
                }
                None => {}
            },
            UrlProbe::OtherServer(fault) | UrlProbe::Unusable(fault) => checks.push(fault),
        }
        checks
    }

    /// The services of a registry according to larder; `None` where larder cannot be asked or does not mirror it.
    async fn offered_services(&self, named: Option<&Url>, host: &Hostname) -> Option<OfferedServices> {
        let base = named.map_or_else(|| self.base(), |url| self.base_for(url));
        let url = Url::parse(&format!("{base}{}", Route::Discovery(host.clone()).path())).ok()?;
        if self.is_off_limits(&url) {
            return None;
        }
        let answer = probe(&url, self.client_roots, PROBE_TIMEOUT)
            .await
            .ok()
            .filter(|answer| answer.status == StatusCode::OK)?;
        let services: RawObject = serde_json::from_slice(&answer.body).ok()?;
        let has = |name: &str| services.get(name).is_some_and(|url| serde_json::from_str::<String>(url.get()).is_ok());
        Some(OfferedServices { providers: has("providers.v1"), modules: has("modules.v1") })
    }

    /// Checks a block with modules.v1 only, for a registry that offers nothing else.
    async fn check_modules_alone(&self, mut url: Url, host: &Hostname) -> Check {
        // The client adds a missing final slash.
        url.set_path(&format!("{}/", url.path().trim_end_matches('/')));
        let named = host_of_base(&url, "modules").unwrap_or_else(|| host.clone());
        let right = format!("write \"modules.v1\" = \"{}{}\"", self.base_for(&url), modules_base(host));
        match self.try_base(&url, ("modules.v1", ProbedService::Modules), &right, &named).await {
            UrlProbe::Larder => Check::ok(OVERRIDE, "its host block leads to larder; the registry offers modules only"),
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
        // The client adds a missing final slash.
        let mut base = url.clone();
        base.set_path(&format!("{}/", url.path().trim_end_matches('/')));
        let named = host_of_base(&base, "modules");
        let shown = url.origin().ascii_serialization();
        let expected_host = named.as_ref().unwrap_or(host);
        let base_for_modules = self.base_for(providers.unwrap_or(&base));
        let right = || format!("write \"modules.v1\" = \"{base_for_modules}{}\"", modules_base(host));
        match identify_server(&base, ProbedService::Modules, expected_host, self.client_roots).await {
            Ok(Identified { kind: ServerKind::LarderWithoutService | ServerKind::LarderWithoutHost(_), .. }) => {
                let found =
                    format!("modules.v1 leads to larder at {shown}, which serves no modules there: all of {host} fail");
                Some(Check::fail(SERVICES, found).advise(right()))
            }
            Ok(Identified { kind: ServerKind::Larder, .. }) => {
                let other = named.filter(|named| named != host)?;
                let found = format!("modules.v1 leads to larder's copy of {other}, which has other modules");
                Some(Check::fail(OTHER_HOST, found).advise(right()))
            }
            Ok(Identified { kind: ServerKind::OtherServer(status), .. }) if named.is_some() => {
                let found = format!("modules.v1 leads to {shown}, where something else answers ({status})");
                let to_do = if is_own_listener(url, self.config) { PORT_IS_TAKEN.to_owned() } else { right() };
                let check = Check::fail(SERVICES, format!("{found}: all modules of {host} fail")).advise(to_do);
                Some(self.downgrade_if_proxied(url, check))
            }
            Ok(Identified { kind: ServerKind::LarderRefusing(_) | ServerKind::OtherServer(_), .. }) => None,
            // The check of providers.v1 already reports this origin.
            Err(_) if providers.is_some_and(|providers| providers.origin() == url.origin()) => None,
            Err(_) if is_own_listener(url, self.config) => None,
            // Meant for larder, but with a wrong port or name.
            Err(error) if named.is_some() || providers.is_some_and(|url| url.host() == base.host()) => {
                let found = format!("modules.v1 leads to {shown}: {error}: all modules of {host} fail");
                Some(self.downgrade_if_proxied(url, Check::fail(SERVICES, found).advise(right())))
            }
            Err(error) => Some(
                Check::warn(SERVICES, format!("modules.v1 leads to {shown}: {error}"))
                    .advise("write the URL that the registry's own discovery document names"),
            ),
        }
    }

    /// Reports a wrong path in a URL that leads to larder.
    fn check_host_in_path(&self, url: &Url, host: &Hostname) -> Option<Check> {
        let to_do = self.right_providers(host, url);
        match host_of_base(url, "providers") {
            Some(named) if named == *host => None,
            Some(named) => Some(
                Check::fail(
                    OTHER_HOST,
                    format!("providers.v1 leads to larder's copy of {named}: the same version has other bytes there"),
                )
                .advise(to_do),
            ),
            // Under the registry's own name, larder serves it at the registry's own paths.
            None if url.host_str() == Some(host.name()) => None,
            None => Some(Check::fail(PATH, format!("{url} leads to larder, but not to a registry")).advise(to_do)),
        }
    }
}

/// URL of a service as the client resolves it: relative to the registry, http or https, without userinfo. The query is
/// dropped, as the client does; it may hold a secret.
fn url_of(services: &Services, name: &str, host: &Hostname) -> Option<Url> {
    let text = match services.get(name)? {
        cli_config::ServiceValue::Url(text) => text,
        cli_config::ServiceValue::Other => return None,
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
        let mut sources = ProviderSources {
            direct: Coverage::None,
            larder: Coverage::None,
            other_sources: Vec::new(),
            faults: Vec::new(),
        };
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
                let source_names = if self.other_sources.is_empty() {
                    "nowhere".to_owned()
                } else {
                    self.other_source_names() + " only"
                };
                let found = format!("providers are installed from {source_names}: the host block is not used for them");
                let advice = format!(
                    "add the line direct {{ include = [{all_pattern}] }} to provider_installation, or remove that block"
                );
                Some(Check::fail(INSTALLATION, found).advise(advice))
            }
            Coverage::Some => Some(partial_coverage_check(all_pattern)),
            Coverage::All => self.check_other_sources(all_pattern),
        }
    }

    /// Checks the methods without a `host` block, where direct requests go to the registry itself.
    fn check_without_block(&self, all_pattern: &str) -> Option<Check> {
        match (self.larder, self.direct) {
            (Coverage::All, Coverage::Some | Coverage::All) | (Coverage::Some, Coverage::All) => Some(
                Check::fail(INSTALLATION, DIRECT_ALSO_USED)
                    .advise(format!("write exclude = [{all_pattern}] in direct")),
            ),
            (Coverage::Some, Coverage::None | Coverage::Some) => Some(partial_coverage_check(all_pattern)),
            (Coverage::All, Coverage::None) => Some(self.check_other_sources(all_pattern).unwrap_or_else(|| {
                let found =
                    "providers come from larder through the network mirror; modules come from the registry directly";
                Check::ok(OVERRIDE, found)
            })),
            (Coverage::None, Coverage::None) if self.faults.is_empty() => {
                let source_names =
                    if self.other_sources.is_empty() { "nowhere".to_owned() } else { self.other_source_names() };
                let check =
                    Check::warn(OVERRIDE, format!("providers are installed from {source_names}, not from larder"));
                Some(check.advise("to install them from larder, see `larder client-config --mirror`"))
            }
            (Coverage::None, _) => None,
        }
    }

    /// Warns about sources besides larder.
    fn check_other_sources(&self, all_pattern: &str) -> Option<Check> {
        let source_names = self.other_source_names();
        let found =
            format!("providers are installed from {source_names} as well: those found there do not come from larder");
        let check =
            Check::warn(INSTALLATION, found).advise(format!("write exclude = [{all_pattern}] there, or ignore this"));
        (!source_names.is_empty()).then_some(check)
    }

    fn other_source_names(&self) -> String {
        self.other_sources.join(" and ")
    }
}

/// The check for a registry of which larder provides only a part.
fn partial_coverage_check(all_pattern: &str) -> Check {
    Check::warn(INSTALLATION, "only some of its providers come from larder: provider_installation excludes the others")
        .advise(format!("write {all_pattern} to install all of them from larder"))
}
