//! Expressions that clients evaluate at `init`: sources, versions, and the values that they depend on. They are
//! independent of their file, because a value may be in another file than its use.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use hcl_edit::expr::{BinaryOperator, Expression, ObjectKey, TraversalOperator, UnaryOperator};
use hcl_edit::template::{Element, Template};

use super::super::hcl;
use super::super::request::ClientKind;
use super::FolderRole;

/// Depth of references between locals.
const DEEPEST: usize = 128;
/// The longest text that is a value, in bytes: sources and versions are shorter.
const MAX_TEXT: usize = 4096;
/// Parts of a list or object, including nested ones. A value that contains itself twice would grow without limit.
const MAX_PARTS: usize = 4096;
/// The limit of evaluation steps in one folder: each expression and each part of a value is one. Sixteen MiB of
/// configuration have about three million expressions.
const MAX_STEPS: usize = 1 << 24;

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

/// The general remedy.
const WRITE_IT_OUT: &str = "write it as a plain string, or name what it comes to";

impl Constant {
    pub(super) fn unknown(depends_on: impl fmt::Display) -> Self {
        Self::unknown_until(depends_on, WRITE_IT_OUT)
    }

    fn unknown_until(depends_on: impl fmt::Display, remedy: &str) -> Self {
        Self::Unknown(format!("{depends_on}: {remedy}").into())
    }

    fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    fn truth(truth: bool) -> Self {
        Self::Text(truth.to_string())
    }

    fn text(text: &str) -> Self {
        match text.len() > MAX_TEXT {
            true => Self::unknown(format!("a text of more than {MAX_TEXT} bytes")),
            false => Self::Text(text.to_owned()),
        }
    }

    /// The number of parts, including nested ones; counting stops one above the limit.
    fn parts(&self) -> usize {
        let (mut waiting, mut parts) = (vec![self], 0);
        while let Some(value) = waiting.pop() {
            parts += 1;
            if parts > MAX_PARTS {
                break;
            }
            match value {
                Self::List(inner) => waiting.extend(inner.iter()),
                Self::Object(members) => waiting.extend(members.values()),
                Self::Null | Self::Text(_) | Self::Unknown(_) => {}
            }
        }
        parts
    }
}

/// Values by variable name.
pub(in super::super) type Inputs = BTreeMap<String, Constant>;

/// An expression in the subset that clients evaluate at `init`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Formula {
    /// A known value.
    Value(Constant),
    /// A reference: `var.x`, `local.x.y["z"]`.
    Reference(Vec<Step>),
    /// A template: its parts in order.
    Template(Vec<Formula>),
    /// `condition ? yes : no`
    Conditional(Box<[Formula; 3]>),
    /// `[…]`
    List(Vec<Formula>),
    /// `{…}`
    Object(Vec<(Formula, Formula)>),
    /// `==`, `!=`, `&&`, `||`
    Binary(BinaryOperator, Box<[Formula; 2]>),
    /// `!`
    Not(Box<Formula>),
    /// A function.
    Call(String, Vec<Formula>),
}

/// A step of a reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// `.name`
    Name(String),
    /// `[…]`
    Index(Formula),
}

