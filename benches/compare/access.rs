//! The cost of tokens, rules and the audit trail: a larder with them beside one without, in turns. Ratios of processor time.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use reqwest::header::AUTHORIZATION;

use crate::Bench;
use crate::catalog;
use crate::clients::{self, CountedUnit, RequestLoad};
use crate::compared_server::{Addresses, ClientProtocol, ComparedServer, Processes, Resource, ServerName};
use crate::interrupt;
use crate::larder::{self, Home, Larder, Log};
use crate::measure::{Sample, median, median_interval, rounds};
use crate::report::{ResultTable, Target};
use crate::servers;
use crate::support::larder::HOST;

const TOKEN: &str = "a-token-of-the-benchmark";
const CONNECTIONS: usize = 64;
/// The lists that are rendered in a round, and the versions of each.
const LISTS: usize = 40;
const LISTED_VERSIONS: usize = 1000;
/// The time that a started larder has before its processor time counts.
const SETTLE_TIME: Duration = Duration::from_millis(500);

/// The settings that one larder has and the other has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guard {
    Nothing,
    TokensAndRules,
    TokensRulesAndAges,
    TokensRulesAndAudit,
}

impl Guard {
    fn config(self, audit: &str) -> String {
        let digest = larder_digest(TOKEN);
        let client = format!("[[client]]\nname = \"bench\"\ntoken = {{ sha256 = \"{digest}\" }}\n");
        // Nine rules about the address that take one version each, and the one that decides about the others.
        let denials: String = (1..10)
            .map(|patch| {
                format!(
                    "[[policy]]\nmatch = \"acme/*\"\nversions = \"= 0.7.{patch}\"\naction = \"deny\"\nreason = \"no\"\n"
                )
            })
            .collect();
        let age = if self == Self::TokensRulesAndAges { "minimum_age = \"1s\"\n" } else { "" };
        let rules = format!("{client}{denials}[[policy]]\nmatch = \"acme/*\"\nversions = \">= 0.0.1\"\n{age}");
        match self {
            Self::Nothing => String::new(),
            Self::TokensAndRules | Self::TokensRulesAndAges => rules,
            Self::TokensRulesAndAudit => format!("{rules}[audit]\npath = {audit:?}\n"),
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::TokensAndRules => "tokens and ten rules",
            Self::TokensRulesAndAges => "tokens and ten rules, one with an age",
            Self::TokensRulesAndAudit => "tokens, ten rules and an audit trail",
        }
    }

    fn home(self, bench: &Bench) -> anyhow::Result<Home> {
        let home = Home::new(bench, None, Log::Off)?;
        let audit = home.file("audit.jsonl", "")?;
        home.added(&self.config(&audit.display().to_string()))
    }
}

fn larder_digest(token: &str) -> String {
    crate::support::upstream::sha256_hex(token.as_bytes())
}

/// Measures the selected rows.
pub(crate) fn table(bench: &Bench) -> anyhow::Result<Option<ResultTable>> {
    let title = "With tokens and rules / without, in turns: processor time of one answer, median of the rounds with its 90 % interval";
    let mut table = ResultTable::new(title, &["", "ratio", "of rounds"]);
    for guard in [Guard::TokensAndRules, Guard::TokensRulesAndAges, Guard::TokensRulesAndAudit] {
        for (resource, name) in [
            (Resource::VersionList, "cached version list, 2 KB gzip"),
            (Resource::DownloadDocument, "cached download document"),
        ] {
            let name = format!("{name}: {}", guard.text());
            if bench.wants(&name) {
                bench.progress(&name);
                // Every line is written: that is work of its own, which no target is about.
                let most = (guard != Guard::TokensRulesAndAudit).then_some(1.1);
                add_row(&mut table, &name, bench.or_report(&name, cached(bench, guard, resource))?, most);
            }
        }
        let name = format!("list of {LISTED_VERSIONS} versions, rendered: {}", guard.text());
        if guard != Guard::TokensRulesAndAudit && bench.wants(&name) {
            bench.progress(&name);
            add_row(&mut table, &name, bench.or_report(&name, rendered(bench, guard))?, Some(1.5));
        }
    }
    Ok(Some(table).filter(|table| !table.is_empty()))
}

