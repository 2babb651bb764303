//! Checks whether the services of a `host` block lead to this larder (PROTOCOL, sections 1.1 and
//! 1.2).

use http::StatusCode;
use url::Url;

use super::connection_attempts::{OTHER_HOST, PATH, SLASH, UrlProbe, host_of_base};
use super::installation::ProviderSources;
use super::{Check, ClientChecks, OVERRIDE};
use crate::address::Hostname;
use crate::doctor::PROBE_TIMEOUT;
use crate::doctor::identify_server::{Identified, ProbedService, ServerKind, identify_server};
use crate::doctor::listener::is_own_listener;
use crate::http::probe_client::probe;
use crate::protocol::route::{Route, modules_base};
use crate::requirements::cli_config::{self, Services};
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
