//! The table of the admin listener: each path with its methods, and one line about each. Requests are routed by it, and
//! `GET /admin/v1` lists it. `docs/openapi.json` describes the same paths: `tests/openapi.rs` makes it, and a test holds it to this table.

use serde_json::json;

use super::Operation;
use crate::jobs::JobId;
use crate::labels::labelled_enum;
use crate::policy::ApprovalDecision;
use crate::protocol::run::RunId;

/// Path of the index.
pub const INDEX: &str = "/admin/v1";
/// Path of the description of the admin API.
const OPENAPI: &str = "/admin/v1/openapi.json";
/// Path of the status.
pub const STATUS: &str = "/admin/v1/status";
/// Path of the list of what is stored.
pub const LIST: &str = "/admin/v1/list";
/// Path of explanations.
pub const EXPLAIN: &str = "/admin/v1/explain";
/// Path of the verdicts of the policies.
pub(super) const POLICY: &str = "/admin/v1/policy";
/// Path of the list of held versions.
pub(super) const HELD: &str = "/admin/v1/held";
/// Path of the page of held versions, below the status page.
pub const HELD_PAGE: &str = "/held";
/// Path of approvals.
pub(super) const APPROVE: &str = "/admin/v1/approve";
/// Path of the end of approvals.
pub(super) const UNAPPROVE: &str = "/admin/v1/unapprove";
/// Path of client configurations.
pub const CLIENT_CONFIG: &str = "/admin/v1/client-config";
/// Path of runs. Each run is below it.
pub const RUNS: &str = "/admin/v1/runs";
/// Path of verifications.
pub const VERIFY: &str = "/admin/v1/verify";
/// Path of plan requests.
pub const PLAN: &str = "/admin/v1/plan";
/// Path of requests for lock files.
pub const LOCK: &str = "/admin/v1/lock";
/// Path of the missing list.
pub const MISSING: &str = "/admin/v1/missing";
/// Path of warm-up requests.
pub const WARM: &str = "/admin/v1/warm";
/// Path of the list of jobs. Each job is below it.
pub const JOBS: &str = "/admin/v1/jobs";
/// Path of tree exports.
pub const EXPORT: &str = "/admin/v1/export";
/// Path of tree imports.
pub const IMPORT: &str = "/admin/v1/import";
/// Path of bundle requests.
pub const BUNDLE: &str = "/admin/v1/bundle";
/// Path of bundle imports.
pub const APPLY: &str = "/admin/v1/bundle/apply";
/// Path of the inventory.
pub const INVENTORY: &str = "/admin/v1/inventory";

/// Routes of the admin listener. The table has the path of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdminRoute {
    /// This process runs; for all.
    Health,
    /// The store is open; for all.
    Ready,
    /// The status page, and its form.
    Page,
    /// The metrics.
    Metrics,
    /// The table.
    Index,
    /// The description of the admin API.
    OpenApi,
    /// The status.
    Status,
    /// The stored packages.
    List,
    /// The answer that a client gets, and its reason.
    Explain,
    /// The verdicts of the policies about the versions of an address.
    Policy,
    /// The versions that rules hold back.
    Held,
    /// The page of them, and its form.
    HeldPage,
    /// A decision about versions that are held back.
    Approval(ApprovalDecision),
    /// The CLI configuration to paste.
    ClientConfig,
    /// The counts of one `larder run`.
    Run(RunId),
    /// The CLI configuration for the client of one `larder run`.
    RunClientConfig(RunId),
    /// The unpacked providers that the client of one `larder run` may link.
    RunProviders(RunId),
    /// An operation on addresses or a job.
    Operation(Operation),
    /// A verification of everything stored.
    Verify,
    /// The plan of an order.
    Plan,
    /// The lock files of an order.
    Lock,
    /// The missing list.
    Missing,
    /// A warm-up of an order.
    Warm,
    /// A tree of a job's packages.
    Export,
    /// The import of a tree.
    Import,
    /// A bundle of a job's packages.
    Bundle,
    /// The import of a bundle.
    ApplyBundle,
    /// The inventory.
    Inventory,
    /// The list of jobs.
    Jobs,
    /// One job.
    Job(JobId),
    /// The changes of one job.
    JobEvents(JobId),
}

labelled_enum! {
    /// Methods of the admin listener, with their names in a request.
    pub AdminMethod {
        /// Reads, also with HEAD. Needs read access.
        Get "GET",
        /// Changes something, or takes long. Needs the token.
        Post "POST",
        /// Removes something. Needs the token.
        Delete "DELETE",
    }
}

/// A path of the admin listener.
#[derive(Debug)]
pub struct AdminPath {
    /// The path. `{id}` stands for the id of a job or a run.
    pub path: &'static str,
    target: Target,
    /// The methods, and what each does, in one line.
    pub methods: &'static [(AdminMethod, &'static str)],
}

