//! What the parser says, in our words.

use cel::ParseErrors;
use cel::common::ast::{Expr, IdedExpr, LiteralValue, operators};

use super::Problem;
use super::path::is_identifier;

/// How a part of an expression is named in messages: the path that it spells, or what it does.
pub(super) fn label(expr: &IdedExpr) -> String {
    match &expr.expr {
        Expr::Ident(name) => name.clone(),
        Expr::Select(select) => format!("{}.{}", label(&select.operand), select.field),
        Expr::Literal(_) => "a literal".to_owned(),
        Expr::List(_) => "a list".to_owned(),
        Expr::Map(_) => "a record".to_owned(),
        Expr::Call(call) => match (call.func_name.as_str(), call.args.as_slice(), &call.target) {
            (
                operators::OPT_SELECT,
                [operand, IdedExpr { expr: Expr::Literal(LiteralValue::String(field)), .. }],
                _,
            ) => {
                format!("{}.?{}", label(operand), field.inner())
            }
            (operators::INDEX | operators::OPT_INDEX, [operand, ..], _) => format!("{}[…]", label(operand)),
            (name, _, Some(_)) => format!("….{name}(…)"),
            (name, _, None) if is_identifier(name) => format!("{name}(…)"),
            (name, ..) => name.replace('_', " ").trim().trim_start_matches('@').to_owned(),
        },
        _ => "the expression".to_owned(),
    }
}

/// The first mistake of syntax, in our words.
pub(super) fn syntax(text: &str, errors: &ParseErrors) -> Problem {
    let Some(error) = errors.errors.first() else {
        return Problem::new(0, "not a valid expression");
    };
    let at = offset(text, error.pos);
    let quoted = |after: &str| {
        let rest = error.msg.split_once(after).map_or("", |(_, rest)| rest);
        let end = rest.find("' expecting").or_else(|| rest.rfind('\'')).unwrap_or(rest.len());
        rest[..end].to_owned()
    };
    if let Some((_, found)) = error.msg.split_once("token recognition error at: '") {
        let found = found.strip_suffix('\'').unwrap_or(found);
        if found.starts_with(['\'', '"']) {
            return Problem::new(at, "a text in the expression is not closed").fix("add the closing quote");
        }
        return Problem::new(at, format!("`{found}` has no meaning in an expression"));
    }
    if error.msg.contains("'<EOF>'") && !error.msg.contains("expecting <EOF>") {
        return Problem::new(at, "the expression ends too early");
    }
    for after in ["extraneous input '", "mismatched input '", "no viable alternative at input '"] {
        if error.msg.contains(after) {
            return Problem::new(at, format!("`{}` is not expected here", quoted(after)));
        }
    }
    if let Some((_, name)) = error.msg.split_once("reserved identifier: ") {
        return Problem::new(at, format!("`{name}` is a reserved word"));
    }
    let message = error.msg.trim_start_matches("Syntax error: ");
    Problem::new(at, format!("not a valid expression: {message}"))
}

/// The byte offset of a line and column, both from 1.
fn offset(text: &str, (line, column): (isize, isize)) -> usize {
    let line = usize::try_from(line - 1).unwrap_or(0);
    let column = usize::try_from(column - 1).unwrap_or(0);
    let before: usize = text.split_inclusive('\n').take(line).map(str::len).sum();
    let here = text.get(before..).unwrap_or("");
    before + here.char_indices().nth(column).map_or(here.len(), |(at, _)| at)
}