impl Formula {
    /// Parses an expression of a file.
    pub(super) fn of(expression: &Expression) -> Self {
        let all = |expressions: &mut dyn Iterator<Item = &Expression>| expressions.map(Self::of).collect::<Vec<_>>();
        match expression {
            Expression::Null(_) => Self::Value(Constant::Null),
            Expression::Bool(value) => Self::Value(Constant::truth(*value.value())),
            Expression::Number(value) => Self::Value(Constant::Text(value.to_string())),
            Expression::String(text) => Self::Value(Constant::text(text)),
            Expression::StringTemplate(template) => Self::of_template(template),
            Expression::HeredocTemplate(heredoc) => Self::of_template(&heredoc.template),
            Expression::Parenthesis(inner) => Self::of(inner.inner()),
            Expression::Conditional(conditional) => Self::Conditional(Box::new([
                Self::of(&conditional.cond_expr),
                Self::of(&conditional.true_expr),
                Self::of(&conditional.false_expr),
            ])),
            Expression::Array(array) => Self::List(all(&mut array.iter())),
            Expression::Object(object) => {
                let key = |key: &ObjectKey| match key {
                    ObjectKey::Ident(name) => Self::Value(Constant::Text(name.as_str().to_owned())),
                    ObjectKey::Expression(key) => match hcl::strip_duplicate_mark(key) {
                        Expression::Variable(name) => Self::Value(Constant::Text(name.as_str().to_owned())),
                        other => Self::of(other),
                    },
                };
                Self::Object(object.iter().map(|(name, value)| (key(name), Self::of(value.expr()))).collect())
            }
            Expression::Variable(name) => Self::Reference(vec![Step::Name(name.as_str().to_owned())]),
            Expression::Traversal(traversal) => {
                let Expression::Variable(first) = &traversal.expr else {
                    return Self::unknown("a part of a value that is worked out");
                };
                let step = |operator: &TraversalOperator| match operator {
                    TraversalOperator::GetAttr(name) => Some(Step::Name(name.as_str().to_owned())),
                    TraversalOperator::Index(index) => Some(Step::Index(Self::of(index))),
                    TraversalOperator::LegacyIndex(index) => Some(Step::Name(index.value().to_string())),
                    TraversalOperator::AttrSplat(_) | TraversalOperator::FullSplat(_) => None,
                };
                let rest: Option<Vec<Step>> = traversal.operators.iter().map(|operator| step(operator)).collect();
                match rest {
                    Some(rest) => {
                        let first = Step::Name(first.as_str().to_owned());
                        Self::Reference(std::iter::once(first).chain(rest).collect())
                    }
                    None => Self::unknown("a splat expression"),
                }
            }
            Expression::FuncCall(call) if call.name.namespace.is_empty() && !call.args.expand_final() => {
                Self::Call(call.name.name.as_str().to_owned(), all(&mut call.args.iter()))
            }
            Expression::FuncCall(_) => Self::unknown("a function of a provider, or with \"...\""),
            Expression::UnaryOp(operation) if *operation.operator.value() == UnaryOperator::Not => {
                Self::Not(Box::new(Self::of(&operation.expr)))
            }
            Expression::BinaryOp(operation) if is_evaluated(*operation.operator.value()) => {
                let sides = [Self::of(&operation.lhs_expr), Self::of(&operation.rhs_expr)];
                Self::Binary(*operation.operator.value(), Box::new(sides))
            }
            // No real version is computed.
            Expression::UnaryOp(_) | Expression::BinaryOp(_) => Self::unknown("arithmetic"),
            Expression::ForExpr(_) => Self::unknown("a for expression"),
        }
    }

    /// Parses a string of a JSON file, which clients evaluate as a template.
    pub(super) fn of_json_text(text: String) -> Self {
        if !text.contains("${") && !text.contains("%{") {
            return Self::Value(Constant::text(&text));
        }
        match text.parse::<Template>() {
            Ok(template) => Self::of_template(&template),
            Err(_) => Self::unknown("a template that cannot be read"),
        }
    }

    fn of_template<'a>(template: impl IntoIterator<Item = &'a Element>) -> Self {
        let part = |element: &Element| match element {
            Element::Literal(literal) => Self::Value(Constant::text(literal)),
            Element::Interpolation(inner) => Self::of(&inner.expr),
            Element::Directive(_) => Self::unknown("a template directive"),
        };
        let parts: Vec<Self> = template.into_iter().map(part).collect();
        match parts.as_slice() {
            [value @ Self::Value(Constant::Text(_))] => value.clone(),
            _ => Self::Template(parts),
        }
    }

    fn unknown(subject: &str) -> Self {
        Self::Value(Constant::unknown(subject))
    }

    /// The value without variables and locals.
    pub(super) fn alone(&self) -> Constant {
        Scope::empty().value(self)
    }

    /// The variables that it depends on, also through locals.
    pub(super) fn add_variables(
        &self,
        locals: &BTreeMap<String, Self>,
        seen: &mut BTreeSet<String>,
        variables: &mut BTreeSet<String>,
    ) {
        let mut waiting = vec![self];
        while let Some(formula) = waiting.pop() {
            match formula {
                Self::Value(_) => {}
                Self::Reference(steps) => {
                    match steps.as_slice() {
                        [Step::Name(root), Step::Name(name), ..] if root == "var" => {
                            variables.insert(name.clone());
                        }
                        [Step::Name(root), Step::Name(name), ..] if root == "local" && seen.insert(name.clone()) => {
                            waiting.extend(locals.get(name));
                        }
                        _ => {}
                    }
                    waiting.extend(steps.iter().filter_map(|step| match step {
                        Step::Index(index) => Some(index),
                        Step::Name(_) => None,
                    }));
                }
                Self::Template(parts) | Self::List(parts) | Self::Call(_, parts) => waiting.extend(parts),
                Self::Conditional(parts) => waiting.extend(parts.iter()),
                Self::Binary(_, sides) => waiting.extend(sides.iter()),
                Self::Not(inner) => waiting.push(inner),
                Self::Object(members) => waiting.extend(members.iter().flat_map(|(name, value)| [name, value])),
            }
        }
    }
}

