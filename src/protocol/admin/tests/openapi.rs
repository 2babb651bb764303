//! Makes `docs/openapi.json`: the schemas of the types that larder reads and answers with, and the requests of a table, with
//! the lines of the routes about them.
//! `LARDER_WRITE_OPENAPI=1 cargo test --lib openapi` writes it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::transform::{Transform, transform_subschemas};
use schemars::{JsonSchema, Schema, json_schema};
use serde_json::{Map, Value, json};

use crate::address::{Hostname, Platform, Version};
use crate::bundle::{ApplyEvent, Inventory};
use crate::clock::Timestamp;
use crate::digest::{Digest, DigestPrefix};
use crate::jobs::job_report::{Job, JobSummary};
use crate::jobs::{JobList, LockReport, NumberedItem, Plan};
use crate::mirror::{
    AcceptResult, ApprovalResult, EvidenceName, HeldPage, ImportStep, PinResult, PurgeResult, RefreshResult,
    StoredPage, VerifyEvent,
};
use crate::protocol::admin::approval::ApprovalRequest;
use crate::protocol::admin::bundle::{BundleRequest, ExportRequest};
use crate::protocol::admin::explain::ExplainReport;
use crate::protocol::admin::operation::{AcceptRequest, OperationReport, TargetAddresses};
use crate::protocol::admin::order::OrderRequest;
use crate::protocol::admin::policy::PolicyReport;
use crate::protocol::admin::{DESCRIPTION, PATHS, StatusReport};
use crate::protocol::linked_providers::{LinkAnswer, LinkRequest};
use crate::protocol::run::RunReport;

const ABOUT: &str = "Answers of the admin listener, by default on 127.0.0.1:8081. HEAD is answered wherever GET is. \
                     Another method of a path is 405, with `Allow`; another path is 404. Errors have the form of `Errors`. \
                     Times are in RFC 3339, in UTC and whole seconds: `2026-08-01T12:00:00Z`. Members may be added.";
const JSON: &str = "application/json";
const TAR: &str = "application/x-tar";
const TEXT: &str = "text/plain";

/// Schemas of types whose JSON is a text.
macro_rules! text_schemas {
    ($($type:ident: $schema:tt,)*) => {$(
        impl JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    )*};
}

text_schemas! {
    Digest: { "type": "string", "pattern": "^[0-9a-f]{64}$" },
    DigestPrefix: { "type": "string", "pattern": "^[0-9a-f]{16}$" },
    EvidenceName: { "type": "string", "pattern": "^[0-9a-f]{32}$" },
    Hostname: { "type": "string" },
    Platform: { "type": "string" },
    Timestamp: { "type": "string", "format": "date-time" },
    Version: { "type": "string" },
}

/// Removes what says nothing to a reader of the API: the widths of numbers, titles and defaults, and the marks of Rust in
/// descriptions.
#[derive(Clone)]
struct Plain;

impl Transform for Plain {
    fn transform(&mut self, schema: &mut Schema) {
        if schema.get("format").and_then(Value::as_str).is_some_and(|format| format != "date-time") {
            schema.remove("format");
        }
        for keyword in ["title", "default", "maximum"] {
            schema.remove(keyword);
        }
        if let Some(Value::String(text)) = schema.get_mut("description") {
            *text = text.replace('\n', " ").replace("`None`", "null or absent").replace("[`", "`").replace("`]", "`");
        }
        transform_subschemas(self, schema);
    }
}

/// The components, which are collected while the table refers to them.
struct Components {
    answers: SchemaGenerator,
    requests: SchemaGenerator,
}

