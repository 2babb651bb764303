//! `docs/openapi.json`, and the answers of the admin API compared with it. Every answer that a test gets through
//! [`super::http::send`] from an admin listener is compared.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::LazyLock;

use serde_json::Value;

use super::http::Answer;

/// The description that larder is built with.
pub(crate) const TEXT: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/openapi.json"));

static DESCRIPTION: LazyLock<Description> = LazyLock::new(|| Description(serde_json::from_str(TEXT).unwrap()));

/// Keywords of JSON Schema that [`Description`] compares with. A test refuses others in `docs/openapi.json`.
pub(crate) const KEYWORDS: [&str; 17] = [
    "$ref",
    "type",
    "format",
    "pattern",
    "minimum",
    "enum",
    "const",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "minItems",
    "maxItems",
    "uniqueItems",
    "oneOf",
    "anyOf",
    "description",
];

/// The pages for browsers, which are not described.
pub(crate) const PAGES: [&str; 2] = ["/", "/held"];

/// The OpenAPI description of the admin API.
pub(crate) struct Description(pub(crate) Value);

/// A value compared with a schema or a part of it.
struct Compared {
    problems: Vec<String>,
    /// The members that are described; `None` where any may be there.
    described: Option<BTreeSet<String>>,
}

impl Compared {
    fn add(&mut self, part: Self) {
        self.problems.extend(part.problems);
        self.described = self.described.take().zip(part.described).map(|(own, others)| &own | &others);
    }

    fn described_count(&self) -> usize {
        self.described.as_ref().map_or(usize::MAX, BTreeSet::len)
    }
}

/// Panics if an answer of an admin listener is not described.
pub(crate) fn assert_described(method: &str, path: &str, answer: &Answer) {
    if let Err(problem) = DESCRIPTION.compare(method, path, answer) {
        panic!("{method} {path} answered {}: {problem}\n{}", answer.status, answer.text());
    }
}