fn is_evaluated(operator: BinaryOperator) -> bool {
    use BinaryOperator::{And, Eq, NotEq, Or};
    matches!(operator, Eq | NotEq | And | Or)
}

/// A declared variable.
#[derive(Debug, Clone, Default)]
pub(super) struct Variable {
    /// The default value, without references.
    pub(super) default: Option<Constant>,
    /// `const`: Terraform evaluates those with `true` alone at `init` (since 1.15), OpenTofu all but those with `false`
    /// (since 1.8; `false` since 1.12).
    pub(super) is_const: Option<bool>,
    /// True for `nullable = false`: null means the default.
    pub(super) is_never_null: bool,
    /// Ephemeral or sensitive variables, which OpenTofu refuses at `init`.
    pub(super) is_secret: bool,
}

/// Variables and locals of one folder.
pub(super) struct Scope<'a> {
    client: ClientKind,
    role: FolderRole,
    variables: &'a BTreeMap<String, Variable>,
    locals: &'a BTreeMap<String, Formula>,
    inputs: &'a Inputs,
    known: RefCell<BTreeMap<&'a str, Constant>>,
    under_evaluation: RefCell<BTreeSet<&'a str>>,
    steps: Cell<usize>,
}

static NO_VARIABLES: BTreeMap<String, Variable> = BTreeMap::new();
static NO_LOCALS: BTreeMap<String, Formula> = BTreeMap::new();
static NO_INPUTS: Inputs = Inputs::new();

impl Scope<'static> {
    /// A scope without variables and locals.
    pub(super) fn empty() -> Self {
        Scope::new(ClientKind::Opentofu, FolderRole::Called, &NO_VARIABLES, &NO_LOCALS, &NO_INPUTS)
    }
}

impl<'a> Scope<'a> {
    /// The scope of a folder; `inputs` are the values of its variables.
    pub(super) fn new(
        client: ClientKind,
        role: FolderRole,
        variables: &'a BTreeMap<String, Variable>,
        locals: &'a BTreeMap<String, Formula>,
        inputs: &'a Inputs,
    ) -> Self {
        let (known, under_evaluation, steps) = (RefCell::default(), RefCell::default(), Cell::default());
        Self { client, role, variables, locals, inputs, known, under_evaluation, steps }
    }

    /// Returns true if the step budget has space.
    fn spend_steps(&self, steps: usize) -> bool {
        self.steps.set(self.steps.get().saturating_add(steps));
        self.steps.get() <= MAX_STEPS
    }

    /// A list or an object within the limit of parts.
    fn bounded(&self, value: Constant) -> Constant {
        let parts = value.parts();
        match self.spend_steps(parts) && parts <= MAX_PARTS {
            true => value,
            false => Constant::unknown(format!("a value of more than {MAX_PARTS} parts")),
        }
    }

