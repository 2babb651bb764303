//! `larder missing`: lists what was requested while offline and is not stored.

use clap::Args;

use super::larder::{StoreNeed, parse, with_larder};
use super::text::{TextPage, plural, width_of_stdout};
use super::{CommonOptions, block_on, print_json, print_line};
use crate::address::{Hostname, PackageRef};
use crate::protocol::admin::MISSING;
use crate::protocol::admin::order::{AddressFor, AddressRequest, OrderRequest};

#[derive(Debug, Args)]
pub(super) struct MissingCommand {
    #[command(flatten)]
    pub(super) common: CommonOptions,
    /// Clear the list instead of printing it
    #[arg(long)]
    forget: bool,
}

impl MissingCommand {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let (config, _) = self.common.load()?;
        let answer = block_on(with_larder(&config, StoreNeed::Existing, async |larder| {
            Ok(if self.forget { larder.delete(MISSING).await? } else { larder.get(MISSING).await? })
        }))?;
        let order: OrderRequest = parse(&answer)?;
        match (self.common.json, self.forget) {
            (true, _) => print_json(&order),
            (false, true) => print_line("cleared: requests from now on are recorded again"),
            (false, false) => print_line(&page(&order, &config.default_host(), width_of_stdout())),
        }
        Ok(())
    }
}

/// Renders each provider and module once, with its versions and their platforms, for a terminal of this width.
fn page(order: &OrderRequest, host: &Hostname, width: Option<usize>) -> String {
    let mut page = TextPage::of_width(width);
    if order.what.is_empty() {
        page.group("missing", "nothing: everything requested while offline is stored");
        return page.text();
    }
    let number = plural(order.what.len() as u64, "item");
    page.group("missing", &format!("{number} requested while offline and not stored"));
    let mut last_address = "";
    for request in &order.what {
        let (selector, platforms) = match request {
            AddressRequest::Text(address) => (address, &[][..]),
            AddressRequest::For(AddressFor { address, platforms }) => (address, platforms.as_slice()),
        };
        let (address, version) =
            selector.split_once('@').map_or((selector.as_str(), None), |(address, version)| (address, Some(version)));
        if address != last_address {
            page.item(&PackageRef::requested(address).without(host).to_string(), None);
            last_address = address;
        }
        let platforms = if platforms.is_empty() { String::new() } else { format!("  {}", platforms.join(", ")) };
        page.push_with_prefix("    ", &format!("{}{platforms}", version.unwrap_or("any version")));
    }
    // A request for a version list names no platform.
    let lacks_platforms = |request: &AddressRequest| match request {
        AddressRequest::Text(address) => is_provider(address),
        AddressRequest::For(AddressFor { address, platforms }) => platforms.is_empty() && is_provider(address),
    };
    let (runners, platform) = match order.what.iter().any(lacks_platforms) {
        true => (", for the platforms of your runners", " --platform linux_amd64"),
        false => ("", ""),
    };
    page.group("to do", &format!("with upstream access, fetch these{runners}, and carry the bundle here:"));
    page.command("larder missing --json > missing.json");
    page.command(&format!("larder bundle create missing.tar --for missing.json{platform}"));
    page.text()
}

/// True for a provider address, which has three segments; a module address has four.
fn is_provider(address: &str) -> bool {
    address.split('@').next().unwrap_or_default().split('/').count() == 3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> Hostname {
        Hostname::parse("registry.terraform.io").unwrap()
    }

    fn order() -> OrderRequest {
        let request = |address: &str, platforms: &[&str]| {
            let platforms = platforms.iter().map(|name| (*name).to_owned()).collect();
            AddressRequest::For(AddressFor { address: address.to_owned(), platforms })
        };
        let addresses = vec![
            request("registry.terraform.io/a-namespace-that-is-long/a-provider-with-a-long-name", &[]),
            request(
                "registry.terraform.io/a-namespace-that-is-long/a-provider-with-a-long-name@12.34.56",
                &["darwin_amd64", "darwin_arm64", "linux_amd64", "linux_arm64", "windows_amd64"],
            ),
            request("registry.terraform.io/acme/vpc/aws@5.1.0", &[]),
        ];
        OrderRequest { what: addresses, ..OrderRequest::default() }
    }

    #[test]
    fn the_list_is_grouped_and_fits_80_and_160_columns() {
        let text = page(&order(), &host(), None);
        for expected in ["3 items", "    any version", "    12.34.56  darwin_amd64, ", "  acme/vpc/aws\n    5.1.0"] {
            assert!(text.contains(expected), "{expected} is not in:\n{text}");
        }
        assert_eq!(text.matches("a-provider-with-a-long-name").count(), 1, "{text}");
        for width in [80, 160] {
            let text = page(&order(), &host(), Some(width));
            assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
        }
        assert!(page(&OrderRequest::default(), &host(), Some(80)).contains("nothing"));
    }
}
