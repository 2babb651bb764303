//! Keys of all records, and the only place that maps them to paths.

use std::path::{Path, PathBuf};

use derive_more::Display;

use crate::address::{
    Address, Artifact, Hostname, ModuleAddress, ModuleName, ModulePackage, Name, Package, Platform, ProviderAddress,
    System, Version,
};
use crate::digest::Digest;

/// The key of one record. A registry's records include its host, so two registries never mix.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Display)]
pub enum Key {
    /// A document that upstream answered with.
    Document(DocumentKey),
    /// A download document with its SHA256SUMS and signature, and its predecessor.
    #[display("the proof set of {_0}")]
    ProofSet(Package),
    /// The name record of an artifact: the archives stored for it.
    #[display("the name of {_0}")]
    Name(Artifact),
    /// The first-seen record of a whole provider, as older larders wrote it. It is split by version.
    #[display("the first-seen record of {_0}")]
    FirstSeenV0(ProviderAddress),
    /// The first-seen record of a provider version.
    #[display("the first-seen record of {_0} {_1}")]
    FirstSeen(ProviderAddress, Version),
    /// The signing keys ever seen for a provider.
    #[display("the keys known for {_0}")]
    SigningKeyLog(ProviderAddress),
    /// The first listing of each version of a provider or module.
    #[display("when the versions of {_0} were first listed")]
    FirstListed(Address),
    /// The alarms of a provider or a module.
    #[display("the alarms of {_0}")]
    Alarms(Address),
    /// The approvals of versions of a provider or a module.
    #[display("the approvals of {_0}")]
    Approvals(Address),
    /// The first-seen record of a module version.
    #[display("the first-seen record of {_0}")]
    ModuleFirstSeen(ModulePackage),
    /// The order and the result of a job, by its id.
    #[display("the job {}", hex::encode(_0))]
    Job([u8; 8]),
    /// The times of the last run of each recurring job.
    #[display("when each recurring warm-up ran last")]
    RecurringJobs,
    /// Packages that were requested while offline and are not stored, of every registry.
    #[display("the missing list")]
    Missing,
    /// The traffic of one hour, of every registry.
    #[display("the traffic from {}:00 UTC", _0.0)]
    Traffic(HourOfDay),
    /// The receipts of an archive that is on this machine, and not yet where all replicas keep archives.
    #[display("the receipts of {_0}")]
    Owed(Digest),
    /// The use of the store by services and runs.
    #[display("the record of larder's use")]
    Usage,
    /// The latest time that larder has seen.
    #[display("the latest time")]
    LatestTime,
}

/// The place of an hour on the clock, from 0 to 23 (UTC): a day has as many records, and a later day replaces them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HourOfDay(u8);

impl HourOfDay {
    /// All places, in order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..24).map(Self)
    }

    /// The place of an hour since 1970.
    pub fn of(hour: u64) -> Self {
        Self((hour % 24) as u8)
    }
}

/// The key of a document, by its kind. A new kind needs its path in both directions (`path`, `from_path`), its address,
/// its name in messages (`display`), and a decision in `is_document_of` and `counts_disk_blocks`. Other files make keys of
/// the kinds that they ask for; bundles carry discovery documents, version lists and locations only.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Display)]
pub enum DocumentKey {
    /// An upstream's discovery document.
    #[display("the discovery document of {_0}")]
    Discovery(Hostname),
    /// The version list of a provider or a module.
    #[display("the version list of {_0}")]
    Versions(Address),
    /// The dates at which the versions of a provider or module were published.
    #[display("the dates of the versions of {_0}")]
    Dates(Address),
    /// The location of a module version.
    #[display("the location of {_0}")]
    Location(ModulePackage),
    /// The keys of an issuer of tokens, by its host and the digest of its name.
    #[display("the keys of an issuer at {_0}")]
    IssuerKeys(Hostname, Digest),
    /// A page of the registry HTTP API, by the digest of its identity within the host.
    #[display("a page of {_0} ({_1})")]
    Page(Hostname, Digest),
}

/// The records that are read, judged and changed together.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Display)]
pub enum RecordGroup {
    /// All of one provider.
    #[display("the records of {_0}")]
    Provider(ProviderAddress),
    /// All of one module, under every spelling of its name.
    #[display("the records of {_0}")]
    Module(ModuleAddress),
    /// The discovery document of a registry, and the pages of its HTTP API.
    #[display("the pages of {_0}")]
    Registry(Hostname),
    /// A record that belongs to none of these.
    Alone(Key),
}

