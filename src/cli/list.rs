//! `larder list`: what is stored, by address and version.

use std::collections::{BTreeMap, BTreeSet};

use bytesize::ByteSize;
use clap::Args;
use serde::Serialize;

use super::admin_service::{StoreNeed, config_to_ask, with_larder};
use super::terminal::{
    Column, TextPage, escape_for_terminal, format_age, plural, stdout_has_colour, styled, width_of_stdout,
};
use super::{CommonOptions, block_on, print_json, print_line};
use crate::address::{AddressFilter, Hostname, Version, WaitingVersion};
use crate::clock::{Clock, Timestamp};
use crate::mirror::{StoredPackage, StoredPage, VerifiedBy};
use crate::protocol::admin::list::list_path;

/// Hex digits of a digest or a key that tell it from others.
const SHORT_DIGITS: usize = 16;

#[derive(Debug, Args)]
pub(super) struct List {
    /// The beginning of an address: HOST, `[HOST/]NAMESPACE`, `[HOST/]NAMESPACE/NAME`, or a whole address with an optional
    /// @VERSION or @CONSTRAINT; everything by default
    #[arg(value_name = "ADDRESS")]
    address: Option<String>,
}

impl List {
    pub(super) fn run(self, common: &CommonOptions) -> anyhow::Result<()> {
        let config = config_to_ask(common)?;
        let host = config.default_host();
        if let Some(given) = &self.address {
            AddressFilter::parse(given, &host)?;
        }
        let mut printer = ListPrinter::new(host, common.json);
        block_on(with_larder(&config, StoreNeed::Existing, async |larder| {
            let mut after: Option<String> = None;
            loop {
                let path = list_path(self.address.as_deref(), after.as_deref());
                let page: StoredPage = larder.get_large_answer(&path).await?;
                printer.waiting.extend(page.waiting);
                page.packages.into_iter().for_each(|package| printer.add(package));
                match page.next {
                    Some(next) if after.as_ref() != Some(&next) => after = Some(next),
                    Some(_) | None => return Ok(()),
                }
            }
        }))?;
        printer.finish(self.address.as_deref());
        Ok(())
    }
}

/// The packages of all pages, as JSON.
#[derive(Serialize)]
struct PackageList<'a> {
    packages: &'a [StoredPackage],
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    waiting: &'a BTreeSet<WaitingVersion>,
}

/// Prints the packages of one address after the other as they come, or all as JSON at the end.
struct ListPrinter {
    host: Hostname,
    /// The packages of one address; for JSON, all.
    packages: Vec<StoredPackage>,
    /// The versions that wait for sealed platforms. Two pages may both have those of one address.
    waiting: BTreeSet<WaitingVersion>,
    json: bool,
    has_colour: bool,
    width: Option<usize>,
    now: Timestamp,
    totals: ListTotals,
}

/// Sums over the printed entries. Their text leaves out the addresses.
#[derive(Debug, Default, derive_more::Display)]
#[display("{}, {}, {}", plural(*versions, "version"), plural(*archives, "archive"), ByteSize(*bytes))]
struct ListTotals {
    addresses: u64,
    versions: u64,
    archives: u64,
    bytes: u64,
}

impl ListPrinter {
    fn new(host: Hostname, json: bool) -> Self {
        let (has_colour, width, now) = (stdout_has_colour(), width_of_stdout(), Clock::system().now());
        let (packages, waiting) = (Vec::new(), BTreeSet::new());
        Self { host, packages, waiting, json, has_colour, width, now, totals: ListTotals::default() }
    }

    fn add(&mut self, package: StoredPackage) {
        let is_next_address = |last: &StoredPackage| last.package.address != package.package.address;
        if !self.json && self.packages.last().is_some_and(is_next_address) {
            self.print_address();
        }
        self.packages.push(package);
    }

    fn print_address(&mut self) {
        let packages = std::mem::take(&mut self.packages);
        let versions = by_version(packages);
        let Some(first) = versions.first().and_then(|(_, packages)| packages.first()) else { return };
        let address = escape_for_terminal(&first.package.without(&self.host).address);
        if self.totals.addresses > 0 {
            print_line("");
        }
        let waiting: Vec<&WaitingVersion> =
            self.waiting.iter().filter(|waiting| waiting.provider.to_string() == first.package.address).collect();
        let text = address_page(&address, &versions, &waiting, self.now, self.width);
        print_line(&if self.has_colour { styled(&text, &address, anstyle::Style::new().bold()) } else { text });
        self.totals.addresses += 1;
        self.totals.add(&versions);
    }