/// The segment of a path in the table that stands for the id of a job or a run.
const ID: &str = "{id}";

/// The route of a path.
#[derive(Debug, Clone, Copy)]
enum Target {
    Fixed(AdminRoute),
    OfJob(fn(JobId) -> AdminRoute),
    OfRun(fn(RunId) -> AdminRoute),
}

impl AdminPath {
    const fn new(path: &'static str, route: AdminRoute, methods: &'static [(AdminMethod, &'static str)]) -> Self {
        Self { path, target: Target::Fixed(route), methods }
    }

    const fn operation(operation: Operation, methods: &'static [(AdminMethod, &'static str)]) -> Self {
        Self::new(operation.path(), AdminRoute::Operation(operation), methods)
    }

    /// The route of a request's path, if it is this path.
    fn route(&self, path: &str) -> Option<AdminRoute> {
        match self.target {
            Target::Fixed(route) => (self.path == path).then_some(route),
            Target::OfJob(route) => JobId::parse(self.id_in(path)?).map(route),
            Target::OfRun(route) => RunId::parse(self.id_in(path)?).map(route),
        }
    }

    /// The part of a request's path that stands where this path has [`ID`].
    fn id_in<'a>(&self, path: &'a str) -> Option<&'a str> {
        let (before, after) = self.path.split_once(ID)?;
        path.strip_prefix(before)?.strip_suffix(after)
    }

    /// The methods as in an Allow header.
    pub fn allowed(&self) -> String {
        let names = self.methods.iter().flat_map(|(method, _)| match method {
            AdminMethod::Get => vec!["GET", "HEAD"],
            other => vec![other.label()],
        });
        names.collect::<Vec<_>>().join(", ")
    }

    /// True if the path has this method.
    pub fn allows(&self, method: &str) -> bool {
        let method = if method == "HEAD" { "GET" } else { method };
        self.methods.iter().any(|(allowed, _)| allowed.label() == method)
    }
}

use AdminMethod::{Delete, Get, Post};

/// Every path. A new one also needs its row in `tests/openapi.rs`, and its line in `docs/admin-api.md`.
pub const PATHS: &[AdminPath] = &[
    AdminPath::new(INDEX, AdminRoute::Index, &[(Get, "this list")]),
    AdminPath::new(OPENAPI, AdminRoute::OpenApi, &[(Get, "a description of each request, as OpenAPI 3.1")]),
    AdminPath::new(STATUS, AdminRoute::Status, &[(Get, "what is stored, served, saved, missing and refused; alarms")]),
    AdminPath::new(
        CLIENT_CONFIG,
        AdminRoute::ClientConfig,
        &[(
            Get,
            "the CLI configuration to paste; with ?mirror for a network mirror, with ?age=7d or ?as-of=2026-08-01 for a view",
        )],
    ),
    AdminPath::new(LIST, AdminRoute::List, &[(Get, "a page of what is stored, by address and version")]),
    AdminPath::new(EXPLAIN, AdminRoute::Explain, &[(Get, "what a client gets for an address or a URL, and why")]),
    AdminPath::new(POLICY, AdminRoute::Policy, &[(Get, "the policies' verdict about each version of an address")]),
    AdminPath::new(HELD, AdminRoute::Held, &[(Get, "the versions that rules hold back, and until when")]),
    AdminPath {
        path: "/admin/v1/runs/{id}",
        target: Target::OfRun(AdminRoute::Run),
        methods: &[(Get, "what the client of one `larder run` was sent, by source")],
    },
    AdminPath {
        path: "/admin/v1/runs/{id}/client-config",
        target: Target::OfRun(AdminRoute::RunClientConfig),
        methods: &[(Get, "the CLI configuration for the client of one `larder run`")],
    },
    AdminPath {
        path: "/admin/v1/runs/{id}/providers",
        target: Target::OfRun(AdminRoute::RunProviders),
        methods: &[(Post, "the unpacked providers that the client of one `larder run` may link")],
    },
    AdminPath::operation(Operation::Refresh, &[(Post, "revalidate stored documents now, whatever their age")]),
    AdminPath::operation(Operation::Purge, &[(Post, "remove documents and archives")]),
    AdminPath::operation(Operation::Accept, &[(Post, "trust changed bytes, keys or trees")]),
    AdminPath::operation(Operation::Pin, &[(Post, "never evict packages, or those of a job")]),
    AdminPath::operation(Operation::Unpin, &[(Post, "allow eviction again")]),
    AdminPath::new(
        APPROVE,
        AdminRoute::Approval(ApprovalDecision::Approved),
        &[(Post, "let versions be used although they are too young")],
    ),
    AdminPath::new(UNAPPROVE, AdminRoute::Approval(ApprovalDecision::TakenBack), &[(Post, "take approvals back")]),
    AdminPath::new(PLAN, AdminRoute::Plan, &[(Post, "what an order needs, and what of that is stored")]),
    AdminPath::new(LOCK, AdminRoute::Lock, &[(Post, "the lock files of an order, with the hashes of every platform")]),
    AdminPath::new(WARM, AdminRoute::Warm, &[(Post, "start a job that fetches what an order needs")]),
    AdminPath::new(
        MISSING,
        AdminRoute::Missing,
        &[(Get, "what was asked for while offline and is not stored, as an order"), (Delete, "empty that list")],
    ),
    AdminPath::new(JOBS, AdminRoute::Jobs, &[(Get, "all jobs, with counts of their items")]),
    AdminPath {
        path: "/admin/v1/jobs/{id}",
        target: Target::OfJob(AdminRoute::Job),
        methods: &[(Get, "one job, with each item"), (Delete, "cancel the job; running downloads finish")],
    },
    AdminPath {
        path: "/admin/v1/jobs/{id}/events",
        target: Target::OfJob(AdminRoute::JobEvents),
        methods: &[(Get, "the changes of a job, as server-sent events")],
    },
    AdminPath::new(BUNDLE, AdminRoute::Bundle, &[(Post, "a bundle of a job's packages, as a tar")]),
    AdminPath::new(APPLY, AdminRoute::ApplyBundle, &[(Post, "import a bundle; a line of JSON for each entry")]),
    AdminPath::new(INVENTORY, AdminRoute::Inventory, &[(Get, "what is stored, for the next delta")]),
    AdminPath::new(EXPORT, AdminRoute::Export, &[(Post, "a provider tree of a job's packages, as a tar")]),
    AdminPath::new(IMPORT, AdminRoute::Import, &[(Post, "import a provider tree; a line of JSON for each file")]),
    AdminPath::new(VERIFY, AdminRoute::Verify, &[(Post, "re-hash everything stored; lines of JSON")]),
    AdminPath::new(
        "/",
        AdminRoute::Page,
        &[(Get, "the status page, for browsers"), (Post, "the form of that page: one operation on one address")],
    ),
    AdminPath::new(
        HELD_PAGE,
        AdminRoute::HeldPage,
        &[
            (Get, "the page of held versions, for browsers"),
            (Post, "its form: approve versions, or take approvals back"),
        ],
    ),
    AdminPath::new("/metrics", AdminRoute::Metrics, &[(Get, "metrics for Prometheus, as OpenMetrics text")]),
    AdminPath::new("/healthz", AdminRoute::Health, &[(Get, "this process runs")]),
    AdminPath::new("/readyz", AdminRoute::Ready, &[(Get, "the store is open")]),
];

