//! What an expression comes to without knowing anything else: clients work out no more of a source or a version.

use hcl_edit::expr::{Expression, TraversalOperator};
use hcl_edit::template::Element;

/// What a value comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Constant {
    /// Nothing.
    Null,
    /// A text, or a number or a truth value as one.
    Text(String),
    /// A list or an object.
    Composed,
    /// It depends on something else.
    Computed,
}

/// What an expression comes to. Arithmetic is left out: nobody writes a version as a sum.
pub(super) fn of(expression: &Expression) -> Constant {
    match expression {
        Expression::Null(_) => Constant::Null,
        Expression::Bool(value) => Constant::Text(value.to_string()),
        Expression::Number(value) => Constant::Text(value.to_string()),
        Expression::String(text) => Constant::Text(text.to_string()),
        Expression::StringTemplate(template) => of_template(template),
        Expression::HeredocTemplate(heredoc) => of_template(&heredoc.template),
        Expression::Parenthesis(inner) => of(inner.inner()),
        Expression::Conditional(conditional) => match of(&conditional.cond_expr) {
            Constant::Text(truth) if truth == "true" => of(&conditional.true_expr),
            Constant::Text(truth) if truth == "false" => of(&conditional.false_expr),
            _ => Constant::Computed,
        },
        Expression::Array(_) | Expression::Object(_) => Constant::Composed,
        Expression::Variable(_)
        | Expression::FuncCall(_)
        | Expression::Traversal(_)
        | Expression::UnaryOp(_)
        | Expression::BinaryOp(_)
        | Expression::ForExpr(_) => Constant::Computed,
    }
}

/// Whether it is a number, a truth value or nothing, as it is written.
pub(super) fn is_other_than_text(expression: &Expression) -> bool {
    match expression {
        Expression::Parenthesis(inner) => is_other_than_text(inner.inner()),
        other => matches!(other, Expression::Null(_) | Expression::Bool(_) | Expression::Number(_)),
    }
}

fn of_template<'a>(template: impl IntoIterator<Item = &'a Element>) -> Constant {
    let mut text = String::new();
    for element in template {
        match element {
            Element::Literal(literal) => text.push_str(literal),
            Element::Interpolation(inner) => match of(&inner.expr) {
                Constant::Text(inner) => text.push_str(&inner),
                _ => return Constant::Computed,
            },
            Element::Directive(_) => return Constant::Computed,
        }
    }
    Constant::Text(text)
}

/// The names of a reference such as `aws.west`, up to the first index; empty where it is none.
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
        // As it was written before 0.12, and is accepted still.
        Expression::String(text) => reference_in(text),
        _ => Vec::new(),
    }
}

/// The same of a text.
pub(super) fn reference_in(text: &str) -> Vec<String> {
    let text = text.strip_prefix("${").and_then(|text| text.strip_suffix('}')).unwrap_or(text).trim();
    let text = text.split('[').next().unwrap_or(text);
    text.split('.').map(|name| name.trim().to_owned()).collect()
}
