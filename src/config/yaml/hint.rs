//! What was likely meant where a text is not valid YAML: indentation, mostly.

/// What to write instead, where it can be told from the lines around the place that the parser names (both from 1).
pub(super) fn hint(text: &str, line: usize, column: usize, problem: &str) -> Option<String> {
    let lines: Vec<&str> = text.lines().collect();
    let here = *lines.get(line.checked_sub(1)?)?;
    let blank = here.len() - here.trim_start().len();
    if here[..blank].contains('\t') {
        return Some("indent with spaces, not with tabs".to_owned());
    }
    let above = levels(&lines[..line - 1]);
    if problem.contains("mapping values are not allowed") {
        return deeper(&lines, here, column, &above);
    }
    let out_of_line = ["did not find expected key", "did not find expected '-'", "expected <document start>"];
    if out_of_line.iter().any(|part| problem.contains(part)) {
        return in_no_line(here, &above);
    }
    if problem.contains("illegal placement of ':'") {
        return Some("close the bracket `[` or `{` that is open in a line above".to_owned());
    }
    problem.contains("simple key expected").then(|| "write a key with its value: `key: value`".to_owned())
}

/// A level of indentation that is open: its spaces, and the line, from 1, that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Level {
    spaces: usize,
    line: usize,
    is_item: bool,
}

/// The levels that are open at the end of these lines, the deepest first.
fn levels(lines: &[&str]) -> Vec<Level> {
    let mut levels: Vec<Level> = Vec::new();
    for (index, line) in lines.iter().enumerate().rev() {
        let content = line.trim_start();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        let mut spaces = line.len() - content.len();
        let mut of_line = Vec::new();
        let mut rest = content;
        // `- - key: value` opens a level for each dash, and one for the key.
        while let Some(after) = rest.strip_prefix("- ") {
            of_line.push(Level { spaces, line: index + 1, is_item: true });
            let item = after.trim_start();
            spaces += rest.len() - item.len();
            rest = item;
        }
        of_line.push(Level { spaces, line: index + 1, is_item: false });
        for level in of_line.into_iter().rev() {
            if levels.last().is_none_or(|deeper| level.spaces < deeper.spaces) {
                levels.push(level);
            }
        }
    }
    levels
}

/// Whether a line is a key with a value behind it.
fn has_value(line: &str) -> bool {
    line.split_once(": ").is_some_and(|(_, value)| {
        let value = value.trim();
        !value.is_empty() && !value.starts_with(['|', '>', '#'])
    })
}

/// A key below a line that has a value, or no key, already.
fn deeper(lines: &[&str], here: &str, column: usize, above: &[Level]) -> Option<String> {
    let key: String = here.trim_start().chars().take_while(|c| *c != ':').collect();
    let spaces = here.len() - here.trim_start().len();
    let level = above.first()?;
    // Only the key of this line itself; a second `: ` in it is another mistake.
    let is_key = spaces + key.chars().count() + 1 == column && !key.contains(char::is_whitespace);
    let before = lines.get(level.line - 1)?;
    if !is_key {
        return None;
    }
    if has_value(before) && spaces > level.spaces {
        return Some(format!(
            "line {} has a value already, so nothing can stand below it: give `{key}` {}, as line {}",
            level.line,
            count(level.spaces),
            level.line
        ));
    }
    (!before.contains(':'))
        .then(|| format!("line {} is no `key: value`: put a colon behind its key", level.line))
}

/// A line whose indentation is that of no level above.
fn in_no_line(here: &str, above: &[Level]) -> Option<String> {
    let content = here.trim_start();
    let spaces = here.len() - content.len();
    let is_item = content.starts_with("- ");
    if is_item && above.iter().any(|level| level.spaces == spaces && !level.is_item) {
        return Some(
            "remove the `- `: the lines around it are keys with values, not items of a list".to_owned(),
        );
    }
    let places: Vec<String> = above
        .iter()
        .filter(|level| level.is_item == is_item)
        .take(3)
        .map(|level| format!("{} as line {}", count(level.spaces), level.line))
        .collect();
    (!places.is_empty()).then(|| {
        format!(
            "it has {} in front, and no line that it can belong to: give it {}",
            count(spaces),
            places.join(", or ")
        )
    })
}

fn count(spaces: usize) -> String {
    if spaces == 1 { "1 space".to_owned() } else { format!("{spaces} spaces") }
}
