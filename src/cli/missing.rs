//! `larder missing`: lists what was requested while offline and is not stored.

use clap::Args;

use super::admin_service::{StoreNeed, config_to_ask, with_larder};
use super::terminal::{TextPage, format_timestamp, plural, width_of_stdout};
use super::{CommonOptions, block_on, print_json, print_line};
use crate::address::{Hostname, PackageRef};
use crate::mirror::MissingRequest;
use crate::protocol::admin::order::{AddressFor, AddressRequest, OrderRequest};
use crate::protocol::admin::{MISSING, STATUS, StatusReport};

#[derive(Debug, Args)]
pub(super) struct MissingCommand {
    /// Clear the list instead of printing it
    #[arg(long)]
    forget: bool,
}

impl MissingCommand {
    pub(super) fn run(self, common: &CommonOptions) -> anyhow::Result<()> {
        let config = config_to_ask(common)?;
        let (order, requests) = block_on(with_larder(&config, StoreNeed::Existing, async |larder| {
            let order = if self.forget { larder.delete(MISSING).await } else { larder.get(MISSING).await };
            let order: OrderRequest = order?;
            if common.json || self.forget {
                return Ok((order, Vec::new()));
            }
            // The order goes outside, so it names no clients.
            let status: StatusReport = larder.get(STATUS).await?;
            Ok((order, status.mirror.missing))
        }))?;
        match (common.json, self.forget) {
            (true, _) => print_json(&order),
            (false, true) => print_line("cleared: requests from now on are recorded again"),
            (false, false) => print_line(&missing_page(&order, &requests, &config.default_host(), width_of_stdout())),
        }
        Ok(())
    }
}

/// Renders each provider and module once, with its versions, their platforms and the requests for them, for a terminal of this
/// width.
fn missing_page(order: &OrderRequest, requests: &[MissingRequest], host: &Hostname, width: Option<usize>) -> String {
    let mut page = TextPage::of_width(width);
    if order.what.is_empty() {
        page.group("missing", "nothing: everything requested while offline is stored");
        return page.text();
    }
    let number = plural(order.what.len() as u64, "item");
    page.group("missing", &format!("{number} requested while offline and not stored"));
    let (mut last_address, mut lacks_platforms) = ("", false);
    for request in &order.what {
        let (selector, platforms) = match request {
            AddressRequest::Text(address) => (address, &[][..]),
            AddressRequest::For(AddressFor { address, platforms }) => (address, platforms.as_slice()),
        };
        let (address, version) =
            selector.split_once('@').map_or((selector.as_str(), None), |(address, version)| (address, Some(version)));
        // A request for a version list names no platform. A provider address has three segments, a module address four.
        lacks_platforms |= platforms.is_empty() && address.split('/').count() == 3;
        if address != last_address {
            page.item(&PackageRef::requested(address).without(host).to_string(), None);
            last_address = address;
        }
        let platforms = if platforms.is_empty() { String::new() } else { format!("  {}", platforms.join(", ")) };
        page.push_with_prefix("    ", &format!("{}{platforms}", version.unwrap_or("any version")));
        let is_for = |request: &&MissingRequest| {
            request.package.address == address && request.package.version.as_deref() == version
        };
        if let Some(text) = requests_text(requests.iter().filter(is_for)) {
            page.push_with_prefix("      ", &text);
        }
    }
    let (runners, platform) = match lacks_platforms {
        true => (", for the platforms of your runners", " --platform linux_amd64"),
        false => ("", ""),
    };
    page.group("to do", &format!("with upstream access, fetch these{runners}, and carry the bundle here:"));
    page.command("larder missing --json > missing.json");
    page.command(&format!("larder bundle create missing.tar --for missing.json{platform}"));
    page.command("larder bundle apply missing.tar");
    page.item(
        "`init` stops at the first packages that it lacks. A plan is an order, too, with all that a folder needs:",
        None,
    );
    page.command("larder plan FOLDER --json > plan.json");
    page.command(&format!("larder bundle create missing.tar --for plan.json{platform}"));
    page.text()
}

/// The count of requests, and the last of them: `3 requests, the last for 10.0.0.7 at 2026-11-28 09:12:04 UTC`.
fn requests_text<'a>(requests: impl Iterator<Item = &'a MissingRequest> + Clone) -> Option<String> {
    let times = requests.clone().fold(0, |sum: u64, request| sum.saturating_add(request.times));
    let MissingRequest { last, client, .. } = requests.max_by_key(|request| request.last)?;
    let client = client.as_deref().unwrap_or("a job");
    Some(format!("{}, the last for {client} at {}", plural(times, "request"), format_timestamp(*last)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Platform;
    use crate::clock::Timestamp;

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

    fn requests() -> Vec<MissingRequest> {
        let request = |package: PackageRef, times, last: u64, client: Option<&str>| MissingRequest {
            package,
            times,
            last: Timestamp(1_795_293_000 + last),
            client: client.map(str::to_owned),
        };
        let long = PackageRef::requested(
            "registry.terraform.io/a-namespace-that-is-long/a-provider-with-a-long-name@12.34.56",
        );
        let [linux, darwin] = ["linux_amd64", "darwin_arm64"].map(|name| Platform::parse(name).unwrap());
        vec![
            request(long.clone().on(Some(&linux)), 4, 2, Some("10.0.0.9")),
            request(long.on(Some(&darwin)), 3, 1, Some("10.0.0.7")),
            request(PackageRef::requested("registry.terraform.io/acme/vpc/aws@5.1.0"), 5, 1, None),
        ]
    }

    #[test]
    fn the_list_is_grouped_and_fits_80_and_160_columns() {
        let text = missing_page(&order(), &requests(), &host(), None);
        for expected in [
            "3 items",
            "    any version",
            "    12.34.56  darwin_amd64, ",
            "  acme/vpc/aws\n    5.1.0\n      5 requests, the last for a job at 2026-11-21 20:30:01 UTC\n",
            "      7 requests, the last for 10.0.0.9 at 2026-11-21 20:30:02 UTC\n",
        ] {
            assert!(text.contains(expected), "{expected} is not in:\n{text}");
        }
        assert_eq!(text.matches("a-provider-with-a-long-name").count(), 1, "{text}");
        for width in [80, 160] {
            let text = missing_page(&order(), &requests(), &host(), Some(width));
            assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
        }
        assert!(missing_page(&OrderRequest::default(), &[], &host(), Some(80)).contains("nothing"));
    }
}