    /// The value of an expression.
    pub(super) fn value(&self, formula: &Formula) -> Constant {
        if !self.spend_steps(1) {
            return Constant::unknown("more than larder works out");
        }
        match formula {
            Formula::Value(value) => value.clone(),
            Formula::Reference(steps) => self.reference(steps),
            Formula::Template(parts) => self.template(parts),
            Formula::Conditional(parts) => match self.value(&parts[0]) {
                Constant::Text(truth) if truth == "true" => self.value(&parts[1]),
                Constant::Text(truth) if truth == "false" => self.value(&parts[2]),
                unknown @ Constant::Unknown(_) => unknown,
                _ => Constant::unknown("a condition that is neither true nor false"),
            },
            Formula::List(parts) => self.bounded(Constant::List(parts.iter().map(|part| self.value(part)).collect())),
            Formula::Object(members) => self.object(members),
            Formula::Binary(operator, sides) => self.binary(*operator, sides),
            Formula::Not(inner) => match self.value(inner) {
                Constant::Text(truth) if truth == "true" => Constant::truth(false),
                Constant::Text(truth) if truth == "false" => Constant::truth(true),
                unknown @ Constant::Unknown(_) => unknown,
                _ => Constant::unknown("a condition that is neither true nor false"),
            },
            Formula::Call(name, arguments) => self.call(name, arguments),
        }
    }

    fn template(&self, parts: &[Formula]) -> Constant {
        let mut text = String::new();
        for part in parts {
            match (self.value(part), parts) {
                // A template that is a single reference has the reference's value, of any type.
                (value, [_]) => return value,
                (Constant::Text(part), _) => text.push_str(&part),
                (unknown @ Constant::Unknown(_), _) => return unknown,
                (Constant::Null | Constant::List(_) | Constant::Object(_), _) => {
                    return Constant::unknown("a template with a value in it that is not a string");
                }
            }
            if text.len() > MAX_TEXT {
                break;
            }
        }
        Constant::text(&text)
    }

    fn object(&self, members: &[(Formula, Formula)]) -> Constant {
        let mut object = BTreeMap::new();
        for (name, value) in members {
            match self.value(name) {
                Constant::Text(name) => drop(object.insert(name, self.value(value))),
                unknown @ Constant::Unknown(_) => return unknown,
                _ => return Constant::unknown("an object with a key that is not a string"),
            }
        }
        self.bounded(Constant::Object(Arc::new(object)))
    }

    fn binary(&self, operator: BinaryOperator, sides: &[Formula; 2]) -> Constant {
        let values = [self.value(&sides[0]), self.value(&sides[1])];
        if let Some(unknown) = values.iter().find(|value| matches!(value, Constant::Unknown(_))) {
            return unknown.clone();
        }
        if values.iter().any(|value| matches!(value, Constant::List(_) | Constant::Object(_))) {
            return Constant::unknown("a comparison of lists or objects");
        }
        let [one, other] = values;
        let is_true = |value: &Constant| *value == Constant::truth(true);
        Constant::truth(match operator {
            BinaryOperator::Eq => one == other,
            BinaryOperator::NotEq => one != other,
            BinaryOperator::And => is_true(&one) && is_true(&other),
            BinaryOperator::Or => is_true(&one) || is_true(&other),
            _ => return Constant::unknown("arithmetic"),
        })
    }

    fn reference(&self, steps: &[Step]) -> Constant {
        let shown = || written(steps);
        let (value, rest) = match steps {
            [Step::Name(root), Step::Name(name), rest @ ..] if root == "var" => (self.variable(name), rest),
            [Step::Name(root), Step::Name(name), rest @ ..] if root == "local" => (self.local(name), rest),
            [Step::Name(root), Step::Name(name)] if root == "path" => (self.path(name), &[][..]),
            // A folder has one workspace at `init`: the default one.
            [Step::Name(of), Step::Name(name)]
                if of == "terraform" && name == "workspace" && self.client == ClientKind::Opentofu =>
            {
                (Constant::Text("default".to_owned()), &[][..])
            }
            [Step::Name(root), ..]
                if ["each", "count", "module", "data", "self", "resource"].contains(&root.as_str()) =>
            {
                return Constant::unknown(format!("{}, which no client knows at init", shown()));
            }
            _ => return Constant::unknown(format!("{}, which larder does not know", shown())),
        };
        rest.iter().fold(value, |value, step| {
            let key = match step {
                Step::Name(name) => Constant::Text(name.clone()),
                Step::Index(index) => self.value(index),
            };
            match (value, key) {
                (unknown @ Constant::Unknown(_), _) | (_, unknown @ Constant::Unknown(_)) => unknown,
                (Constant::Object(members), Constant::Text(name)) => {
                    members.get(&name).cloned().unwrap_or_else(|| absent(&shown()))
                }
                (Constant::List(parts), Constant::Text(number)) => {
                    let part = number.parse::<usize>().ok().and_then(|number| parts.get(number));
                    part.cloned().unwrap_or_else(|| absent(&shown()))
                }
                (Constant::Null | Constant::Text(_) | Constant::List(_) | Constant::Object(_), _) => absent(&shown()),
            }
        })
    }

