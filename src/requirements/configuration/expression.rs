//! Expressions that clients evaluate at `init`: sources, versions, and the values that they depend on. A parsed expression
//! does not borrow from its file, because a value may be in another file than its use.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use hcl_edit::expr::{BinaryOperator, Expression, ObjectKey, TraversalOperator, UnaryOperator};
use hcl_edit::template::{Element, Template};

use super::super::ClientKind;
use super::super::hcl;
use super::ModuleRole;

/// The maximum depth of references between locals.
const MAX_LOCAL_DEPTH: usize = 128;
/// The maximum length of a text value, in bytes: sources and versions are shorter.
const MAX_TEXT_BYTES: usize = 4096;
/// The maximum number of parts of a list or object, including nested ones. Locals that each contain the next one twice
/// would grow without limit.
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

/// A known value, or the cause why it is unknown.
type Known = Result<Constant, Arc<str>>;

/// A cause with the remedy where there is no better one.
fn cause(depends_on: impl fmt::Display) -> Arc<str> {
    format!("{depends_on}: write a plain string instead, or name the address in the order").into()
}

impl Constant {
    pub(super) fn unknown(depends_on: impl fmt::Display) -> Self {
        Self::Unknown(cause(depends_on))
    }

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

    /// A text value; unknown if the text is too long.
    fn text(text: &str) -> Self {
        joined("", &[text]).unwrap_or_else(Self::Unknown)
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

impl Step {
    fn name(&self) -> Option<&str> {
        if let Self::Name(name) = self { Some(name) } else { None }
    }
}

impl Formula {
    /// Parses an expression of a file.
    pub(super) fn of(expression: &Expression) -> Self {
        let all = |expressions: &mut dyn Iterator<Item = &Expression>| expressions.map(Self::of).collect::<Vec<_>>();
        match expression {
            Expression::Null(_) => Self::Value(Constant::Null),
            Expression::Bool(value) => Self::Value(Constant::from_bool(*value.value())),
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
                Self::Object(object.iter().map(|(key, value)| (Self::of_key(key), Self::of(value.expr()))).collect())
            }
            Expression::Variable(name) => Self::Reference(vec![Step::Name(name.as_str().to_owned())]),
            Expression::Traversal(traversal) => {
                let Expression::Variable(first) = &traversal.expr else {
                    return Self::unknown("an index into a computed value");
                };
                let step = |operator: &TraversalOperator| match operator {
                    TraversalOperator::GetAttr(name) => Some(Step::Name(name.as_str().to_owned())),
                    TraversalOperator::Index(index) => Some(Step::Index(Self::of(index))),
                    TraversalOperator::LegacyIndex(index) => Some(Step::Name(index.value().to_string())),
                    TraversalOperator::AttrSplat(_) | TraversalOperator::FullSplat(_) => None,
                };
                let steps: Option<Vec<Step>> = traversal.operators.iter().map(|operator| step(operator)).collect();
                match steps {
                    Some(steps) => {
                        let first = Step::Name(first.as_str().to_owned());
                        Self::Reference(std::iter::once(first).chain(steps).collect())
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
            // Real configurations compute no source or version with arithmetic.
            Expression::UnaryOp(_) | Expression::BinaryOp(_) => Self::unknown("arithmetic"),
            Expression::ForExpr(_) => Self::unknown("a for expression"),
        }
    }

    /// Parses the key of an object's member: a plain name is text.
    pub(super) fn of_key(key: &ObjectKey) -> Self {
        let name = match key {
            ObjectKey::Ident(name) => name,
            ObjectKey::Expression(key) => match hcl::strip_duplicate_mark(key) {
                Expression::Variable(name) => &**name,
                other => return Self::of(other),
            },
        };
        Self::Value(Constant::Text(name.as_str().to_owned()))
    }

    /// The names of a reference such as `aws.west`, up to the first index; empty for anything else.
    pub(super) fn reference_names(&self) -> Vec<String> {
        match self {
            Self::Reference(steps) => steps.iter().map_while(Step::name).map(str::to_owned).collect(),
            // A reference as a string: the syntax before Terraform 0.12, which clients still accept.
            Self::Value(Constant::Text(text)) => names_in(text),
            _ => Vec::new(),
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
    pub(super) fn constant(&self) -> Constant {
        Scope::empty().value(self)
    }

    /// Adds the variables that the expression depends on, also through locals.
    pub(super) fn add_variables(
        &self,
        locals: &BTreeMap<String, Self>,
        visited_locals: &mut BTreeSet<String>,
        variables: &mut BTreeSet<String>,
    ) {
        let mut pending = vec![self];
        while let Some(formula) = pending.pop() {
            match formula {
                Self::Value(_) => {}
                Self::Reference(steps) => {
                    let mut names = steps.iter().map_while(Step::name);
                    match (names.next(), names.next()) {
                        (Some("var"), Some(name)) => drop(variables.insert(name.to_owned())),
                        (Some("local"), Some(name)) if visited_locals.insert(name.to_owned()) => {
                            pending.extend(locals.get(name));
                        }
                        _ => {}
                    }
                    pending.extend(steps.iter().filter_map(|step| match step {
                        Step::Index(index) => Some(index),
                        Step::Name(_) => None,
                    }));
                }
                Self::Template(parts) | Self::List(parts) | Self::Call(_, parts) => pending.extend(parts),
                Self::Conditional(parts) => pending.extend(parts.iter()),
                Self::Binary(_, sides) => pending.extend(sides.iter()),
                Self::Not(inner) => pending.push(inner),
                Self::Object(members) => pending.extend(members.iter().flat_map(|(name, value)| [name, value])),
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
    locals: &'a BTreeMap<String, Formula>,
    inputs: &'a Inputs,
    /// The values of locals evaluated so far.
    evaluated_locals: RefCell<BTreeMap<&'a str, Constant>>,
    /// The locals being evaluated: a reference to one of them is a cycle.
    under_evaluation: RefCell<BTreeSet<&'a str>>,
    steps: Cell<usize>,
}

static NO_VARIABLES: BTreeMap<String, Variable> = BTreeMap::new();
static NO_LOCALS: BTreeMap<String, Formula> = BTreeMap::new();
static NO_INPUTS: Inputs = Inputs::new();

impl<'a> Scope<'a> {
    /// A scope without variables and locals.
    pub(super) fn empty() -> Self {
        Self::new(ClientKind::Opentofu, ModuleRole::Child, &NO_VARIABLES, &NO_LOCALS, &NO_INPUTS)
    }

    /// The scope of a folder; `inputs` are the values of its variables.
    pub(super) fn new(
        client: ClientKind,
        role: ModuleRole,
        variables: &'a BTreeMap<String, Variable>,
        locals: &'a BTreeMap<String, Formula>,
        inputs: &'a Inputs,
    ) -> Self {
        let (evaluated_locals, under_evaluation, steps) = (RefCell::default(), RefCell::default(), Cell::default());
        Self { client, role, variables, locals, inputs, evaluated_locals, under_evaluation, steps }
    }

    /// Counts evaluation steps; returns false beyond the limit.
    fn count_steps(&self, steps: usize) -> bool {
        self.steps.set(self.steps.get().saturating_add(steps));
        self.steps.get() <= MAX_STEPS
    }

    /// A list or an object; unknown if it has too many parts.
    fn limited(&self, value: Constant) -> Known {
        let parts = value.count_parts();
        match self.count_steps(parts) && parts <= MAX_PARTS {
            true => Ok(value),
            false => Err(cause(format!("a value of more than {MAX_PARTS} parts"))),
        }
    }

    /// The value of an expression.
    pub(super) fn value(&self, formula: &Formula) -> Constant {
        self.known(formula).unwrap_or_else(Constant::Unknown)
    }

    fn known(&self, formula: &Formula) -> Known {
        if !self.count_steps(1) {
            return Err(cause("more steps than larder evaluates"));
        }
        match formula {
            Formula::Value(value) => value.clone().known(),
            Formula::Reference(steps) => self.reference(steps),
            Formula::Template(parts) => self.template(parts),
            Formula::Conditional(parts) => self.known(if self.truth(&parts[0])? { &parts[1] } else { &parts[2] }),
            Formula::List(parts) => self.limited(Constant::List(parts.iter().map(|part| self.value(part)).collect())),
            Formula::Object(members) => {
                let member = |(name, value)| match self.known(name)? {
                    Constant::Text(name) => Ok((name, self.value(value))),
                    _ => Err(cause("an object with a key that is not a string")),
                };
                let members = members.iter().map(|(name, value)| member((name, value)));
                self.limited(Constant::Object(Arc::new(members.collect::<Result<_, _>>()?)))
            }
            Formula::Binary(operator, sides) => self.binary(*operator, sides),
            Formula::Not(inner) => Ok(Constant::from_bool(!self.truth(inner)?)),
            Formula::Call(name, arguments) => self.call(name, arguments),
        }
    }

    fn truth(&self, condition: &Formula) -> Result<bool, Arc<str>> {
        let value = self.known(condition)?;
        let truth = value.as_text().and_then(|text| text.parse().ok());
        truth.ok_or_else(|| cause("a condition that is neither true nor false"))
    }

    fn template(&self, parts: &[Formula]) -> Known {
        let mut text = String::new();
        for part in parts {
            match (self.known(part)?, parts) {
                // A template that is a single reference has the reference's value, of any type.
                (value, [_]) => return Ok(value),
                (Constant::Text(part), _) => text.push_str(&part),
                _ => return Err(cause("a template with a value in it that is not a string")),
            }
            if text.len() > MAX_TEXT_BYTES {
                break;
            }
        }
        joined("", &[&text])
    }

    fn binary(&self, operator: BinaryOperator, sides: &[Formula; 2]) -> Known {
        let (left, right) = (self.known(&sides[0])?, self.known(&sides[1])?);
        if [&left, &right].iter().any(|value| matches!(value, Constant::List(_) | Constant::Object(_))) {
            return Err(cause("a comparison of lists or objects"));
        }
        let is_true = |value: &Constant| *value == Constant::from_bool(true);
        Ok(Constant::from_bool(match operator {
            BinaryOperator::Eq => left == right,
            BinaryOperator::NotEq => left != right,
            BinaryOperator::And => is_true(&left) && is_true(&right),
            BinaryOperator::Or => is_true(&left) || is_true(&right),
            _ => return Err(cause("arithmetic")),
        }))
    }

    fn reference(&self, steps: &[Step]) -> Known {
        let shown = || reference_text(steps);
        let names: Vec<&str> = steps.iter().map_while(Step::name).take(2).collect();
        let (value, remaining_steps) = match (names.as_slice(), steps) {
            (["var", name], [_, _, rest @ ..]) => (self.variable(name)?, rest),
            (["local", name], [_, _, rest @ ..]) => (self.local(name).known()?, rest),
            // Clients run in the root, so paths are relative to it.
            (["path", "root"], [_, _]) => (Constant::Text(".".to_owned()), &[][..]),
            (["path", "module"], [_, _]) if self.role == ModuleRole::Root => (Constant::Text(".".to_owned()), &[][..]),
            // A folder has one workspace at `init`: the default one.
            (["terraform", "workspace"], [_, _]) if self.client == ClientKind::Opentofu => {
                (Constant::Text("default".to_owned()), &[][..])
            }
            (["each" | "count" | "module" | "data" | "self" | "resource", ..], _) => {
                return Err(cause(format!("{}, which no client knows at init", shown())));
            }
            _ => return Err(cause(format!("{}, which larder does not know", shown()))),
        };
        remaining_steps.iter().try_fold(value, |value, step| {
            let key = match step {
                Step::Name(name) => Constant::Text(name.clone()),
                Step::Index(index) => self.known(index)?,
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
        let input = self.inputs.get(name).filter(|input| !variable.is_never_null || **input != Constant::Null);
        let value = input.or(variable.default.as_ref()).ok_or_else(|| {
            format!(
                "var.{name}, which has no default and no value that larder sees: set it in terraform.tfvars, or name the address in the order"
            )
        })?;
        value.clone().known()
    }

    fn local(&self, name: &str) -> Constant {
        let Some((name, formula)) = self.locals.get_key_value(name) else {
            return Constant::unknown(format!("local.{name}, which nothing declares"));
        };
        if let Some(value) = self.evaluated_locals.borrow().get(name.as_str()) {
            return value.clone();
        }
        let (is_new, depth) = {
            let mut under_evaluation = self.under_evaluation.borrow_mut();
            (under_evaluation.insert(name), under_evaluation.len())
        };
        if !is_new {
            return Constant::unknown(format!("local.{name}, which refers to itself"));
        }
        let value = match depth > MAX_LOCAL_DEPTH {
            true => Constant::unknown(format!("locals that refer to each other more than {MAX_LOCAL_DEPTH} deep")),
            false => self.value(formula),
        };
        self.under_evaluation.borrow_mut().remove(name.as_str());
        self.evaluated_locals.borrow_mut().insert(name, value.clone());
        value
    }

    /// The functions that configurations use for sources and versions.
    fn call(&self, name: &str, arguments: &[Formula]) -> Known {
        let values: Vec<Constant> = arguments.iter().map(|argument| self.value(argument)).collect();
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
fn reference_text(steps: &[Step]) -> String {
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

/// The names of a reference in a string.
pub(super) fn names_in(text: &str) -> Vec<String> {
    let text = text.strip_prefix("${").and_then(|text| text.strip_suffix('}')).unwrap_or(text).trim();
    let text = text.split('[').next().unwrap_or(text);
    text.split('.').map(|name| name.trim().to_owned()).collect()
}
