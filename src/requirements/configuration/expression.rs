//! Expressions that clients evaluate at `init`: sources, versions, and the values that they depend on.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use hcl_edit::expr::{
    BinaryOp, BinaryOperator, Expression, FuncCall, ObjectKey, Traversal, TraversalOperator, UnaryOperator,
};
use hcl_edit::template::{Element, Template};
use hcl_edit::visit::{self, Visit};
use serde_json::Value;

use super::super::ClientKind;
use super::super::hcl;
use super::ModuleRole;

/// The maximum length of a text value, in bytes: sources and versions are shorter.
const MAX_TEXT_BYTES: usize = 4096;
/// The maximum number of parts of a list or object, including nested ones. Locals that each contain the next one twice
/// would grow without limit.
const MAX_PARTS: usize = 4096;
/// The limit of evaluation steps in one folder: each expression and each part of a value is one. Sixteen MiB of
/// configuration have about three million expressions.
const MAX_STEPS: usize = 1 << 24;

/// The maximum length of a reference in messages, in characters.
const MAX_SHOWN_CHARS: usize = 200;

/// The value of an expression.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in super::super) enum Constant {
    /// `null`.
    Null,
    /// A string; numbers and booleans are converted.
    Text(String),
    /// A list.
    List(Arc<[Constant]>),
    /// An object or a map.
    Object(Arc<BTreeMap<String, Constant>>),
    /// Unknown to clients at `init`, or to larder: the cause and the remedy, for people.
    Unknown(Arc<str>),
}

/// A known value, or the cause why it is unknown.
type Known = Result<Constant, Arc<str>>;

/// A cause with the remedy where there is no better one.
fn cause(depends_on: impl fmt::Display) -> Arc<str> {
    format!("{depends_on}: write a plain string instead, or name the address in the order").into()
}

impl Constant {
    /// The value; an unknown one is an error.
    fn known(self) -> Known {
        if let Self::Unknown(cause) = self { Err(cause) } else { Ok(self) }
    }

    fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    fn from_bool(truth: bool) -> Self {
        Self::Text(truth.to_string())
    }

    /// The number of parts, including nested ones; counting stops one above the limit.
    fn count_parts(&self) -> usize {
        let (mut pending, mut parts) = (vec![self], 0);
        while let Some(value) = pending.pop() {
            parts += 1;
            if parts > MAX_PARTS {
                break;
            }
            match value {
                Self::List(inner) => pending.extend(inner.iter()),
                Self::Object(members) => pending.extend(members.values()),
                Self::Null | Self::Text(_) | Self::Unknown(_) => {}
            }
        }
        parts
    }
}

/// Values by variable name.
pub(in super::super) type VariableValues = BTreeMap<String, Constant>;

/// An expression as its text, which is parsed when it is evaluated: a text needs a fraction of the memory of a parsed
/// expression. It borrows nothing from its file, because a value may be in another file than its use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ExpressionText {
    Hcl(String),
    /// A JSON value. Its strings and the names of its members are templates.
    Json(String),
}

impl ExpressionText {
    /// The value without variables and locals.
    pub(super) fn constant(&self) -> Constant {
        Scope::empty().value(self)
    }
}

/// The variables and locals that an expression refers to.
#[derive(Debug, Default)]
pub(super) struct References {
    pub(super) variables: BTreeSet<String>,
    pub(super) locals: BTreeSet<String>,
}

impl References {
    pub(super) fn of(text: &ExpressionText) -> Self {
        let mut references = Self::default();
        match text {
            ExpressionText::Hcl(text) => text.parse().iter().for_each(|expression| references.visit_expr(expression)),
            ExpressionText::Json(text) => references.add_json(&serde_json::from_str(text).unwrap_or_default()),
        }
        references
    }

