//! `[[upstream]]`: one mirrored registry, its defaults, and the reader of its table.

use std::net::SocketAddr;
use std::time::Duration;

use url::Url;

use crate::address::{Hostname, OPENTOFU_REGISTRY, Platform, TERRAFORM_REGISTRY};
pub use crate::verify::VerificationPolicy;

use super::credential::{self, CredentialKind};
use super::section::Section;
use super::values;

/// One mirrored registry.
#[derive(Debug, Clone)]
pub struct Upstream {
    /// Host name in addresses, and key of everything stored for it.
    pub host: Hostname,
    /// Base URL that `.well-known/terraform.json` is appended to: http or https, ending in a slash, without userinfo,
    /// query or fragment.
    pub url: Url,
    /// Addresses to connect to during a take-over; empty means DNS. With a port in `url`, each has the same port.
    pub addresses: Vec<SocketAddr>,
    /// Credential for this upstream.
    pub credential: Option<CredentialKind>,
    /// Further hosts in the credential scope.
    pub credentials_for: Vec<Hostname>,
    /// Verification that an archive must pass before it is stored.
    pub verification: VerificationPolicy,
    /// Freshness lifetimes of its documents.
    pub fresh: FreshnessLifetimes,
    /// Longest wait for a revalidation before the stale copy is served.
    pub patience: Duration,
    /// Keep listing and serving stored versions that upstream has deleted.
    pub keep_gone: bool,
    /// Compare module names without regard to case.
    pub fold_case: bool,
    /// Where the dates of versions come from.
    pub dates: Dates,
    /// The age of the versions of a first list without a date.
    pub first_list: FirstList,
    /// The platforms of the archives that larder fetches for their hashes; empty: larder adds no hashes to documents.
    pub complete_hashes: Vec<Platform>,
}

/// The source of the dates of versions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Dates {
    /// The registry, where larder knows that it tells them: registry.terraform.io.
    #[default]
    Auto,
    /// None: the times of larder's own lists count.
    None,
}

/// The age of the versions on the first list of a provider or module, where no date is told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FirstList {
    /// As old as any rule demands.
    #[default]
    Old,
    /// As old as the list.
    New,
}

impl Upstream {
    /// Builds an upstream at `https://HOST/` with the defaults of that host.
    pub fn new(host: Hostname) -> Result<Self, url::ParseError> {
        let url = Url::parse(&format!("https://{host}/"))?;
        Ok(Self::at(host, url))
    }

    /// Builds an upstream at `url` with the defaults of its host.
    pub fn at(host: Hostname, url: Url) -> Self {
        let name = host.to_string();
        let verification =
            if name == OPENTOFU_REGISTRY { VerificationPolicy::SignatureIfKeys } else { VerificationPolicy::Signature };
        Self {
            host,
            url,
            addresses: Vec::new(),
            credential: None,
            credentials_for: Vec::new(),
            verification,
            fresh: FreshnessLifetimes::default(),
            patience: Duration::from_secs(2),
            keep_gone: true,
            fold_case: name == TERRAFORM_REGISTRY || name == OPENTOFU_REGISTRY,
            dates: Dates::Auto,
            first_list: FirstList::Old,
            complete_hashes: Vec::new(),
        }
    }

    /// Returns true if the registry is asked for the dates of versions.
    pub fn tells_dates(&self) -> bool {
        self.dates == Dates::Auto && self.host.as_str() == TERRAFORM_REGISTRY
    }

    /// The two public registries, mirrored when no upstream is configured.
    pub fn public_registries() -> Vec<Self> {
        [TERRAFORM_REGISTRY, OPENTOFU_REGISTRY]
            .into_iter()
            .map(|name| {
                let host = Hostname::parse(name).expect("a public registry's name is a host name");
                Self::new(host).expect("a public registry's name makes a URL")
            })
            .collect()
    }
}

/// Freshness lifetime of each kind of document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreshnessLifetimes {
    /// Version lists.
    pub versions: Duration,
    /// Discovery documents.
    pub discovery: Duration,
    /// A download document and its proof set.
    pub download: Duration,
    /// Pages of the registry HTTP API.
    pub api: Duration,
    /// A 404; never longer than the lifetime of its kind of document.
    pub not_found: Duration,
}