impl Components {
    fn new() -> Self {
        let settings = SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        });
        let settings = settings.with_transform(Plain);
        Self {
            answers: settings.clone().for_serialize().into_generator(),
            requests: settings.for_deserialize().into_generator(),
        }
    }

    /// JSON that larder sends.
    fn sent<T: JsonSchema>(&mut self) -> Value {
        self.answers.subschema_for::<T>().into()
    }

    fn answer<T: JsonSchema>(&mut self) -> Value {
        json!({ JSON: { "schema": self.sent::<T>() } })
    }

    fn lines<T: JsonSchema>(&mut self) -> Value {
        json!({ "application/x-ndjson": { "schema": { "type": "string" }, "x-each-line": self.sent::<T>() } })
    }

    /// JSON that larder reads.
    fn body<T: JsonSchema>(&mut self) -> Value {
        json!({ JSON: { "schema": Value::from(self.requests.subschema_for::<T>()) } })
    }

    /// A type that is both sent and read has the form in which it is read: its sender may leave out more.
    fn schemas(&mut self) -> Map<String, Value> {
        let mut schemas = self.answers.take_definitions(true);
        schemas.extend(self.requests.take_definitions(true));
        schemas
    }
}

/// A request of the table.
struct Request {
    method: &'static str,
    path: &'static str,
    id: &'static str,
    tag: &'static str,
    /// The line of the routes about it.
    summary: String,
    query: Vec<Value>,
    body: Option<Value>,
    /// The status of success, its description, and its content.
    answer: (u16, &'static str, Value),
    /// The statuses of errors.
    errors: Vec<u16>,
}

impl Request {
    fn of(tag: &'static str, method: &'static str, path: &'static str, id: &'static str) -> Self {
        let row = PATHS.iter().find(|row| row.path == path).expect("the routes have every path");
        let (_, text) = row.methods.iter().find(|(of, _)| of.label() == method).expect("the routes have every method");
        let summary = format!("{}{}", text[..1].to_uppercase(), &text[1..]);
        let (errors, answer) = (vec![400, 401, 403], (200, "", Value::Null));
        Self { method, path, id, tag, summary, query: Vec::new(), body: None, answer, errors }
    }

    fn answers(self, status: u16, description: &'static str, content: Value) -> Self {
        Self { answer: (status, description, content), ..self }
    }

    /// With further statuses of errors.
    fn fails(mut self, errors: &[u16]) -> Self {
        self.errors.extend(errors);
        self
    }

    /// With the body of a command: JSON, whose size, type and time are limited.
    fn command(mut self, body: Value) -> Self {
        self.errors.extend([408, 413, 415]);
        Self { body: Some(json!({ "required": true, "content": body })), ..self }
    }

    /// With a tar that is read as it comes.
    fn tar(mut self) -> Self {
        self.errors.push(415);
        Self { body: Some(json!({ "required": true, "content": binary(TAR) })), ..self }
    }

    fn body_is(mut self, description: &str) -> Self {
        self.body.iter_mut().for_each(|body| body["description"] = description.into());
        self
    }

    fn query(self, query: Vec<Value>) -> Self {
        Self { query, ..self }
    }