impl Description {
    pub(crate) fn get() -> &'static Self {
        &DESCRIPTION
    }

    /// The described path that a request's path has the form of.
    pub(crate) fn path(&self, path: &str) -> Option<&str> {
        let has_form = |form: &str| match form.split_once("{id}") {
            Some((before, after)) => {
                let id = path.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
                let length = if form.contains("/runs/") { 32 } else { 16 };
                id.is_some_and(|id| id.len() == length && is_hex(id))
            }
            None => form == path,
        };
        self.0["paths"].as_object().unwrap().keys().map(String::as_str).find(|form| has_form(form))
    }

    /// Follows a reference.
    pub(crate) fn resolve<'a>(&'a self, value: &'a Value) -> &'a Value {
        match value["$ref"].as_str() {
            Some(reference) => {
                self.0.pointer(reference.trim_start_matches('#')).unwrap_or_else(|| panic!("{reference} leads nowhere"))
            }
            None => value,
        }
    }

    /// Compares an answer with the description of its status.
    fn compare(&self, method: &str, path: &str, answer: &Answer) -> Result<(), String> {
        let is_head = method == "HEAD";
        let compare_errors = || {
            let errors = serde_json::json!({ "$ref": "#/components/schemas/Errors" });
            if is_head { Ok(()) } else { self.compare_json(&errors, &answer.body) }
        };
        if PAGES.contains(&path) {
            return Ok(());
        }
        let Some(form) = self.path(path) else {
            return match answer.status {
                400 | 404 => compare_errors(),
                _ => Err("docs/openapi.json describes no such path: add it".to_owned()),
            };
        };
        let described_method = if is_head { "get".to_owned() } else { method.to_lowercase() };
        let Some(operation) = self.0["paths"][form].get(&described_method) else {
            return match answer.status {
                // Access is checked before the method.
                400 | 401 | 403 | 405 => compare_errors(),
                _ => Err(format!("docs/openapi.json describes no {method} of {form}: add it")),
            };
        };
        let status = answer.status.to_string();
        let Some(response) = operation["responses"].get(&status) else {
            return Err(format!("docs/openapi.json describes no {status} of {method} {form}: add it to its responses"));
        };
        let content_type = answer.header("content-type").split(';').next().unwrap_or_default().trim();
        let content = &self.resolve(response)["content"];
        let Some(media) = content.get(content_type) else {
            return Err(format!("the content type {content_type:?} is not described: add it"));
        };
        if is_head {
            return Ok(());
        }
        match content_type {
            "application/json" => self.compare_json(&media["schema"], &answer.body),
            "application/x-ndjson" => {
                answer.text().lines().try_for_each(|line| self.compare_json(&media["x-each-line"], line.as_bytes()))
            }
            "text/event-stream" => {
                answer.text().split("\n\n").filter(|event| !event.is_empty()).try_for_each(|event| {
                    let Some((name, data)) =
                        event.strip_prefix("event: ").and_then(|event| event.split_once("\ndata: "))
                    else {
                        return if event == ":" { Ok(()) } else { Err(format!("not an event: {event:?}")) };
                    };
                    match media["x-events"].get(name) {
                        Some(schema) => self.compare_json(schema, data.as_bytes()),
                        None => Err(format!("the event {name:?} is not described: add it to x-events")),
                    }
                })
            }
            _ => Ok(()),
        }
    }

    fn compare_json(&self, schema: &Value, json: &[u8]) -> Result<(), String> {
        let value: Value = serde_json::from_slice(json).map_err(|error| format!("no JSON: {error}"))?;
        let problems = self.problems(schema, &value, "");
        if problems.is_empty() {
            return Ok(());
        }
        let mut text = "the answer differs from its schema in docs/openapi.json:".to_owned();
        problems.iter().take(8).for_each(|problem| write!(text, "\n  {problem}").unwrap());
        Err(text)
    }

    /// The differences of a value from a schema. Members that the schema does not name are differences, too, so that
    /// every member is described.
    fn problems(&self, schema: &Value, value: &Value, place: &str) -> Vec<String> {
        let Compared { mut problems, described } = self.compare_value(schema, value, place);
        if let (Some(object), Some(described)) = (value.as_object(), described) {
            let unknown = object.keys().filter(|name| !described.contains(*name));
            problems.extend(unknown.map(|name| format!("{place}.{name} is not described")));
        }
        problems
    }

    fn compare_value(&self, schema: &Value, value: &Value, place: &str) -> Compared {
        let mut compared = Compared { problems: Vec::new(), described: Some(BTreeSet::new()) };
        let problem = |text: String| format!("{}: {text}", if place.is_empty() { "the value" } else { place });
        if schema.get("$ref").is_some() {
            compared.add(self.compare_value(self.resolve(schema), value, place));
        }
        if let Some(types) = schema.get("type") {
            let is_of = |name: &Value| match name.as_str().unwrap() {
                "object" => value.is_object(),
                "array" => value.is_array(),
                "string" => value.is_string(),
                "integer" => value.is_u64() || value.is_i64(),
                "boolean" => value.is_boolean(),
                "null" => value.is_null(),
                other => panic!("the type {other}"),
            };
            let types = types.as_array().cloned().unwrap_or_else(|| vec![types.clone()]);
            if !types.iter().any(is_of) {
                compared.problems.push(problem(format!("{value} is none of {types:?}")));
                return compared;
            }
        }
        let is_one_of = |values: &Value| values.as_array().unwrap().contains(value);
        if schema.get("enum").is_some_and(|values| !is_one_of(values))
            || schema.get("const").is_some_and(|only| only != value)
        {
            compared.problems.push(problem(format!("{value} is not listed")));
        }
        if let Some(text) = value.as_str() {
            let has_form = match (schema["pattern"].as_str(), schema["format"].as_str()) {
                (Some("^[0-9a-f]{16}$"), _) => is_hex16(text),
                (Some("^[0-9a-f]{32}$"), _) => text.len() == 32 && is_hex(text),
                (Some("^[0-9a-f]{64}$"), _) => text.len() == 64 && is_hex(text),
                (Some(pattern), _) => panic!("the pattern {pattern}"),
                (None, Some("date-time")) => text.len() == 20 && humantime::parse_rfc3339(text).is_ok(),
                (None, _) => true,
            };
            if !has_form {
                compared.problems.push(problem(format!("{text:?} has another form")));
            }
        }
        for alternatives in ["oneOf", "anyOf"].into_iter().filter_map(|keyword| schema[keyword].as_array()) {
            let each = alternatives.iter().map(|schema| self.compare_value(schema, value, place));
            // The alternative that fits best says what is wrong.
            let best = each.min_by_key(|compared| (compared.problems.len(), usize::MAX - compared.described_count()));
            compared.add(best.unwrap());
        }
        if let Some(elements) = value.as_array().filter(|_| schema.get("items").is_some()) {
            for (index, element) in elements.iter().enumerate() {
                compared.problems.extend(self.problems(&schema["items"], element, &format!("{place}[{index}]")));
            }
        }
        let Some(object) = value.as_object() else { return compared };
        let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        for name in required.filter(|name| !object.contains_key(*name)) {
            compared.problems.push(format!("{place}.{name} is required, and absent"));
        }
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            compared.described.iter_mut().for_each(|described| described.extend([name.clone()]));
            let member = object.get(name).map(|member| self.problems(schema, member, &format!("{place}.{name}")));
            compared.problems.extend(member.into_iter().flatten());
        }
        match &schema["additionalProperties"] {
            Value::Bool(true) => compared.described = None,
            others @ Value::Object(_) => {
                compared.described = None;
                let unnamed = object.iter().filter(|(name, _)| schema["properties"].get(name).is_none());
                for (name, member) in unnamed {
                    compared.problems.extend(self.problems(others, member, &format!("{place}.{name}")));
                }
            }
            _ => {}
        }
        compared
    }

    /// `METHOD PATH` of each operation.
    pub(crate) fn operations(&self) -> BTreeSet<String> {
        let mut operations = BTreeSet::new();
        for (path, item) in self.0["paths"].as_object().unwrap() {
            let methods = item.as_object().unwrap().keys().filter(|key| *key != "parameters");
            operations.extend(methods.map(|method| format!("{} {path}", method.to_uppercase())));
        }
        operations
    }
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

fn is_hex16(text: &str) -> bool {
    text.len() == 16 && is_hex(text)
}