/// A group by reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GroupRef<'a> {
    /// All of one provider.
    Provider(&'a ProviderAddress),
    /// All of one module, by its name in lower case.
    Module(&'a ModuleAddress),
    /// The discovery document of a registry, and the pages of its HTTP API.
    Registry(&'a Hostname),
    /// A record that belongs to none of these.
    Alone(&'a Key),
}

impl From<&Address> for RecordGroup {
    fn from(address: &Address) -> Self {
        match address {
            Address::Provider(provider) => Self::Provider(provider.clone()),
            Address::Module(module) => Self::Module(module.folded()),
        }
    }
}

/// The path as a text that sorts as the path does, component by component.
pub fn sort_text(path: &Path) -> String {
    path.to_string_lossy().replace('/', "\u{1}")
}

/// The kinds of groups in their names.
const PROVIDER: &str = "provider";
const MODULE: &str = "module";
const REGISTRY: &str = "registry";
const ALONE: &str = "record";

impl RecordGroup {
    /// The name of the group, for a store that several larders share: `provider HOST/NAMESPACE/TYPE`. No other group has it.
    pub fn name(&self) -> String {
        match self {
            Self::Provider(provider) => format!("{PROVIDER} {provider}"),
            Self::Module(module) => format!("{MODULE} {module}"),
            Self::Registry(host) => format!("{REGISTRY} {host}"),
            Self::Alone(key) => format!("{ALONE} {}", key.path().display()),
        }
    }

    /// The group of a name; `None` for a name of a newer larder.
    pub fn of_name(name: &str) -> Option<Self> {
        let (kind, rest) = name.split_once(' ')?;
        let parts: Vec<&str> = rest.split('/').collect();
        let group = match (kind, parts.as_slice()) {
            (PROVIDER, [host, names @ ..]) => Self::of_address_in(host, "providers", names)?,
            (MODULE, [host, names @ ..]) => Self::of_address_in(host, "modules", names)?,
            (REGISTRY, [host]) => Self::Registry(Hostname::parse(host).ok()?),
            (ALONE, _) => Self::Alone(Key::from_path(Path::new(rest))?),
            _ => return None,
        };
        (group.name() == name).then_some(group)
    }

    /// The group that has all records below a folder; `None` where several may have some.
    pub fn of_folder(folder: &Path) -> Option<Self> {
        let parts: Vec<&str> = folder.iter().map(|part| part.to_str()).collect::<Option<_>>()?;
        match parts.as_slice() {
            [_, host, service @ ("providers" | "modules"), names @ ..] => {
                let of_address = if *service == "providers" { 2 } else { 3 };
                Self::of_address_in(host, service, names.get(..of_address)?)
            }
            ["documents", host, "pages", ..] => Some(Self::Registry(Hostname::parse(host).ok()?)),
            _ => None,
        }
    }

    /// The group of an address, by the names of its folder.
    fn of_address_in(host: &str, service: &str, names: &[&str]) -> Option<Self> {
        // With a name after them, the last one is that of a folder.
        let (address, _) = address_of(host, service, &[names, &[""]].concat())?;
        Some(Self::from(&address))
    }

    /// True for a record that replicas do not share: what this machine did, and what it was asked to do. What was missing, and when a
    /// recurring warm-up ran, concerns all of them.
    pub fn is_of_machine(&self) -> bool {
        matches!(self, Self::Alone(key) if !matches!(key, Key::Missing | Key::RecurringJobs))
    }

    /// True for a folder whose records are all of this machine.
    pub fn is_folder_of_machine(folder: &Path) -> bool {
        ["jobs", "traffic", OWED].iter().any(|own| folder.starts_with(own))
    }

    /// The group by reference.
    pub fn as_ref(&self) -> GroupRef<'_> {
        match self {
            Self::Provider(provider) => GroupRef::Provider(provider),
            Self::Module(module) => GroupRef::Module(module),
            Self::Registry(host) => GroupRef::Registry(host),
            Self::Alone(key) => GroupRef::Alone(key),
        }
    }
}

impl GroupRef<'_> {
    /// The group by value.
    pub fn to_owned(self) -> RecordGroup {
        match self {
            Self::Provider(provider) => RecordGroup::Provider(provider.clone()),
            Self::Module(module) => RecordGroup::Module(module.clone()),
            Self::Registry(host) => RecordGroup::Registry(host.clone()),
            Self::Alone(key) => RecordGroup::Alone(key.clone()),
        }
    }
}

/// The file of [`Key::SigningKeyLog`]; not a valid version.
const KEYS: &str = "keys.json";
/// The file of [`Key::FirstListed`]; not a valid version.
const LISTED: &str = "listed.json";
/// The file of [`DocumentKey::Dates`].
const DATES: &str = "dates";
/// The folder of [`DocumentKey::IssuerKeys`].
const ISSUERS: &str = "issuers";
/// The folder of names.
pub(super) const NAMES: &str = "names";
/// The folder of [`Key::Approvals`].
pub(super) const APPROVALS: &str = "approvals";
/// The folder of receipts.
pub(super) const OWED: &str = "owed";
/// The file of [`Key::RecurringJobs`]; not a valid job id.
const RECURRING: &str = "recurring.json";
/// The file of [`Key::Missing`].
const MISSING: &str = "missing.json";
/// The file of [`Key::Usage`].
const USAGE: &str = "usage.json";
/// The file of [`Key::LatestTime`].
const LATEST_TIME: &str = "latest-time.json";

impl Key {
    /// An upstream's discovery document.
    pub fn discovery(host: &Hostname) -> Self {
        Self::Document(DocumentKey::Discovery(host.clone()))
    }

    /// The version list of a provider or a module.
    pub fn version_list(address: impl Into<Address>) -> Self {
        Self::Document(DocumentKey::Versions(address.into()))
    }

    /// The location of a module version.
    pub fn location(package: &ModulePackage) -> Self {
        Self::Document(DocumentKey::Location(package.clone()))
    }

    /// The address that the record belongs to.
    pub fn address(&self) -> Option<Address> {
        Some(match self {
            Self::Document(DocumentKey::Versions(address) | DocumentKey::Dates(address))
            | Self::FirstListed(address)
            | Self::Alarms(address)
            | Self::Approvals(address) => address.clone(),
            Self::FirstSeenV0(provider)
            | Self::FirstSeen(provider, _)
            | Self::SigningKeyLog(provider)
            | Self::ProofSet(Package { provider, .. })
            | Self::Name(Artifact::Provider(Package { provider, .. })) => provider.into(),
            Self::Document(DocumentKey::Location(package))
            | Self::ModuleFirstSeen(package)
            | Self::Name(Artifact::Module(package)) => (&package.module).into(),
            Self::Document(DocumentKey::Discovery(_) | DocumentKey::IssuerKeys(..) | DocumentKey::Page(..))
            | Self::Job(_)
            | Self::RecurringJobs
            | Self::Missing
            | Self::Traffic(_)
            | Self::Owed(_)
            | Self::Usage
            | Self::LatestTime => return None,
        })
    }

    /// The group that the record belongs to.
    pub fn group(&self) -> RecordGroup {
        match (self.address(), self) {
            (Some(address), _) => (&address).into(),
            (None, Self::Document(DocumentKey::Discovery(host) | DocumentKey::Page(host, _))) => {
                RecordGroup::Registry(host.clone())
            }
            (None, _) => RecordGroup::Alone(self.clone()),
        }
    }

    /// Returns true for the version list of an address, for its dates, and for the proof sets and locations of its versions that
    /// `includes` accepts.
    pub fn is_document_of(&self, address: &Address, includes: impl Fn(&Version) -> bool) -> bool {
        match (self, address) {
            (Self::Document(DocumentKey::Versions(of) | DocumentKey::Dates(of)), _) => of == address,
            (Self::Document(DocumentKey::Location(package)), Address::Module(module)) => {
                package.module == *module && includes(&package.version)
            }
            (Self::ProofSet(package), Address::Provider(provider)) => {
                package.provider == *provider && includes(&package.version)
            }
            _ => false,
        }
    }

    /// Returns true for a document of an address that is about none of its versions.
    pub(super) fn is_about_whole_address(&self) -> bool {
        matches!(self, Self::Document(document) if !matches!(document, DocumentKey::Location(_)))
            && self.address().is_some()
    }

    /// Returns true for the first-seen record of a version, or of a whole provider as older larders wrote it.
    pub(super) fn is_first_seen(&self) -> bool {
        matches!(self, Self::FirstSeen(..) | Self::ModuleFirstSeen(_) | Self::FirstSeenV0(_))
    }

    /// Returns true for a record of what must never be forgotten: what was seen first, the keys of providers, the times of
    /// lists.
    pub fn is_history(&self) -> bool {
        self.is_first_seen() || matches!(self, Self::SigningKeyLog(_) | Self::FirstListed(_))
    }

    /// Returns true for a record that the index counts: a document, a proof set, the times of a version list, or a
    /// first-seen record.
    pub fn is_counted(&self) -> bool {
        matches!(self, Self::Document(_) | Self::ProofSet(_) | Self::FirstListed(_)) || self.is_first_seen()
    }

    /// Returns true for a page of the registry HTTP API: pages are evicted before other documents.
    pub fn is_page(&self) -> bool {
        self.host_of_page().is_some()
    }

    /// The registry of a page of its HTTP API; `None` for another record.
    pub fn host_of_page(&self) -> Option<&Hostname> {
        if let Self::Document(DocumentKey::Page(host, _)) = self { Some(host) } else { None }
    }

    /// Returns true if the index counts whole disk blocks for the document. Otherwise many small ones would exceed the
    /// limit.
    pub(super) fn counts_disk_blocks(&self) -> bool {
        use DocumentKey::{Dates, Location, Page, Versions};
        matches!(
            self,
            Self::FirstListed(_) | Self::Document(Page(..) | Location(_) | Dates(_) | Versions(Address::Module(_)))
        )
    }

    /// The folder of an address below `kind`.
    pub(super) fn folder(kind: &str, address: impl Into<Address>) -> PathBuf {
        let address = address.into();
        let service = if matches!(address, Address::Provider(_)) { "providers" } else { "modules" };
        [kind, address.host().as_str(), service, &address.path()].iter().collect()
    }

    /// The folder of the history of an address.
    pub fn history_of(address: &Address) -> PathBuf {
        Self::folder("seen", address.clone())
    }

    /// The path of a record of a module version below `kind`.
    fn of_module(kind: &str, package: &ModulePackage, extension: &str) -> PathBuf {
        Self::folder(kind, &package.module).join(format!("{}.{extension}", package.version))
    }

    /// Path of the record, below the store's root.
    pub fn path(&self) -> PathBuf {
        match self {
            Self::Document(document) => document.path(),
            Self::ProofSet(package) => {
                Self::sets_of(&package.provider, &package.version).join(format!("{}.set", package.platform))
            }
            Self::Name(Artifact::Provider(Package { provider, version, platform })) => {
                Self::folder(NAMES, provider).join(version.as_str()).join(format!("{platform}.json"))
            }
            Self::Name(Artifact::Module(package)) => Self::of_module(NAMES, package, "json"),
            Self::ModuleFirstSeen(package) => Self::of_module("seen", package, "json"),
            Self::FirstSeenV0(provider) => Self::folder("seen", provider).with_added_extension("json"),
            Self::FirstSeen(provider, version) => Self::folder("seen", provider).join(format!("{version}.json")),
            Self::SigningKeyLog(provider) => Self::folder("seen", provider).join(KEYS),
            Self::FirstListed(address) => Self::folder("seen", address.clone()).join(LISTED),
            Self::Alarms(address) => Self::folder("alarms", address).with_added_extension("json"),
            Self::Approvals(address) => Self::folder(APPROVALS, address).with_added_extension("json"),
            Self::Job(id) => Path::new("jobs").join(format!("{}.json", hex::encode(id))),
            Self::RecurringJobs => Path::new("jobs").join(RECURRING),
            Self::Missing => PathBuf::from(MISSING),
            Self::Usage => PathBuf::from(USAGE),
            Self::LatestTime => PathBuf::from(LATEST_TIME),
            Self::Traffic(HourOfDay(hour)) => Path::new("traffic").join(format!("{hour:02}.json")),
            Self::Owed(digest) => Path::new(OWED).join(format!("{digest}.json")),
        }
    }

    /// Returns true if a damaged record stays in place until it is replaced. If it were quarantined, the provider or module
    /// would count as never seen, its versions as old, and the store as one that no service had; an approval that was taken back
    /// would come again with a bundle.
    pub(super) fn matters_when_damaged(&self) -> bool {
        self.is_first_seen()
            || matches!(self, Self::SigningKeyLog(_) | Self::FirstListed(_) | Self::Approvals(_) | Self::Usage)
    }

    /// The folder of a registry's pages.
    pub(super) fn pages_of(host: &Hostname) -> PathBuf {
        Path::new("documents").join(host.as_str()).join("pages")
    }

    /// The folder of first-seen records of a registry's modules.
    pub(super) fn first_seen_of_modules(host: &Hostname) -> PathBuf {
        Path::new("seen").join(host.as_str()).join("modules")
    }

    /// The folder whose entries are the proof sets of one version.
    pub(super) fn sets_of(address: &ProviderAddress, version: &Version) -> PathBuf {
        Self::folder("documents", address).join(version.as_str())
    }

    /// The key of the record at `path`, below the store's root.
    pub fn from_path(path: &Path) -> Option<Self> {
        let parts: Vec<&str> = path.iter().map(|part| part.to_str()).collect::<Option<_>>()?;
        let version = |text: &str| Version::parse(text).ok();
        let json = |file: &str| file.strip_suffix(".json").map(str::to_owned);
        let key = match parts.as_slice() {
            ["documents", host, "discovery"] => Self::discovery(&Hostname::parse(host).ok()?),
            ["documents", host, ISSUERS, issuer] => {
                Self::Document(DocumentKey::IssuerKeys(Hostname::parse(host).ok()?, Digest::parse(issuer).ok()?))
            }
            ["documents", host, "pages", _, page] => {
                Self::Document(DocumentKey::Page(Hostname::parse(host).ok()?, Digest::parse(page).ok()?))
            }
            [kind, host, service, names @ ..] if names.len() > 1 => match (*kind, address_of(host, service, names)?) {
                ("documents", (address, ["versions"])) => Self::version_list(address),
                ("documents", (address, [DATES])) => Self::Document(DocumentKey::Dates(address)),
                ("seen", (address, [LISTED])) => Self::FirstListed(address),
                ("alarms", (address, [])) => Self::Alarms(address),
                (APPROVALS, (address, [])) => Self::Approvals(address),
                ("documents", (Address::Provider(provider), [number, file])) => {
                    let platform = Platform::parse(file.strip_suffix(".set")?).ok()?;
                    Self::ProofSet(Package { provider, version: version(number)?, platform })
                }
                (NAMES, (Address::Provider(provider), [number, file])) => {
                    let platform = Platform::parse(&json(file)?).ok()?;
                    Self::Name(Artifact::Provider(Package { provider, version: version(number)?, platform }))
                }
                ("seen", (Address::Provider(provider), [])) => Self::FirstSeenV0(provider),
                ("seen", (Address::Provider(provider), [KEYS])) => Self::SigningKeyLog(provider),
                ("seen", (Address::Provider(provider), [file])) => Self::FirstSeen(provider, version(&json(file)?)?),
                (kind, (Address::Module(module), [file])) => {
                    let (number, extension) = file.rsplit_once('.')?;
                    let package = ModulePackage { module, version: Version::parse_of_module(number).ok()? };
                    match (kind, extension) {
                        ("documents", "location") => Self::location(&package),
                        (NAMES, "json") => Self::Name(Artifact::Module(package)),
                        ("seen", "json") => Self::ModuleFirstSeen(package),
                        _ => return None,
                    }
                }
                _ => return None,
            },
            ["jobs", RECURRING] => Self::RecurringJobs,
            ["jobs", file] => {
                let mut id = [0; 8];
                hex::decode_to_slice(json(file)?, &mut id).ok()?;
                Self::Job(id)
            }
            [MISSING] => Self::Missing,
            [USAGE] => Self::Usage,
            [LATEST_TIME] => Self::LatestTime,
            [OWED, file] => Self::Owed(Digest::parse(&json(file)?).ok()?),
            ["traffic", file] => Self::Traffic(HourOfDay(json(file)?.parse().ok().filter(|hour| *hour < 24)?)),
            _ => return None,
        };
        // Another spelling of a path is not the path of the key.
        (key.path() == path).then_some(key)
    }
}

impl DocumentKey {
    fn path(&self) -> PathBuf {
        match self {
            Self::Discovery(host) => Path::new("documents").join(host.as_str()).join("discovery"),
            Self::Versions(address) => Key::folder("documents", address).join("versions"),
            Self::Dates(address) => Key::folder("documents", address).join(DATES),
            Self::IssuerKeys(host, issuer) => {
                [Path::new("documents"), Path::new(host.as_str()), Path::new(ISSUERS), Path::new(&issuer.to_string())]
                    .iter()
                    .collect()
            }
            Self::Location(package) => Key::of_module("documents", package, "location"),
            Self::Page(host, page) => {
                let page = page.to_string();
                let mut path = Key::pages_of(host);
                path.extend([page.get(..2).unwrap_or_default(), &page]);
                path
            }
        }
    }
}

/// The address that names of folders begin with, and the names after it.
fn address_of<'a>(host: &str, service: &str, names: &'a [&'a str]) -> Option<(Address, &'a [&'a str])> {
    let host = Hostname::parse(host).ok()?;
    // A record of the whole address has the address's last name as its file.
    let last = |name: &'a str, rest: &[&str]| if rest.is_empty() { name.strip_suffix(".json") } else { Some(name) };
    Some(match (service, names) {
        ("providers", [namespace, type_, rest @ ..]) => {
            let [namespace, type_] = [namespace, last(type_, rest)?].map(Name::parse);
            (Address::Provider(ProviderAddress { host, namespace: namespace.ok()?, type_: type_.ok()? }), rest)
        }
        ("modules", [namespace, name, system, rest @ ..]) => {
            let [namespace, name] = [namespace, name].map(|name| ModuleName::parse(name));
            let system = System::parse(last(system, rest)?).ok()?;
            (Address::Module(ModuleAddress { host, namespace: namespace.ok()?, name: name.ok()?, system }), rest)
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_round_trips_through_its_path() {
        let provider = ProviderAddress {
            host: Hostname::parse("registry.example:8443").unwrap(),
            namespace: Name::parse("acme").unwrap(),
            type_: Name::parse("null").unwrap(),
        };
        let package = Package {
            provider: provider.clone(),
            version: Version::parse("1.0.0-rc.1+b").unwrap(),
            platform: Platform::parse("linux_amd64").unwrap(),
        };
        let module = ModuleAddress {
            host: provider.host.clone(),
            namespace: ModuleName::parse("Acme").unwrap(),
            name: ModuleName::parse("vpc_x").unwrap(),
            system: System::parse("aws").unwrap(),
        };
        let of_module = ModulePackage { module: module.clone(), version: package.version.clone() };
        let provider_host = provider.host.clone();
        for key in [
            Key::discovery(&provider.host),
            Key::version_list(&provider),
            Key::ProofSet(package.clone()),
            Key::Name(Artifact::Provider(package)),
            Key::FirstSeen(provider.clone(), of_module.version.clone()),
            Key::SigningKeyLog(provider.clone()),
            Key::FirstListed(Address::Provider(provider.clone())),
            Key::FirstListed(Address::Module(module.clone())),
            Key::Document(DocumentKey::Dates(Address::Provider(provider.clone()))),
            Key::Document(DocumentKey::Dates(Address::Module(module.clone()))),
            Key::Alarms(Address::Provider(provider.clone())),
            Key::Alarms(Address::Module(module.clone())),
            Key::Approvals(Address::Provider(provider.clone())),
            Key::Approvals(Address::Module(module.clone())),
            Key::FirstSeenV0(provider),
            Key::version_list(&module),
            Key::Document(DocumentKey::IssuerKeys(provider_host.clone(), Digest::of(b"an issuer"))),
            Key::Document(DocumentKey::Page(provider_host, Digest::of(b"a page"))),
            Key::location(&of_module),
            Key::Name(Artifact::Module(of_module.clone())),
            Key::ModuleFirstSeen(of_module),
            Key::Job([0, 1, 2, 3, 4, 5, 6, 255]),
            Key::RecurringJobs,
            Key::Missing,
            Key::Usage,
            Key::LatestTime,
            Key::Owed(Digest::of(b"an archive")),
            Key::Traffic(HourOfDay::of(7)),
            Key::Traffic(HourOfDay::of(490_000 * 24 + 23)),
        ] {
            assert_eq!(Key::from_path(&key.path()), Some(key.clone()));
            assert!(key.path().is_relative());
            assert_eq!(RecordGroup::of_name(&key.group().name()), Some(key.group()));
            assert_eq!(key.group().as_ref().to_owned(), key.group());
            let group_of_folder = key.path().parent().and_then(RecordGroup::of_folder);
            assert!(group_of_folder.is_none_or(|group| group == key.group()), "{key}");
        }
        assert_eq!(Key::from_path(Path::new("documents/REGISTRY.example/discovery")), None);
        assert_eq!(Key::from_path(Path::new("documents/../discovery")), None);
        for other in [
            "jobs/00010203040506FF.json",
            "jobs/0001.json",
            "jobs/00010203040506ff",
            "jobs/x/recurring.json",
            "traffic/7.json",
            "traffic/24.json",
            "traffic/+7.json",
        ] {
            assert_eq!(Key::from_path(Path::new(other)), None, "{other}");
        }
    }
}