impl Default for FreshnessLifetimes {
    fn default() -> Self {
        Self {
            versions: Duration::from_secs(5 * 60),
            discovery: Duration::from_secs(60 * 60),
            download: Duration::from_secs(24 * 60 * 60),
            api: Duration::from_secs(60),
            not_found: Duration::from_secs(30),
        }
    }
}

/// Reads one `[[upstream]]`. `None` for an invalid `host` or `url`; the problem is recorded.
pub(super) fn read(section: &mut Section<'_, '_, '_>) -> Option<Upstream> {
    section.require(&["host"]);
    let host = section.text("host", "registry.corp.example", values::hostname);
    let url = section.text("url", "https://registry.corp.example/base/", values::base_url);
    let addresses = section.list("addresses", r#"["192.0.2.7:443"]"#, values::socket);
    let credential = credential::read_http(section);
    let credentials_for = section.list("credentials_for", r#"["artifacts.corp.example"]"#, values::hostname);
    let verification = section.text("verification", "signature", values::policy);
    let fresh = section.optional_table("fresh", r#"{ versions = "5m" }"#, read_fresh);
    let patience = section.text("patience", "2s", values::patience);
    let keep_gone = section.flag("keep_gone");
    let fold_case = section.flag("fold_case");
    let dates = section.text("dates", "none", |text| match text {
        "auto" => Ok(Dates::Auto),
        "none" => Ok(Dates::None),
        other => Err(format!("{} is neither auto nor none", values::quoted(other))),
    });
    let first_list = section.text("first_list", "new", |text| match text {
        "old" => Ok(FirstList::Old),
        "new" => Ok(FirstList::New),
        other => Err(format!("{} is neither old nor new", values::quoted(other))),
    });
    let complete_hashes = section.list("complete_hashes", r#"["linux_amd64", "darwin_arm64"]"#, values::platform);
    let host = host?;
    let mut upstream = match (url, section.has("url")) {
        (Some(url), _) => Upstream::at(host, url),
        (None, true) => return None,
        (None, false) => match Upstream::new(host) {
            Ok(upstream) => upstream,
            Err(cause) => {
                section.problem("host", format!("does not form a URL ({cause}); write url = \"https://…/\""));
                return None;
            }
        },
    };
    upstream.addresses = addresses.unwrap_or_default();
    upstream.credential = credential;
    upstream.credentials_for = credentials_for.unwrap_or_default();
    upstream.verification = verification.unwrap_or(upstream.verification);
    upstream.fresh = fresh.unwrap_or_default();
    upstream.patience = patience.unwrap_or(upstream.patience);
    upstream.keep_gone = keep_gone.unwrap_or(upstream.keep_gone);
    upstream.fold_case = fold_case.unwrap_or(upstream.fold_case);
    upstream.dates = dates.unwrap_or_default();
    upstream.first_list = first_list.unwrap_or_default();
    upstream.complete_hashes = complete_hashes.unwrap_or_default();
    check_ports(section, &upstream);
    Some(upstream)
}

/// Reports addresses with another port than the URL. The HTTP client would ignore their port.
fn check_ports(section: &mut Section<'_, '_, '_>, upstream: &Upstream) {
    let Some(port) = upstream.url.port() else { return };
    for address in upstream.addresses.iter().filter(|address| address.port() != port) {
        section.problem(
            "addresses",
            format!("{address} has another port than the {port} of this upstream's URL; larder can connect to that port only"),
        );
    }
}

fn read_fresh(section: &mut Section<'_, '_, '_>) -> FreshnessLifetimes {
    let default = FreshnessLifetimes::default();
    let mut lifetime = |key, example, default| section.text(key, example, values::duration).unwrap_or(default);
    FreshnessLifetimes {
        versions: lifetime("versions", "5m", default.versions),
        discovery: lifetime("discovery", "1h", default.discovery),
        download: lifetime("download", "24h", default.download),
        api: lifetime("api", "1m", default.api),
        not_found: lifetime("not_found", "30s", default.not_found),
    }
}