fn add_row(table: &mut ResultTable, name: &str, samples: Option<Vec<Vec<Sample>>>, most: Option<f64>) {
    let Some([open, guarded]) = samples.as_deref() else { return };
    let ratios: Vec<f64> = open.iter().zip(guarded).map(|(open, guarded)| guarded.cost() / open.cost()).collect();
    let (low, high) = median_interval(&ratios);
    let ratio = median(ratios);
    let target = most.map(|most| Target { met: ratio <= most, text: format!("at most {most}") });
    table.add_row(name, vec![format!("{ratio:.3}"), format!("{low:.3} to {high:.3}")], target.into_iter().collect());
}

/// Samples both larders for a document in memory.
fn cached(bench: &Bench, guard: Guard, resource: Resource) -> anyhow::Result<Vec<Vec<Sample>>> {
    servers::publish(bench, &HashSet::from([resource]))?;
    let larders = [Guard::Nothing, guard].map(|guard| guard.home(bench)?.start());
    let [open, guarded] = larders;
    let larders = [open?, guarded?];
    let servers = larders.each_ref().map(|larder| server(larder, resource));
    for server in &servers {
        bench.block_on(fetch(bench, server.addresses.plain, server.path(resource)?))?;
    }
    rounds(&servers, bench.options.rounds(), |server| {
        let load = RequestLoad::new(server, ClientProtocol::Http1, server.path(resource)?, &bench.certificate)?;
        let load = load.gzip(resource == Resource::VersionList).token(TOKEN);
        clients::sample(server, load, CONNECTIONS, Duration::from_secs(bench.options.seconds), CountedUnit::Answers)
    })
}

fn server(larder: &Larder, resource: Resource) -> ComparedServer {
    let path = larder::larder_path(&servers::document_path_of(resource));
    ComparedServer {
        name: ServerName::Larder,
        addresses: Addresses { plain: larder.address, tls: larder.address },
        paths: HashMap::from([(resource, path)]),
        processes: Processes::both(larder.processes()),
    }
}

/// Samples both larders for lists that are stored and not in memory: each round starts them anew, and requests each list once.
fn rendered(bench: &Bench, guard: Guard) -> anyhow::Result<Vec<Vec<Sample>>> {
    let names: Vec<String> = (0..LISTS).map(|number| format!("long{number}")).collect();
    for name in &names {
        bench.upstream.publish(catalog::list_path(name), catalog::list_of(LISTED_VERSIONS)?);
    }
    let mut homes = Vec::new();
    for guard in [Guard::Nothing, guard] {
        let larder = guard.home(bench)?.start()?;
        for name in &names {
            bench.block_on(fetch(bench, larder.address, &larder::larder_path(&catalog::list_path(name))))?;
        }
        homes.push(RefCell::new(Some(larder.stop()?)));
    }
    rounds(&homes, bench.options.rounds(), |home| {
        let larder = home.borrow_mut().take().context("the larder of the round before has not stopped")?.start()?;
        interrupt::pause(SETTLE_TIME)?;
        let server = server(&larder, Resource::VersionList);
        let (began, before) = (Instant::now(), server.processor_seconds(ClientProtocol::Http1));
        for name in &names {
            bench.block_on(fetch(bench, larder.address, &larder::larder_path(&catalog::list_path(name))))?;
        }
        let processor_seconds = server.processor_seconds(ClientProtocol::Http1) - before;
        let sample = Sample { amount: LISTS as f64, seconds: began.elapsed().as_secs_f64(), processor_seconds };
        *home.borrow_mut() = Some(larder.stop()?);
        Ok(sample)
    })
}

/// Requests a document with the token, which a larder without tokens ignores.
async fn fetch(bench: &Bench, address: std::net::SocketAddr, path: &str) -> anyhow::Result<()> {
    let request = bench.client.get(format!("http://{address}{path}")).header(AUTHORIZATION, format!("Bearer {TOKEN}"));
    request.send().await?.error_for_status().with_context(|| format!("{HOST}: {path}"))?.bytes().await?;
    Ok(())
}