    fn finish(mut self, given: Option<&str>) {
        if self.json {
            return print_json(&PackageList { packages: &self.packages, waiting: &self.waiting });
        }
        self.print_address();
        let addresses = self.totals.addresses;
        if addresses > 1 {
            print_line(&format!("\n{addresses} addresses, {}", self.totals));
        } else if addresses == 0 {
            let mut page = TextPage::of_width(self.width);
            page.push_with_prefix("", &nothing_text(given));
            print_line(&page.text());
        }
    }
}

fn nothing_text(given: Option<&str>) -> String {
    match given.map(escape_for_terminal) {
        None => "nothing is stored yet: what clients request is, and what `larder warm` fetches".to_owned(),
        Some(given) => {
            format!("nothing stored has an address that begins with {given}; `larder list` shows everything")
        }
    }
}

impl ListTotals {
    fn add(&mut self, versions: &[(Version, Vec<StoredPackage>)]) {
        let packages = versions.iter().flat_map(|(_, packages)| packages);
        self.versions += versions.len() as u64;
        self.archives += packages.clone().map(|package| package.archives.len() as u64).sum::<u64>();
        self.bytes += packages.map(StoredPackage::bytes).sum::<u64>();
    }
}

/// Groups the packages of one address by version, the newest first.
fn by_version(packages: Vec<StoredPackage>) -> Vec<(Version, Vec<StoredPackage>)> {
    let mut versions: BTreeMap<Version, Vec<StoredPackage>> = BTreeMap::new();
    for package in packages {
        let version = package.package.version.as_deref().and_then(|version| Version::parse_of_module(version).ok());
        // A stored package has a version that parses.
        let Some(version) = version else { continue };
        versions.entry(version).or_default().push(package);
    }
    versions.into_iter().rev().collect()
}

/// Renders the versions of one address: size, proof, last use, and the platforms.
fn address_page(
    address: &str,
    versions: &[(Version, Vec<StoredPackage>)],
    waiting: &[&WaitingVersion],
    now: Timestamp,
    width: Option<usize>,
) -> String {
    let mut totals = ListTotals::default();
    totals.add(versions);
    let summary = if totals.archives == 1 { String::new() } else { totals.to_string() };
    let mut page = TextPage::of_width(width);
    page.push_with_prefix(&format!("{address}  "), &summary);
    let waits = |version: &Version| waiting.iter().copied().find(|waiting| waiting.version == *version);
    let rows: Vec<_> = versions.iter().map(|(version, packages)| row(version, packages, waits(version), now)).collect();
    page.columns([Column::Left(""), Column::Right(""), Column::Left(""), Column::Left("")], &rows);
    page.text()
}

fn row(
    version: &Version,
    packages: &[StoredPackage],
    waiting: Option<&WaitingVersion>,
    now: Timestamp,
) -> ([String; 4], String) {
    let archives = || packages.iter().flat_map(|package| &package.archives);
    let proofs: BTreeSet<String> = packages
        .iter()
        .filter_map(|package| package.archives.first())
        .map(|archive| proof_text(&archive.verified))
        .collect();
    let used = archives().map(|archive| archive.last_use).max().unwrap_or(now);
    let cells = [
        version.to_string(),
        ByteSize(packages.iter().map(StoredPackage::bytes).sum()).to_string(),
        proofs.into_iter().collect::<Vec<_>>().join(", "),
        format!("used {}", format_age(now.since(used))),
    ];
    (cells, remarks(packages, waiting).join("; "))
}