    fn add_json(&mut self, value: &Value) {
        match value {
            Value::String(text) => text.parse().iter().for_each(|template| self.visit_template(template)),
            Value::Array(items) => items.iter().for_each(|item| self.add_json(item)),
            Value::Object(members) => {
                for (name, value) in members {
                    name.parse().iter().for_each(|template| self.visit_template(template));
                    self.add_json(value);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// Skips what larder does not evaluate: values that are of no use to it stay where they are.
impl Visit for References {
    fn visit_expr(&mut self, expression: &Expression) {
        let is_evaluated = match expression {
            Expression::ForExpr(_) => false,
            Expression::UnaryOp(operation) => *operation.operator.value() == UnaryOperator::Not,
            Expression::Traversal(traversal) => !traversal.operators.iter().any(|operator| {
                matches!(operator.value(), TraversalOperator::AttrSplat(_) | TraversalOperator::FullSplat(_))
            }),
            _ => true,
        };
        if is_evaluated {
            visit::visit_expr(self, expression);
        }
    }

    fn visit_traversal(&mut self, traversal: &Traversal) {
        let referenced = match traversal.expr.as_variable().map(|name| name.as_str()) {
            Some("var") => Some(&mut self.variables),
            Some("local") => Some(&mut self.locals),
            _ => None,
        };
        let name = traversal.operators.first().map(|operator| operator.value());
        if let (Some(names), Some(TraversalOperator::GetAttr(name))) = (referenced, name) {
            names.insert(name.as_str().to_owned());
        }
        visit::visit_traversal(self, traversal);
    }
}

/// A declared variable.
#[derive(Debug, Clone, Default)]
pub(super) struct Variable {
    /// The default value, without references.
    pub(super) default: Option<Constant>,
    /// The `const` argument. At `init`, Terraform (since 1.15) evaluates only variables with `const = true`. OpenTofu (since
    /// 1.8) evaluates all variables except, since 1.12, those with `const = false`.
    pub(super) is_const: Option<bool>,
    /// True for `nullable = false`: null means the default.
    pub(super) is_never_null: bool,
    /// Ephemeral or sensitive variables, which OpenTofu refuses at `init`.
    pub(super) is_secret: bool,
}

/// Variables and locals of one folder.
pub(super) struct Scope<'a> {
    client: ClientKind,
    role: ModuleRole,
    variables: &'a BTreeMap<String, Variable>,
    locals: &'a BTreeMap<String, ExpressionText>,
    values: &'a VariableValues,
    /// The values of locals; `None` for a local that is being evaluated: a reference to it is a cycle.
    local_values: RefCell<BTreeMap<&'a str, Option<Constant>>>,
    steps: Cell<usize>,
}

static NO_VARIABLES: BTreeMap<String, Variable> = BTreeMap::new();
static NO_LOCALS: BTreeMap<String, ExpressionText> = BTreeMap::new();
static NO_VALUES: VariableValues = VariableValues::new();

impl<'a> Scope<'a> {
    /// A scope without variables and locals.
    pub(super) fn empty() -> Self {
        Self::new(ClientKind::Opentofu, ModuleRole::Child, &NO_VARIABLES, &NO_LOCALS, &NO_VALUES)
    }

    /// The scope of a folder; `values` are those of its variables.
    pub(super) fn new(
        client: ClientKind,
        role: ModuleRole,
        variables: &'a BTreeMap<String, Variable>,
        locals: &'a BTreeMap<String, ExpressionText>,
        values: &'a VariableValues,
    ) -> Self {
        Self { client, role, variables, locals, values, local_values: RefCell::default(), steps: Cell::default() }
    }

    /// Counts evaluation steps, up to the limit.
    fn count_steps(&self, steps: usize) -> Result<(), Arc<str>> {
        self.steps.set(self.steps.get().saturating_add(steps));
        if self.steps.get() <= MAX_STEPS { Ok(()) } else { Err(cause("more steps than larder evaluates")) }
    }

    /// A list or an object; unknown if it has too many parts.
    fn limited(&self, value: Constant) -> Known {
        let parts = value.count_parts();
        self.count_steps(parts)?;
        if parts <= MAX_PARTS { Ok(value) } else { Err(cause(format!("a value of more than {MAX_PARTS} parts"))) }
    }

    fn list(&self, parts: impl Iterator<Item = Known>) -> Known {
        self.limited(Constant::List(parts.map(|part| part.unwrap_or_else(Constant::Unknown)).collect()))
    }

    /// An object; each member is a name and a value.
    fn object(&self, members: impl Iterator<Item = (Known, Known)>) -> Known {
        let member = |(name, value): (Known, Known)| match name? {
            Constant::Text(name) => Ok((name, value.unwrap_or_else(Constant::Unknown))),
            _ => Err(cause("an object with a key that is not a string")),
        };
        self.limited(Constant::Object(Arc::new(members.map(member).collect::<Result<_, _>>()?)))
    }

    /// The value of an expression.
    pub(super) fn value(&self, text: &ExpressionText) -> Constant {
        let value = match text {
            ExpressionText::Hcl(text) => match text.parse() {
                Ok(expression) => self.expression(&expression),
                Err(_) => Err(cause("an expression that cannot be read")),
            },
            ExpressionText::Json(text) => match serde_json::from_str(text) {
                Ok(value) => self.json(&value),
                Err(_) => Err(cause("a value that is nested too deeply")),
            },
        };
        value.unwrap_or_else(Constant::Unknown)
    }

    fn json(&self, value: &Value) -> Known {
        self.count_steps(1)?;
        match value {
            Value::Null => Ok(Constant::Null),
            Value::Bool(_) | Value::Number(_) => Ok(Constant::Text(value.to_string())),
            Value::String(text) => self.json_text(text),
            Value::Array(items) => self.list(items.iter().map(|item| self.json(item))),
            Value::Object(members) => {
                self.object(members.iter().map(|(name, value)| (self.json_text(name), self.json(value))))
            }
        }
    }

    fn json_text(&self, text: &str) -> Known {
        if !text.contains("${") && !text.contains("%{") {
            return joined("", &[text]);
        }
        text.parse().map_err(|_| cause("a template that cannot be read")).and_then(|template| self.template(&template))
    }

    pub(super) fn expression(&self, expression: &Expression) -> Known {
        self.count_steps(1)?;
        match expression {
            Expression::Null(_) => Ok(Constant::Null),
            Expression::Bool(value) => Ok(Constant::from_bool(*value.value())),
            Expression::Number(value) => Ok(Constant::Text(value.to_string())),
            Expression::String(text) => joined("", &[text]),
            Expression::StringTemplate(template) => self.template(template),
            Expression::HeredocTemplate(heredoc) => self.template(&heredoc.template),
            Expression::Parenthesis(inner) => self.expression(inner.inner()),
            Expression::Conditional(conditional) => match self.truth(&conditional.cond_expr)? {
                true => self.expression(&conditional.true_expr),
                false => self.expression(&conditional.false_expr),
            },
            Expression::Array(array) => self.list(array.iter().map(|part| self.expression(part))),
            Expression::Object(object) => {
                self.object(object.iter().map(|(key, value)| (self.key(key), self.expression(value.expr()))))
            }
            Expression::Variable(_) | Expression::Traversal(_) => self.reference(expression),
            Expression::FuncCall(call) => self.call(call),
            Expression::UnaryOp(operation) if *operation.operator.value() == UnaryOperator::Not => {
                Ok(Constant::from_bool(!self.truth(&operation.expr)?))
            }
            Expression::BinaryOp(operation) => self.binary(operation),
            // Real configurations compute no source or version with arithmetic.
            Expression::UnaryOp(_) => Err(cause("arithmetic")),
            Expression::ForExpr(_) => Err(cause("a for expression")),
        }
    }

    /// The key of an object's member: a plain name is text.
    pub(super) fn key(&self, key: &ObjectKey) -> Known {
        let name = match key {
            ObjectKey::Ident(name) => name,
            ObjectKey::Expression(key) => match hcl::without_minus(key) {
                Expression::Variable(name) => &**name,
                other => return self.expression(other),
            },
        };
        Ok(Constant::Text(name.as_str().to_owned()))
    }

    fn truth(&self, condition: &Expression) -> Result<bool, Arc<str>> {
        let value = self.expression(condition)?;
        let truth = value.as_text().and_then(|text| text.parse().ok());
        truth.ok_or_else(|| cause("a condition that is neither true nor false"))
    }

    fn template(&self, template: &Template) -> Known {
        let (mut text, is_single) = (String::new(), template.len() == 1);
        for element in template {
            let part = match element {
                Element::Literal(literal) => joined("", &[literal.as_str()])?,
                Element::Interpolation(interpolation) => self.expression(&interpolation.expr)?,
                Element::Directive(_) => return Err(cause("a template directive")),
            };
            match part {
                // A template that is a single reference has the reference's value, of any type.
                value if is_single => return Ok(value),
                Constant::Text(part) => text.push_str(&part),
                _ => return Err(cause("a template with a value in it that is not a string")),
            }
            if text.len() > MAX_TEXT_BYTES {
                break;
            }
        }
        joined("", &[&text])
    }

    fn binary(&self, operation: &BinaryOp) -> Known {
        let operator = *operation.operator.value();
        if !matches!(operator, BinaryOperator::Eq | BinaryOperator::NotEq | BinaryOperator::And | BinaryOperator::Or) {
            return Err(cause("arithmetic"));
        }
        let (left, right) = (self.expression(&operation.lhs_expr)?, self.expression(&operation.rhs_expr)?);
        if [&left, &right].iter().any(|value| matches!(value, Constant::List(_) | Constant::Object(_))) {
            return Err(cause("a comparison of lists or objects"));
        }
        let is_true = |value: &Constant| *value == Constant::from_bool(true);
        Ok(Constant::from_bool(match operator {
            BinaryOperator::Eq => left == right,
            BinaryOperator::NotEq => left != right,
            BinaryOperator::And => is_true(&left) && is_true(&right),
            _ => is_true(&left) || is_true(&right),
        }))
    }

    /// The value of a reference, such as `var.x` or `local.x.y["z"]`.
    fn reference(&self, reference: &Expression) -> Known {
        let (root, steps) = match reference {
            Expression::Traversal(traversal) => (&traversal.expr, traversal.operators.as_slice()),
            root => (root, &[][..]),
        };
        let root = root.as_variable().ok_or_else(|| cause("an index into a computed value"))?.as_str();
        let attribute = match steps.first().map(|step| step.value()) {
            Some(TraversalOperator::GetAttr(name)) => name.as_str(),
            _ => "",
        };
        let shown = || reference_text(reference);
        let (value, further_steps) = match (root, attribute, steps) {
            ("var", name, [_, further @ ..]) => (self.variable(name)?, further),
            ("local", name, [_, further @ ..]) => (self.local(name)?, further),
            // Clients run in the root, so paths are relative to it.
            ("path", "root", [_]) => (Constant::Text(".".to_owned()), &[][..]),
            ("path", "module", [_]) if self.role == ModuleRole::Root => (Constant::Text(".".to_owned()), &[][..]),
            // A folder has one workspace at `init`: the default one.
            ("terraform", "workspace", [_]) if self.client == ClientKind::Opentofu => {
                (Constant::Text("default".to_owned()), &[][..])
            }
            ("each" | "count" | "module" | "data" | "self" | "resource", ..) => {
                return Err(cause(format!("{}, which no client knows at init", shown())));
            }
            _ => return Err(cause(format!("{}, which larder does not know", shown()))),
        };
        further_steps.iter().try_fold(value, |value, step| {
            let key = match step.value() {
                TraversalOperator::GetAttr(name) => Constant::Text(name.as_str().to_owned()),
                TraversalOperator::LegacyIndex(index) => Constant::Text(index.value().to_string()),
                TraversalOperator::Index(index) => self.expression(index)?,
                TraversalOperator::AttrSplat(_) | TraversalOperator::FullSplat(_) => {
                    return Err(cause("a splat expression"));
                }
            };
            let part = match (&value, &key) {
                (Constant::Object(members), Constant::Text(name)) => members.get(name),
                (Constant::List(parts), Constant::Text(number)) => {
                    number.parse::<usize>().ok().and_then(|number| parts.get(number))
                }
                _ => None,
            };
            let part = part.cloned().ok_or_else(|| cause(format!("{}, which does not exist", shown())))?;
            part.known()
        })
    }

    fn variable(&self, name: &str) -> Known {
        let Some(variable) = self.variables.get(name) else {
            return Err(cause(format!("var.{name}, which nothing declares")));
        };
        match self.client {
            ClientKind::Terraform if variable.is_const != Some(true) => {
                return Err(format!(
                    "var.{name}, which has no const = true: add it, which Terraform accepts since 1.15, or write a plain string"
                )
                .into());
            }
            ClientKind::Opentofu if variable.is_const == Some(false) => {
                return Err(cause(format!("var.{name}, which has const = false")));
            }
            ClientKind::Opentofu if variable.is_secret => {
                return Err(cause(format!("var.{name}, which is sensitive or ephemeral")));
            }
            ClientKind::Terraform | ClientKind::Opentofu => {}
        }
        let given = self.values.get(name).filter(|given| !variable.is_never_null || **given != Constant::Null);
        let value = given.or(variable.default.as_ref()).ok_or_else(|| {
            format!(
                "var.{name}, which has no default and no value that larder sees: set it in terraform.tfvars, or name the address in the order"
            )
        })?;
        value.clone().known()
    }

    fn local(&self, name: &str) -> Known {
        if !self.local_values.borrow().contains_key(name) {
            self.evaluate_locals(name);
        }
        match self.local_values.borrow().get(name) {
            Some(Some(value)) => value.clone().known(),
            Some(None) => Err(cause(format!("local.{name}, which refers to itself"))),
            None => Err(cause(format!("local.{name}, which nothing declares"))),
        }
    }

    /// Evaluates a local after those that it refers to, one after another: no chain of locals overflows the stack.
    fn evaluate_locals(&self, name: &str) {
        let mut pending: Vec<_> = self.locals.get_key_value(name).into_iter().collect();
        while let Some((name, text)) = pending.last().copied() {
            let mut values = self.local_values.borrow_mut();
            match values.get(name.as_str()) {
                None => {
                    values.insert(name, None);
                    let references = References::of(text).locals;
                    let declared = references.iter().filter_map(|name| self.locals.get_key_value(name));
                    pending.extend(declared.filter(|(name, _)| !values.contains_key(name.as_str())));
                }
                Some(None) => {
                    drop(values);
                    let value = self.value(text);
                    self.local_values.borrow_mut().insert(name, Some(value));
                }
                Some(Some(_)) => drop(pending.pop()),
            }
        }
    }

    /// The functions that configurations use for sources and versions.
    fn call(&self, call: &FuncCall) -> Known {
        if !call.name.namespace.is_empty() || call.args.expand_final() {
            return Err(cause("a function of a provider, or with \"...\""));
        }
        let name = call.name.name.as_str();
        let values: Vec<Constant> =
            call.args.iter().map(|argument| self.expression(argument).unwrap_or_else(Constant::Unknown)).collect();
        let unsupported = || cause(format!("the function {name}() with these arguments"));
        match (name, values.as_slice()) {
            ("lookup", [Constant::Object(members), Constant::Text(key), rest @ ..]) if rest.len() < 2 => {
                return members.get(key).or(rest.first()).ok_or_else(unsupported)?.clone().known();
            }
            ("coalesce", values) => {
                let is_empty = |value: &Constant| *value == Constant::Null || value.as_text() == Some("");
                return values.iter().find(|value| !is_empty(value)).ok_or_else(unsupported)?.clone().known();
            }
            ("tostring", [value @ (Constant::Text(_) | Constant::Null)]) => return Ok(value.clone()),
            ("join", [Constant::Text(separator), Constant::List(parts)]) => {
                return joined(separator, &texts_of(parts).ok_or_else(unsupported)?);
            }
            _ => {}
        }
        if let Some(Constant::Unknown(cause)) = values.iter().find(|value| matches!(value, Constant::Unknown(_))) {
            return Err(Arc::clone(cause));
        }
        let texts = texts_of(&values).ok_or_else(unsupported)?;
        match (name, texts.as_slice()) {
            ("lower", [text]) => joined("", &[&text.to_lowercase()]),
            ("upper", [text]) => joined("", &[&text.to_uppercase()]),
            ("trimspace", [text]) => joined("", &[text.trim()]),
            ("trimprefix", [text, prefix]) => joined("", &[text.strip_prefix(prefix).unwrap_or(text)]),
            ("trimsuffix", [text, suffix]) => joined("", &[text.strip_suffix(suffix).unwrap_or(text)]),
            // A pattern between slashes is a regular expression.
            ("replace", [text, from, to]) if !(from.len() > 1 && from.starts_with('/') && from.ends_with('/')) => {
                joined(to, &text.split(from).collect::<Vec<_>>())
            }
            ("format", [format, values @ ..]) if format.matches('%').count() == format.matches("%s").count() => {
                let pieces: Vec<&str> = format.split("%s").collect();
                if pieces.len() != values.len() + 1 {
                    return Err(unsupported());
                }
                let values = values.iter().copied().chain([""]);
                let pieces = pieces.into_iter().zip(values).flat_map(|(piece, value)| [piece, value]);
                joined("", &pieces.collect::<Vec<_>>())
            }
            _ => Err(unsupported()),
        }
    }
}

/// The texts of values that are all texts.
fn texts_of(values: &[Constant]) -> Option<Vec<&str>> {
    values.iter().map(Constant::as_text).collect()
}

/// Joins texts with a separator; unknown if the result is too long.
fn joined(separator: &str, parts: &[&str]) -> Known {
    let bytes = parts.iter().map(|part| part.len() + separator.len()).sum::<usize>().saturating_sub(separator.len());
    match bytes > MAX_TEXT_BYTES {
        true => Err(cause(format!("a text of more than {MAX_TEXT_BYTES} bytes"))),
        false => Ok(Constant::Text(parts.join(separator))),
    }
}

/// A reference as text, for people.
fn reference_text(reference: &Expression) -> String {
    reference.to_string().trim().chars().filter(|c| !c.is_control()).take(MAX_SHOWN_CHARS).collect()
}

/// The names of a reference in a string.
pub(super) fn names_in(text: &str) -> Vec<String> {
    let text = text.strip_prefix("${").and_then(|text| text.strip_suffix('}')).unwrap_or(text).trim();
    let text = text.split('[').next().unwrap_or(text);
    text.split('.').map(|name| name.trim().to_owned()).collect()
}