    /// The operation. `GET` is answered without a token on loopback.
    fn operation(mut self) -> Value {
        let (status, description, content) = self.answer;
        let mut responses =
            Map::from_iter([(status.to_string(), json!({ "description": description, "content": content }))]);
        if status == 202 {
            let location = json!({ "description": "The path of the job.", "schema": { "type": "string" } });
            responses[&status.to_string()]["headers"] = json!({ "Location": location });
        }
        self.errors.sort_unstable();
        let names = self.errors.iter().map(|status| (status.to_string(), response_name(*status, self.path)));
        responses
            .extend(names.map(|(status, name)| (status, json!({ "$ref": format!("#/components/responses/{name}") }))));
        let mut operation = json!({
            "operationId": self.id, "tags": [self.tag], "summary": self.summary, "responses": responses,
        });
        if self.method == "GET" {
            operation["security"] = if self.errors.contains(&401) { json!([{}, { "token": [] }]) } else { json!([]) };
        }
        if !self.query.is_empty() {
            operation["parameters"] = self.query.into();
        }
        if let Some(body) = self.body {
            operation["requestBody"] = body;
        }
        operation
    }
}

/// A parameter of the query.
fn parameter(name: &str, description: &str, schema: Value) -> Value {
    json!({ "name": name, "in": "query", "description": description, "schema": schema })
}

/// A parameter that stands for true without a value.
fn flag(name: &str, description: &str, values: &[&str]) -> Value {
    let schema = json!({ "type": "string", "enum": values });
    json!({ "name": name, "in": "query", "description": description, "schema": schema, "allowEmptyValue": true })
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn texts() -> Value {
    json!({ "type": "array", "items": text() })
}

fn binary(content_type: &str) -> Value {
    json!({ content_type: { "schema": { "type": "string", "format": "binary" } } })
}

/// The component of an error's status on a path.
fn response_name(status: u16, path: &str) -> &'static str {
    match status {
        400 => "BadRequest",
        401 => "NoToken",
        403 => "Forbidden",
        404 if path.contains("/runs/") => "NoRun",
        404 => "NoJob",
        408 => "Late",
        409 => "Conflict",
        413 => "TooLarge",
        415 => "WrongType",
        500 => "Failed",
        503 => "Busy",
        507 => "NoSpace",
        _ => panic!("{status} has no component"),
    }
}

fn responses() -> Value {
    let texts = [
        ("BadRequest", "The request is malformed: every problem of its body, its query or its Host."),
        ("NoToken", "The admin token is missing or wrong. Without one, only reads on loopback are answered."),
        ("Forbidden", "A web page sent the request, or its Host is not this machine."),
        ("NoJob", "There is no such job. Old jobs are dropped from the list."),
        ("NoRun", "The id is not one of a run: 32 lower-case hex digits."),
        ("Late", "The body did not come in time."),
        ("Conflict", "It cannot be done in this state: the error says what to do first."),
        ("TooLarge", "The body is too large."),
        ("WrongType", "The body has another Content-Type."),
        ("Failed", "larder failed: its store, or a defect. The log has more."),
        ("Busy", "Not now: a limit is reached, the store is not available, or larder is stopping."),
        ("NoSpace", "The store has no space for it."),
    ];
    let errors = json!({ JSON: { "schema": { "$ref": "#/components/schemas/Errors" } } });
    let response = |(name, text): (&str, &str)| (name.to_owned(), json!({ "description": text, "content": errors }));
    Value::Object(texts.into_iter().map(response).collect())
}

/// Every request of the admin listener but those of the status page, which is for browsers.
fn requests(c: &mut Components) -> Vec<Request> {
    const OF_ACCEPT: &str = "The result of each address. Without the evidence that a person has seen nothing is accepted, \
                             and the answer names it.";
    const EVENTS: &str = "`job` first, and whenever something else than an item changes; `item` for each change; `end`. \
                          A comment every 15 s.";
    const ORDER: &str = "An order, a `.terraform.lock.hcl`, or a tar of configurations (`tar -h`). The query is for the \
                         last two.";
    const OF_ADDRESSES: &str = "The result of each address. `ok` is true if all succeeded.";
    let order_query = || {
        vec![
            parameter("platform", "For each platform: `OS_ARCH`.", texts()),
            parameter("root", "For each folder of a tar in which `init` runs.", texts()),
            parameter(
                "client",
                "The client whose rules apply to a tar.",
                json!({ "type": "string", "enum": ["terraform", "opentofu"] }),
            ),
            flag("pin", "Pin what is warmed.", &["", "true", "false"]),
        ]
    };
    let order_body = |c: &mut Components| {
        let mut body = c.body::<OrderRequest>();
        body[TEXT] = json!({ "schema": text() });
        body[TAR] = binary(TAR)[TAR].take();
        body
    };
    let id_or_addresses = |c: &mut Components| {
        let of_job = json!({
            "type": "object", "required": ["job"], "additionalProperties": false,
            "properties": { "job": { "type": "string", "pattern": "^[0-9a-f]{16}$", "description": "The id of a job." } },
        });
        json!({ JSON: { "schema": { "anyOf": [c.body::<TargetAddresses>()[JSON]["schema"].take(), of_job] } } })
    };
    let events = json!({ "text/event-stream": {
        "schema": {
            "type": "object", "description": "One event.", "required": ["event", "data"],
            "properties": {
                "event": { "type": "string", "enum": ["job", "item", "end"] },
                "data": { "type": "string", "description": "JSON on one line." },
            },
        },
        "x-events": { "job": c.sent::<Job>(), "item": c.sent::<NumberedItem>(), "end": c.sent::<JobSummary>() },
    } });
    let any_object = json!({ JSON: { "schema": { "type": "object", "additionalProperties": true } } });
    let no_options = json!({ JSON: { "schema": { "type": "object", "additionalProperties": false } } });
    let plain = || json!({ TEXT: { "schema": text() } });
    let index = json!({ JSON: { "schema": { "$ref": "#/components/schemas/Index" } } });
    let unsigned = |description| flag("unsigned", description, &["", "true"]);
    let list_query = vec![
        parameter(
            "address",
            "The beginning of an address, with an optional `@VERSION`: `hashicorp`, `hashicorp/aws@~> 5.0`.",
            text(),
        ),
        parameter("after", "The `next` of the page before.", text()),
        parameter(
            "limit",
            "The most archives of the page.",
            json!({ "type": "integer", "minimum": 1, "maximum": 1000, "default": 250 }),
        ),
    ];
    let explain_query = vec![
        parameter("address", "A provider or a module, with an optional `@VERSION`.", text()),
        parameter("url", "One of larder's own URLs, absolute or as a path, instead of an address.", text()),
        parameter("platform", "`OS_ARCH` of the client; by default that of larder's machine.", text()),
    ];
    let client_config_query = vec![
        flag("mirror", "Without a value: a network mirror instead of host overrides.", &[""]),
        parameter("age", "For clients that see only versions of at least so many days, such as `7d`.", text()),
        parameter("as-of", "For clients that see what was listed until the end of a day (UTC): `YYYY-MM-DD`.", text()),
    ];
    let network =
        "The machine and network of the run, 16 hex digits: where it is not larder's, URLs on loopback are refused.";
    let accept = parameter(
        "accept",
        "For each republished version that you accept: `ADDRESS@VERSION`.",
        json!({ "type": "array", "items": text(), "maxItems": 256 }),
    );
    let metrics = json!({ "application/openmetrics-text": { "schema": text() } });
    let probe = |path, id, text| Request {
        errors: vec![400],
        ..Request::of("Maintain", "GET", path, id).answers(200, text, plain())
    };
    vec![
        Request::of("Look", "GET", "/admin/v1", "index").answers(200, "Every path and method.", index),
        Request::of("Look", "GET", "/admin/v1/openapi.json", "openapi").answers(
            200,
            "An OpenAPI 3.1 document.",
            any_object,
        ),
        Request::of("Look", "GET", "/admin/v1/status", "status")
            .answers(200, "As `larder status --json`.", c.answer::<StatusReport>())
            .fails(&[500]),
        Request::of("Look", "GET", "/admin/v1/client-config", "clientConfig")
            .answers(200, "Lines for a CLI configuration file.", plain())
            .fails(&[500])
            .query(client_config_query),
        Request::of("Look", "GET", "/admin/v1/list", "list")
            .answers(200, "A page.", c.answer::<StoredPage>())
            .fails(&[500, 503])
            .query(list_query),
        Request::of("Look", "GET", "/admin/v1/explain", "explain")
            .answers(200, "The explanation. No upstream is asked for it.", c.answer::<ExplainReport>())
            .fails(&[500, 503])
            .query(explain_query),
        Request::of("Look", "GET", "/admin/v1/policy", "policy")
            .answers(200, "The verdicts. An upstream is asked for its list.", c.answer::<PolicyReport>())
            .query(vec![parameter("address", "A provider or module, with a version or a constraint.", text())]),
        Request::of("Look", "GET", "/admin/v1/held", "held")
            .answers(200, "The versions, by address.", c.answer::<HeldPage>())
            .fails(&[503])
            .query(vec![parameter("after", "The `next` of the page before.", text())]),
        Request::of("Look", "GET", "/admin/v1/runs/{id}", "run")
            .answers(200, "The files; none for a run without requests.", c.answer::<RunReport>())
            .fails(&[404]),
        Request::of("Look", "GET", "/admin/v1/runs/{id}/client-config", "runClientConfig")
            .answers(200, "Lines for a CLI configuration file.", plain())
            .fails(&[404, 409, 500])
            .query(vec![parameter("network", network, text())]),
        Request::of("Content", "POST", "/admin/v1/runs/{id}/providers", "runProviders")
            .answers(200, "The providers that the client may link.", c.answer::<LinkAnswer>())
            .fails(&[404])
            .command(c.body::<LinkRequest>()),
        Request::of("Content", "POST", "/admin/v1/refresh", "refresh")
            .answers(200, OF_ADDRESSES, c.answer::<OperationReport<RefreshResult>>())
            .command(c.body::<TargetAddresses>()),
        Request::of("Content", "POST", "/admin/v1/purge", "purge")
            .answers(200, OF_ADDRESSES, c.answer::<OperationReport<PurgeResult>>())
            .command(c.body::<TargetAddresses>()),
        Request::of("Content", "POST", "/admin/v1/accept", "accept")
            .answers(200, OF_ACCEPT, c.answer::<OperationReport<AcceptResult>>())
            .command(c.body::<AcceptRequest>()),
        Request::of("Content", "POST", "/admin/v1/pin", "pin")
            .answers(200, OF_ADDRESSES, c.answer::<OperationReport<PinResult>>())
            .fails(&[404])
            .command(id_or_addresses(c)),
        Request::of("Content", "POST", "/admin/v1/unpin", "unpin")
            .answers(200, OF_ADDRESSES, c.answer::<OperationReport<PinResult>>())
            .fails(&[404])
            .command(id_or_addresses(c)),
        Request::of("Content", "POST", "/admin/v1/approve", "approve")
            .answers(200, OF_ADDRESSES, c.answer::<OperationReport<ApprovalResult>>())
            .command(c.body::<ApprovalRequest>()),
        Request::of("Content", "POST", "/admin/v1/unapprove", "unapprove")
            .answers(200, OF_ADDRESSES, c.answer::<OperationReport<ApprovalResult>>())
            .command(c.body::<ApprovalRequest>()),
        Request::of("Content", "POST", "/admin/v1/plan", "plan")
            .answers(200, "Each archive with its state.", c.answer::<Plan>())
            .fails(&[503])
            .command(order_body(c))
            .body_is(ORDER)
            .query(order_query()),
        Request::of("Content", "POST", "/admin/v1/lock", "lock")
            .answers(200, "Each lock file as it should be, and its differences.", c.answer::<LockReport>())
            .fails(&[503])
            .command(order_body(c))
            .body_is(ORDER)
            .query(order_query()),
        Request::of("Content", "POST", "/admin/v1/warm", "warm")
            .answers(202, "The job has started.", c.answer::<Job>())
            .fails(&[500, 503])
            .command(order_body(c))
            .body_is(ORDER)
            .query(order_query()),
        Request::of("Air gap", "GET", "/admin/v1/missing", "missing")
            .answers(200, "An order, for `plan` and `warm` of a connected larder.", c.answer::<OrderRequest>())
            .fails(&[500, 503]),
        Request::of("Air gap", "DELETE", "/admin/v1/missing", "forgetMissing")
            .answers(200, "The empty order.", c.answer::<OrderRequest>())
            .fails(&[500, 503]),
        Request::of("Jobs", "GET", "/admin/v1/jobs", "jobs").answers(
            200,
            "At most 16, newest first.",
            c.answer::<JobList>(),
        ),
        Request::of("Jobs", "GET", "/admin/v1/jobs/{id}", "job")
            .answers(200, "The job.", c.answer::<Job>())
            .fails(&[404]),
        Request::of("Jobs", "DELETE", "/admin/v1/jobs/{id}", "cancelJob")
            .answers(200, "The job as it is now.", c.answer::<Job>())
            .fails(&[404]),
        Request::of("Jobs", "GET", "/admin/v1/jobs/{id}/events", "jobEvents")
            .answers(200, EVENTS, events)
            .fails(&[404]),
        Request::of("Air gap", "POST", "/admin/v1/bundle", "bundle")
            .answers(200, "A tar.", binary(TAR))
            .fails(&[404, 409, 500, 503])
            .command(c.body::<BundleRequest>()),
        Request::of("Air gap", "POST", "/admin/v1/bundle/apply", "applyBundle")
            .answers(200, "A line for each step.", c.lines::<ApplyEvent>())
            .fails(&[409, 500, 503, 507])
            .tar()
            .query(vec![unsigned("Also an unsigned bundle, or one signed by a key that is not trusted."), accept]),
        Request::of("Air gap", "GET", "/admin/v1/inventory", "inventory")
            .answers(200, "The inventory.", c.answer::<Inventory>())
            .fails(&[500, 503]),
        Request::of("Air gap", "POST", "/admin/v1/export", "export")
            .answers(200, "A tar.", binary(TAR))
            .fails(&[404, 409, 503])
            .command(c.body::<ExportRequest>()),
        Request::of("Air gap", "POST", "/admin/v1/import", "import")
            .answers(200, "A line for each file, and one at the end.", c.lines::<ImportStep>())
            .fails(&[500, 503])
            .tar()
            .query(vec![unsigned("Also packages that nothing proves.")]),
        Request::of("Maintain", "POST", "/admin/v1/verify", "verify")
            .answers(
                200,
                "A line for each step, until everything is read or the client leaves.",
                c.lines::<VerifyEvent>(),
            )
            .fails(&[503])
            .command(no_options),
        Request::of("Maintain", "GET", "/metrics", "metrics").answers(200, "OpenMetrics text.", metrics).fails(&[500]),
        probe("/healthz", "healthz", "`ok`"),
        probe("/readyz", "readyz", "`ready`"),
    ]
}

/// The schemas that no type has: larder writes these two answers by hand.
fn schemas_by_hand() -> Map<String, Value> {
    let request = json!({
        "type": "object", "required": ["method", "path", "what"],
        "properties": {
            "method": { "type": "string", "enum": ["GET", "POST", "DELETE"], "description": "HEAD is answered wherever GET is." },
            "path": { "type": "string", "description": "`{id}` stands for the id of a job or a run." },
            "what": { "type": "string", "description": "One line." },
        },
    });
    let index = json!({
        "type": "object", "description": "What the admin listener answers.", "required": ["larder", "openapi", "requests"],
        "properties": {
            "larder": { "type": "string", "description": "The version of larder." },
            "openapi": { "type": "string", "description": "The path of this description." },
            "requests": { "type": "array", "items": request, "description": "Every path and method." },
        },
    });
    let errors = json!({
        "type": "object", "description": "The reasons why a request failed.", "required": ["errors"],
        "properties": { "errors": {
            "type": "array", "description": "One text for each problem: subject, cause and remedy.", "items": text(),
        } },
    });
    Map::from_iter([("Index".to_owned(), index), ("Errors".to_owned(), errors)])
}

fn description() -> String {
    let mut components = Components::new();
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for request in requests(&mut components) {
        let item = paths.entry(request.path).or_default();
        if let Some((parameter, _)) =
            [("RunId", "/runs/"), ("JobId", "/jobs/")].into_iter().find(|(_, part)| request.path.contains(part))
        {
            item.insert("parameters".to_owned(), json!([{ "$ref": format!("#/components/parameters/{parameter}") }]));
        }
        item.insert(request.method.to_lowercase(), request.operation());
    }
    let ready =
        json!({ "description": "The reason why the store is not open.", "content": { TEXT: { "schema": text() } } });
    if let Some(readiness) = paths.get_mut("/readyz") {
        readiness["get"]["responses"]["503"] = ready;
    }
    let mut schemas = components.schemas();
    schemas.extend(schemas_by_hand());
    let id = |digits: u32, description: &str| {
        let schema = json!({ "type": "string", "pattern": format!("^[0-9a-f]{{{digits}}}$") });
        json!({ "name": "id", "in": "path", "required": true, "description": description, "schema": schema })
    };
    let token =
        "The text of `admin-token` in the store folder, unless it is configured. On loopback, only changes need it.";
    let members = [
        ("openapi", json!("3.1.0")),
        (
            "info",
            json!({
                "title": "larder: the admin API",
                "version": env!("CARGO_PKG_VERSION"),
                "summary": "What the commands of larder do, over HTTP",
                "description": ABOUT,
                "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            }),
        ),
        ("servers", json!([{ "url": "http://127.0.0.1:8081", "description": "The default of [admin] listen." }])),
        ("security", json!([{ "token": [] }])),
        (
            "tags",
            json!([
                { "name": "Look", "description": "What is there" },
                { "name": "Content", "description": "Commands on packages" },
                { "name": "Jobs", "description": "Warm-ups in the background" },
                { "name": "Air gap", "description": "Carry packages to a larder without a network" },
                { "name": "Maintain", "description": "Checks, probes and metrics" },
            ]),
        ),
        ("paths", json!(paths)),
        (
            "components",
            json!({
                "securitySchemes": { "token": { "type": "http", "scheme": "bearer", "description": token } },
                "parameters": { "JobId": id(16, "The id of a job."), "RunId": id(32, "The id of a run, which the run chooses.") },
                "responses": responses(),
                "schemas": schemas,
            }),
        ),
    ];
    let member = |(name, value): &(&str, Value)| format!("  \"{name}\": {}", laid_out(value, 2));
    let text = format!("{{\n{}\n}}\n", members.iter().map(member).collect::<Vec<_>>().join(",\n"));
    // The generator numbers the types of one generic type.
    text.replace("\"Job2\"", "\"JobSummary\"").replace("/Job2\"", "/JobSummary\"")
}

/// JSON whose short objects and lists are one line.
fn laid_out(value: &Value, indent: usize) -> String {
    let line = value.to_string();
    if line.len() + indent <= 110 {
        return line;
    }
    let (inner, outer) = (" ".repeat(indent + 2), " ".repeat(indent));
    match value {
        Value::Object(members) => {
            let member = |(name, value)| format!("{inner}{}: {}", Value::from(name), laid_out(value, indent + 2));
            let members = members.iter().map(|(name, value)| (name.as_str(), value)).map(member);
            format!("{{\n{}\n{outer}}}", members.collect::<Vec<_>>().join(",\n"))
        }
        Value::Array(elements) => {
            let elements = elements.iter().map(|element| format!("{inner}{}", laid_out(element, indent + 2)));
            format!("[\n{}\n{outer}]", elements.collect::<Vec<_>>().join(",\n"))
        }
        _ => line,
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test reads the environment, and writes the file on request")]
fn the_description_is_made_of_the_types_and_the_table() {
    let made = description();
    if std::env::var_os("LARDER_WRITE_OPENAPI").is_some() {
        return std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/openapi.json"), made).unwrap();
    }
    assert!(made == DESCRIPTION, "run LARDER_WRITE_OPENAPI=1 cargo test --lib openapi, and commit docs/openapi.json");
}