/// The platforms of a version, its pins, and the archives of earlier publications.
fn remarks(packages: &[StoredPackage], waiting: Option<&WaitingVersion>) -> Vec<String> {
    let platforms = |packages: &mut dyn Iterator<Item = &StoredPackage>| {
        packages.filter_map(|package| package.package.platform.as_deref()).collect::<Vec<_>>().join(", ")
    };
    let stored = waiting.map_or_else(|| platforms(&mut packages.iter()), ToString::to_string);
    let mut remarks = vec![stored];
    let pinned = packages.iter().filter(|package| package.pinned).count();
    if pinned == packages.len() {
        remarks.push("pinned".to_owned());
    } else if pinned > 0 {
        remarks.push(format!("pinned for {}", platforms(&mut packages.iter().filter(|package| package.pinned))));
    }
    let earlier: usize = packages.iter().map(|package| package.archives.len().saturating_sub(1)).sum();
    if earlier > 0 {
        remarks.push(format!("{} of an earlier publication", plural(earlier as u64, "archive")));
    }
    let warned = packages.iter().flat_map(|package| &package.archives).flat_map(|archive| &archive.warnings);
    remarks.extend(warned.collect::<BTreeSet<_>>().into_iter().map(|warning| escape_for_terminal(warning)));
    remarks.retain(|remark| !remark.is_empty());
    remarks
}

/// The proof of an archive in a few words.
pub(super) fn proof_text(verified: &VerifiedBy) -> String {
    // The end of a fingerprint is the key id, and the beginning of a digest its short form.
    let end = |hex: &str| hex.get(hex.len().saturating_sub(SHORT_DIGITS)..).unwrap_or(hex).to_owned();
    let beginning = |hex: String| hex.chars().take(SHORT_DIGITS).collect::<String>();
    match verified {
        VerifiedBy::Signature { key } => format!("signed by {}", escape_for_terminal(&end(key))),
        VerifiedBy::NoKeys => "checksums, no key listed".to_owned(),
        VerifiedBy::Checksum => "checksums only".to_owned(),
        VerifiedBy::Imported => "IMPORTED, unsigned".to_owned(),
        VerifiedBy::Tree { commit: Some(commit), .. } => {
            format!("commit {}", escape_for_terminal(&beginning(commit.clone())))
        }
        VerifiedBy::Tree { tree, commit: None } => format!("tree {}", beginning(tree.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::terminal::is_plain;
    use super::*;
    use crate::address::{PackageRef, Platform};
    use crate::digest::Digest;
    use crate::mirror::PackageArchive;

    const NOW: Timestamp = Timestamp(1_795_300_000);

    fn package(version: &str, platform: &str, pinned: bool) -> StoredPackage {
        let package = PackageRef::requested(&format!("registry.terraform.io/hashicorp/aws@{version}"));
        let archive = PackageArchive {
            sha256: Digest::of(b"zip"),
            filename: "x.zip".to_owned(),
            bytes: 100 << 20,
            verified: VerifiedBy::Signature { key: "C874011F0AB405110D02105534365D9472D7468F".to_owned() },
            warnings: vec!["the key is old \u{1b}[2J".to_owned()],
            origin: "https://releases.hashicorp.com".to_owned(),
            stored: Timestamp(1_795_000_000),
            last_use: Timestamp(1_795_290_000),
            last_verified: Timestamp(1_795_000_000),
        };
        let platform = Platform::parse(platform).unwrap();
        StoredPackage { package: package.on(Some(&platform)), pinned, archives: vec![archive.clone(), archive] }
    }

    #[test]
    fn versions_are_grouped_and_fit_80_and_160_columns() {
        let packages = || {
            vec![
                package("5.9.0", "linux_amd64", false),
                package("5.10.0", "darwin_arm64", false),
                package("5.10.0", "linux_amd64", true),
            ]
        };
        let versions = by_version(packages());
        assert_eq!(versions.iter().map(|(version, _)| version.as_str()).collect::<Vec<_>>(), ["5.10.0", "5.9.0"]);
        for width in [80, 160] {
            let text = address_page("hashicorp/aws", &versions, &[], NOW, Some(width));
            assert!(text.lines().all(|line| line.chars().count() <= width && line == line.trim_end()), "{text}");
            assert!(text.chars().all(|c| c == '\n' || is_plain(c)), "{text}");
        }
        let text = address_page("hashicorp/aws", &versions, &[], NOW, None);
        for expected in [
            "hashicorp/aws  2 versions, 6 archives, 600.0 MiB\n",
            "  5.10.0  400.0 MiB  signed by 34365D9472D7468F  used 2 h ago  darwin_arm64, linux_amd64; pinned for \
             linux_amd64; 2 archives of an earlier publication; the key is old \\u{1b}[2J\n",
        ] {
            assert!(text.contains(expected), "{expected} is not in:\n{text}");
        }
    }
}
