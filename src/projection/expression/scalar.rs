//! YAML scalars as expressions: literals kept digit by digit, texts, and the mistakes that YAML itself invites.

use super::{Expression, Problem};
use crate::config::yaml::{Kind, Mistake, Node, Place, Style};
use crate::projection::Value;

/// The text of the file, by lines, to see what stands around a scalar.
#[derive(Debug, Clone, Copy)]
pub struct SourceText<'t>(pub &'t str);

impl<'t> SourceText<'t> {
    /// The rest of the line from `place` on.
    fn from(self, place: &Place) -> &'t str {
        let line = self.0.lines().nth(place.line.saturating_sub(1)).unwrap_or("");
        line.char_indices().nth(place.column.saturating_sub(1)).map_or("", |(at, _)| &line[at..])
    }

    /// What follows a plain scalar on its line.
    fn after(self, place: &Place, scalar: &str) -> &'t str {
        self.from(place).strip_prefix(scalar).unwrap_or("")
    }

    /// The place of a byte of a scalar's text.
    fn place_in(self, place: &Place, text: &str, at: usize) -> Place {
        let before = text.get(..at).unwrap_or(text);
        let line = before.matches('\n').count();
        let column = before.rsplit('\n').next().unwrap_or("").chars().count();
        let quote = usize::from(self.from(place).starts_with(['"', '\'']));
        Place { file: place.file.clone(), line: place.line + line, column: place.column + quote + column }
    }
}

/// Reads a node as an expression: a scalar, or `{text: …}`.
///
/// # Errors
/// What is wrong with it, at its place in the file.
pub fn expression(node: &Node, source: SourceText<'_>) -> Result<Expression, Mistake> {
    match &node.kind {
        Kind::Scalar { text, style } => scalar(node, text, *style, source),
        Kind::Map(entries) => match entries.as_slice() {
            [entry] if entry.key == "text" => {
                let text = entry.value.text("text")?;
                Ok(Expression::literal(Value::from(text), format!("{text:?}")))
            }
            _ => Err(Mistake::new(&node.place, "an expression is a single value, not a mapping")
                .fix("write an expression such as value.name, or a text as {text: paid}")),
        },
        Kind::List(_) => Err(Mistake::new(&node.place, "an expression is a single value, not a list")
            .fix("write it in quotes: \"[value.a, value.b]\"")),
    }
}

/// Whether a plain scalar is a number, `true`, `false` or `null` of JSON's grammar.
#[must_use]
pub fn is_json_scalar(text: &str) -> bool {
    matches!(text, "true" | "false" | "null") || is_json_number(text)
}

fn is_json_number(text: &str) -> bool {
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let text = text.strip_prefix('-').unwrap_or(text);
    let whole = digits(text);
    if whole == 0 || (whole > 1 && text.starts_with('0')) {
        return false;
    }
    let mut rest = &text[whole..];
    if let Some(fraction) = rest.strip_prefix('.') {
        let count = digits(fraction);
        if count == 0 {
            return false;
        }
        rest = &fraction[count..];
    }
    if let Some(exponent) = rest.strip_prefix(['e', 'E']) {
        let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        let count = digits(exponent);
        return count > 0 && count == exponent.len();
    }
    rest.is_empty()
}

fn scalar(node: &Node, text: &str, style: Style, source: SourceText<'_>) -> Result<Expression, Mistake> {
    if style == Style::Plain {
        if text == "~" {
            return Err(Mistake::new(&node.place, "there is no expression here")
                .fix("write an expression such as value.name, or null to clear the column"));
        }
        if is_json_scalar(text) {
            return Ok(Expression::literal(json_literal(text), text));
        }
    }
    Expression::compile(text).map_err(|problem| {
        let place = source.place_in(&node.place, text, problem.at);
        let cut = (style == Style::Plain).then(|| cut_short(&node.place, text, source)).flatten();
        match cut {
            Some((message, fix)) => Mistake::new(&node.place, message).fix(fix),
            None => with_fix(Mistake::new(&place, problem.message.clone()), fix_of(problem, text)),
        }
    })
}

fn json_literal(text: &str) -> Value {
    match text {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        "null" => Value::Null,
        // `-0` and everything that is not written as a whole number keeps its text.
        _ => match text.parse::<i64>() {
            Ok(number) if text != "-0" => Value::Int(number),
            _ => Value::Number(text.into()),
        },
    }
}

fn with_fix(mistake: Mistake, fix: Option<String>) -> Mistake {
    match fix {
        Some(fix) => mistake.fix(fix),
        None => mistake,
    }
}

/// A text without any operator is most often a text that lost its quotes.
fn fix_of(problem: Problem, text: &str) -> Option<String> {
    let words = text.contains(' ')
        && text.chars().all(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_' | ',' | ':' | '/'));
    problem.fix.or_else(|| {
        words.then(|| {
            format!("for the text write \"'{text}'\" or {{text: {text}}}; an expression computes a value")
        })
    })
}

/// What YAML cut off a plain scalar: at a comma or bracket in flow style, or at ` #`.
fn cut_short(place: &Place, text: &str, source: SourceText<'_>) -> Option<(&'static str, &'static str)> {
    let after = source.after(place, text);
    let next = after.trim_start();
    if next.starts_with('#') && next.len() < after.len() {
        return Some((
            "the expression is cut at ` #`, where YAML begins a comment",
            "put the whole expression in quotes",
        ));
    }
    let open = text.matches(['(', '[', '{']).count() > text.matches([')', ']', '}']).count();
    let quote = text.matches('\'').count() % 2 == 1 || text.matches('"').count() % 2 == 1;
    if (open || quote) && next.starts_with(',') {
        return Some((
            "the expression is cut at a comma, which ends a value between `{` and `}`",
            "put the whole expression in quotes, or write one entry a line",
        ));
    }
    if (open || quote) && next.starts_with(['}', ']']) {
        return Some((
            "the expression is cut at a bracket, which ends a value between `{` and `}`",
            "put the whole expression in quotes, or write one entry a line",
        ));
    }
    None
}

/// Explains a mistake of YAML's syntax, where it comes from an expression that YAML reads otherwise.
#[must_use]
pub fn explain(mistake: Mistake, source: SourceText<'_>) -> Mistake {
    // What is not valid YAML may have been explained by its indentation.
    if mistake.fix.is_some() && mistake.message.starts_with("not valid YAML") {
        return mistake;
    }
    let line = source.0.lines().nth(mistake.place.line.saturating_sub(1)).unwrap_or("");
    let value = line.split_once(": ").map_or("", |(_, value)| value.trim_start());
    let fix = match value.chars().next() {
        Some('!') => "an expression that begins with `!` needs quotes: \"!value.flag\"",
        Some('*' | '&' | '@' | '`' | '%') => "an expression that begins with this character needs quotes",
        _ if line.contains('{') && (line.contains('[') || line.contains('"')) => {
            "between `{` and `}` an expression with brackets, quotes or commas needs quotes around it; or write one entry a line"
        }
        _ if mistake.message.contains("mapping values are not allowed") => {
            "a text with `: ` needs quotes around it, so does an expression with `? … : …`"
        }
        _ => return mistake,
    };
    mistake.fix(fix)
}