    fn variable(&self, name: &str) -> Constant {
        let Some((_, variable)) = self.variables.get_key_value(name) else {
            return Constant::unknown(format!("var.{name}, which nothing declares"));
        };
        match self.client {
            ClientKind::Terraform if variable.is_const != Some(true) => {
                let remedy = "add it, which Terraform takes since 1.15, or write a plain string";
                return Constant::unknown_until(format!("var.{name}, which has no const = true"), remedy);
            }
            ClientKind::Opentofu if variable.is_const == Some(false) => {
                return Constant::unknown(format!("var.{name}, which has const = false"));
            }
            ClientKind::Opentofu if variable.is_secret => {
                return Constant::unknown(format!("var.{name}, which is sensitive or ephemeral"));
            }
            ClientKind::Terraform | ClientKind::Opentofu => {}
        }
        let given = self.inputs.get(name).filter(|given| !variable.is_never_null || **given != Constant::Null);
        match (given, &variable.default) {
            (Some(given), _) => given.clone(),
            (None, Some(default)) => default.clone(),
            (None, None) => {
                let remedy = "give it a line in terraform.tfvars, or name what it comes to";
                Constant::unknown_until(
                    format!("var.{name}, which has no default and no value that larder sees"),
                    remedy,
                )
            }
        }
    }

    fn local(&self, name: &str) -> Constant {
        let Some((name, formula)) = self.locals.get_key_value(name) else {
            return Constant::unknown(format!("local.{name}, which nothing declares"));
        };
        if let Some(known) = self.known.borrow().get(name.as_str()) {
            return known.clone();
        }
        let (is_new, depth) = {
            let mut under_evaluation = self.under_evaluation.borrow_mut();
            (under_evaluation.insert(name), under_evaluation.len())
        };
        if !is_new {
            return Constant::unknown(format!("local.{name}, which refers to itself"));
        }
        let value = match depth > DEEPEST {
            true => Constant::unknown(format!("locals that refer to each other more than {DEEPEST} deep")),
            false => self.value(formula),
        };
        self.under_evaluation.borrow_mut().remove(name.as_str());
        self.known.borrow_mut().insert(name, value.clone());
        value
    }

    /// Clients run in the root: paths are relative to it.
    fn path(&self, name: &str) -> Constant {
        match (name, self.role) {
            ("root", _) | ("module", FolderRole::Root) => Constant::Text(".".to_owned()),
            _ => Constant::unknown(format!("path.{name}, which larder does not know")),
        }
    }

