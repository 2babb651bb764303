//! Checks a `provider_installation` block: are providers still installed from larder (PROTOCOL, section 3)?

use super::connection_attempts::UrlProbe;
use super::files::ClientFiles;
use super::{Check, ClientChecks, OVERRIDE, default_host};
use crate::address::Hostname;
use crate::requirements::cli_config::{Coverage, InstallationSource};

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