impl AdminRoute {
    /// Finds the route of a path, and its row of the table.
    pub fn parse(path: &str) -> Option<(Self, &'static AdminPath)> {
        PATHS.iter().find_map(|row| Some((row.route(path)?, row)))
    }
}

/// The OpenAPI description of the admin API.
pub const DESCRIPTION: &str = include_str!("../../../docs/openapi.json");

/// The answer to `GET /admin/v1`: JSON with one line for each request, which a person can read, too.
pub fn index() -> String {
    let requests = PATHS.iter().flat_map(|row| {
        row.methods.iter().map(|(method, summary)| {
            format!("    {}", json!({ "method": method.label(), "path": row.path, "what": summary }))
        })
    });
    let requests = requests.collect::<Vec<_>>().join(",\n");
    let (larder, openapi) = (json!(env!("CARGO_PKG_VERSION")), json!(OPENAPI));
    format!("{{\n  \"larder\": {larder},\n  \"openapi\": {openapi},\n  \"requests\": [\n{requests}\n  ]\n}}\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_path_of_the_table_leads_to_its_own_route() {
        let mut routes = BTreeSet::new();
        for row in PATHS {
            let id = match row.target {
                Target::OfRun(_) => "00112233445566778899aabbccddeeff",
                Target::Fixed(_) | Target::OfJob(_) => "0011223344556677",
            };
            let path = row.path.replace(ID, id);
            let (route, found) = AdminRoute::parse(&path).unwrap();
            assert_eq!(found.path, row.path);
            assert!(routes.insert(format!("{route:?}")), "{route:?} has two paths");
        }
        for path in ["/admin/v1/jobs/{id}", "/admin/v1/jobs/00112233445566", "/admin/v1/jobs/", "/admin/v2/status"] {
            assert!(AdminRoute::parse(path).is_none(), "{path}");
        }
    }

    proptest! {
        #[test]
        fn an_admin_path_with_a_final_slash_is_unknown(path in "(/admin/v1|/)?[/a-z-]{0,16}[/?%.]?") {
            if AdminRoute::parse(&path).is_some() {
                let slashed = format!("{path}/");
                prop_assert!(path.starts_with('/') && AdminRoute::parse(&slashed).is_none());
            }
        }
    }
}