    /// The functions that configurations use for sources and versions.
    fn call(&self, name: &str, arguments: &[Formula]) -> Constant {
        let values: Vec<Constant> = arguments.iter().map(|argument| self.value(argument)).collect();
        let other = || Constant::unknown(format!("the function {name}(), as it is used there"));
        let texts = || values.iter().map(Constant::as_text).collect::<Option<Vec<&str>>>();
        match (name, values.as_slice()) {
            ("lookup", [Constant::Object(members), Constant::Text(key), rest @ ..]) if rest.len() < 2 => {
                return members.get(key).or(rest.first()).cloned().unwrap_or_else(other);
            }
            ("coalesce", values) => {
                let is_something =
                    |value: &&Constant| **value != Constant::Null && **value != Constant::Text(String::new());
                return values.iter().find(is_something).cloned().unwrap_or_else(other);
            }
            ("tostring", [value @ (Constant::Text(_) | Constant::Null)]) => return value.clone(),
            ("join", [Constant::Text(separator), Constant::List(parts)]) => {
                let parts: Option<Vec<&str>> = parts.iter().map(Constant::as_text).collect();
                return parts.map_or_else(other, |parts| joined(separator, &parts));
            }
            _ => {}
        }
        if let Some(unknown) = values.iter().find(|value| matches!(value, Constant::Unknown(_))) {
            return unknown.clone();
        }
        let Some(texts) = texts() else { return other() };
        Constant::text(&match (name, texts.as_slice()) {
            ("lower", [text]) => text.to_lowercase(),
            ("upper", [text]) => text.to_uppercase(),
            ("trimspace", [text]) => text.trim().to_owned(),
            ("trimprefix", [text, prefix]) => text.strip_prefix(prefix).unwrap_or(text).to_owned(),
            ("trimsuffix", [text, suffix]) => text.strip_suffix(suffix).unwrap_or(text).to_owned(),
            // A pattern between slashes is a regular expression.
            ("replace", [text, from, to]) if !(from.len() > 1 && from.starts_with('/') && from.ends_with('/')) => {
                return joined(to, &text.split(from).collect::<Vec<_>>());
            }
            ("format", [format, values @ ..]) if format.matches('%').count() == format.matches("%s").count() => {
                let pieces: Vec<&str> = format.split("%s").collect();
                if pieces.len() != values.len() + 1 {
                    return other();
                }
                let values = values.iter().copied().chain([""]);
                let pieces = pieces.into_iter().zip(values).flat_map(|(piece, value)| [piece, value]);
                return joined("", &pieces.collect::<Vec<_>>());
            }
            _ => return other(),
        })
    }
}

/// Joins texts with a separator, up to the length limit.
fn joined(separator: &str, parts: &[&str]) -> Constant {
    let bytes = parts.iter().map(|part| part.len() + separator.len()).sum::<usize>().saturating_sub(separator.len());
    match bytes > MAX_TEXT {
        true => Constant::unknown(format!("a text of more than {MAX_TEXT} bytes")),
        false => Constant::Text(parts.join(separator)),
    }
}

fn absent(subject: &str) -> Constant {
    Constant::unknown(format!("{subject}, which is not there"))
}

/// A reference as text.
fn written(steps: &[Step]) -> String {
    let mut text = String::new();
    for step in steps.iter().take(8) {
        match step {
            Step::Name(name) if text.is_empty() => text.push_str(name),
            Step::Name(name) => text.extend([".", name]),
            Step::Index(Formula::Value(Constant::Text(key))) => text.push_str(&format!("[{key:?}]")),
            Step::Index(_) => text.push_str("[…]"),
        }
    }
    text
}

/// Returns true for a literal number, boolean or null.
pub(super) fn is_other_than_text(expression: &Expression) -> bool {
    match expression {
        Expression::Parenthesis(inner) => is_other_than_text(inner.inner()),
        other => matches!(other, Expression::Null(_) | Expression::Bool(_) | Expression::Number(_)),
    }
}

/// The names of a reference such as `aws.west`, up to the first index; empty for anything else.
pub(super) fn reference(expression: &Expression) -> Vec<String> {
    match expression {
        Expression::Variable(name) => vec![name.as_str().to_owned()],
        Expression::Traversal(traversal) => {
            let Expression::Variable(first) = &traversal.expr else { return Vec::new() };
            let attribute = |operator: &TraversalOperator| match operator {
                TraversalOperator::GetAttr(name) => Some(name.as_str().to_owned()),
                TraversalOperator::AttrSplat(_)
                | TraversalOperator::FullSplat(_)
                | TraversalOperator::Index(_)
                | TraversalOperator::LegacyIndex(_) => None,
            };
            let rest = traversal.operators.iter().map_while(|operator| attribute(operator));
            std::iter::once(first.as_str().to_owned()).chain(rest).collect()
        }
        // The form before 0.12, which is still accepted.
        Expression::String(text) => reference_in(text),
        _ => Vec::new(),
    }
}

/// The references in a string.
pub(super) fn reference_in(text: &str) -> Vec<String> {
    let text = text.strip_prefix("${").and_then(|text| text.strip_suffix('}')).unwrap_or(text).trim();
    let text = text.split('[').next().unwrap_or(text);
    text.split('.').map(|name| name.trim().to_owned()).collect()
}
