//! Checks a `provider_installation` block: are providers still installed from larder (PROTOCOL 3)?

use super::connection_attempts::UrlProbe;
use super::files::ClientFiles;
use super::{Check, ClientChecks, OVERRIDE, default_host};
use crate::address::Hostname;
use crate::requirements::cli_config::InstallationSource;
use crate::requirements::cli_config::installation_matching::Coverage;

const INSTALLATION: &str = "client.installation";

const DIRECT_ALSO_USED: &str = "direct lets the client ask the registry too: it merges the versions of both, and fails without \
     the registry";

/// The sources that one registry's providers are installed from.
pub(super) struct ProviderSources {
    /// The registry itself, or the services in its `host` block.
    direct: Coverage,
    /// A network mirror that is larder.
    larder: Coverage,
    /// Other methods, by name.
    elsewhere: Vec<String>,
    /// Faults of the network mirrors.
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
    pub(super) async fn provider_sources(&self, reading: &ClientFiles, host: &Hostname) -> ProviderSources {
        let mut sources = ProviderSources {
            direct: Coverage::None,
            larder: Coverage::None,
            elsewhere: Vec::new(),
            faults: Vec::new(),
        };
        let Some(methods) = &reading.config.installation else {
            return ProviderSources { direct: Coverage::All, ..sources };
        };
        for method in methods {
            let reach = method.coverage(host, default_host(reading, host));
            if reach == Coverage::None {
                continue;
            }
            match &method.source {
                InstallationSource::Direct => sources.direct = sources.direct.max(reach),
                InstallationSource::Other(kind) => sources.elsewhere.push(kind.clone()),
                InstallationSource::NetworkMirror { url } => match self.try_mirror(url, host).await {
                    UrlProbe::Larder => sources.larder = sources.larder.max(reach),
                    UrlProbe::OtherServer(_) => sources.elsewhere.push("another network_mirror".to_owned()),
                    UrlProbe::Unusable(fault) => sources.faults.push(fault),
                },
            }
        }
        sources
    }

    /// Checks the methods. No finding where everything is installed directly.
    pub(super) fn installation(&self, host: &Hostname, has_block: bool, sources: &ProviderSources) -> Vec<Check> {
        let all = format!("\"{}/*/*\"", host.to_unicode());
        let check = if has_block { sources.check_with_block(&all) } else { sources.check_without_block(&all) };
        sources.faults.iter().cloned().chain(check).collect()
    }
}

impl ProviderSources {
    /// Checks the methods where a `host` block redirects direct requests.
    fn check_with_block(&self, all: &str) -> Option<Check> {
        match self.larder.max(self.direct) {
            Coverage::None => {
                let from = if self.elsewhere.is_empty() { "nowhere".to_owned() } else { self.elsewhere() + " only" };
                let found = format!("providers are installed from {from}: the host block is not used for them");
                let advice = format!(
                    "add the line direct {{ include = [{all}] }} to provider_installation, or remove that block"
                );
                Some(Check::fail(INSTALLATION, found).advise(advice))
            }
            Coverage::Some => Some(some_only(all)),
            Coverage::All => self.also_elsewhere(all),
        }
    }

    /// Checks the methods without a `host` block, where direct requests go to the registry itself.
    fn check_without_block(&self, all: &str) -> Option<Check> {
        match (self.larder, self.direct) {
            (Coverage::All, Coverage::Some | Coverage::All) | (Coverage::Some, Coverage::All) => {
                Some(Check::fail(INSTALLATION, DIRECT_ALSO_USED).advise(format!("write exclude = [{all}] in direct")))
            }
            (Coverage::Some, Coverage::None | Coverage::Some) => Some(some_only(all)),
            (Coverage::All, Coverage::None) => Some(self.also_elsewhere(all).unwrap_or_else(|| {
                let found =
                    "providers come from larder through the network mirror; modules come from the registry directly";
                Check::ok(OVERRIDE, found)
            })),
            (Coverage::None, Coverage::None) if self.faults.is_empty() => {
                let from = if self.elsewhere.is_empty() { "nowhere".to_owned() } else { self.elsewhere() };
                let check = Check::warn(OVERRIDE, format!("providers are installed from {from}, not from larder"));
                Some(check.advise("to install them from larder, see `larder client-config --mirror`"))
            }
            (Coverage::None, _) => None,
        }
    }

    fn also_elsewhere(&self, all: &str) -> Option<Check> {
        let from = self.elsewhere();
        let found = format!("providers are installed from {from} as well: those found there do not come from larder");
        let check = Check::warn(INSTALLATION, found).advise(format!("write exclude = [{all}] there, or ignore this"));
        (!from.is_empty()).then_some(check)
    }

    fn elsewhere(&self) -> String {
        self.elsewhere.join(" and ")
    }
}

fn some_only(all: &str) -> Check {
    Check::warn(INSTALLATION, "only some of its providers come from larder: provider_installation excludes the others")
        .advise(format!("write {all} to install all of them from larder"))
}
