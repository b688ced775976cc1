//! From the parser's tree to the compiled form. Every unknown name, unknown function and wrong number of arguments is
//! found here, when the file is checked, not when a record comes.

use bytestring::ByteString;
use cel::Env;
use cel::common::ast::{
    CallExpr, EntryExpr, Expr, IdedExpr, ListExpr, LiteralValue, MapExpr, SourceInfo, operators,
};

use super::budget::{MAX_DEPTH, MAX_TEXT};
use super::code::{Access, Binary, Code, Each, Node};
use super::function::{FORMS, FUNCTIONS, Style};
use super::number::Exact;
use super::path::{VARIABLES, check_fields, is_identifier, unknown_variable};
use super::syntax::{label, syntax};
use super::{Problem, Root};
use crate::config::yaml::suggestion;
use crate::projection::Value;

/// The largest pattern of `matches`, once compiled, in bytes.
const MAX_PATTERN: usize = 1024 * 1024;

/// Compiles the text of an expression that is no plain path.
pub(super) fn compile(text: &str) -> Result<Node, Problem> {
    if text.trim().is_empty() {
        return Err(Problem::new(0, "the expression is empty").fix("write null to clear the column"));
    }
    if text.len() > MAX_TEXT {
        return Err(Problem::new(0, format!("the expression is longer than {MAX_TEXT} bytes"))
            .fix("compute less in the mapping; joins and sums belong in a view"));
    }
    // Without macros: `has`, `map` and the like stay calls, which keeps their form for the compiler below.
    let program = Env::default().compile(text).map_err(|errors| syntax(text, &errors))?;
    let mut compiler = Compiler { text, source: program.source_info(), locals: Vec::new() };
    compiler.node(program.expression(), 0)
}

struct Compiler<'t> {
    text: &'t str,
    source: &'t SourceInfo,
    locals: Vec<String>,
}

impl Compiler<'_> {
    fn node(&mut self, expr: &IdedExpr, depth: usize) -> Result<Node, Problem> {
        if depth > MAX_DEPTH {
            return Err(Problem::new(self.at(expr), format!("nested deeper than {MAX_DEPTH} levels"))
                .fix("split the expression"));
        }
        let code = match &expr.expr {
            Expr::Literal(literal) => self.literal(expr, literal)?,
            Expr::Ident(name) => self.name(expr, name)?,
            Expr::Select(select) => self.field(&select.operand, &select.field, Access::Needed, depth)?,
            Expr::Call(call) => self.call(expr, call, depth)?,
            Expr::List(list) => self.list(expr, list, depth)?,
            Expr::Map(map) => self.record(map, depth)?,
            Expr::Struct(_) | Expr::Comprehension(_) | Expr::Unspecified => {
                return Err(Problem::new(self.at(expr), "this form is not used here"));
            }
        };
        Ok(Node { code, label: label(expr).into() })
    }

    /// Where a part stands in the text, in bytes.
    fn at(&self, expr: &IdedExpr) -> usize {
        self.source.offset_for(expr.id).map_or(0, |(start, _)| start as usize).min(self.text.len())
    }

    fn literal(&self, expr: &IdedExpr, literal: &LiteralValue) -> Result<Code, Problem> {
        Ok(Code::Literal(match literal {
            LiteralValue::Boolean(flag) => Value::Bool(*flag.inner()),
            LiteralValue::Bytes(bytes) => Value::Bytes(bytes.inner().to_vec().into()),
            LiteralValue::Int(number) => {
                let (start, stop) = self.source.offset_for(expr.id).unwrap_or((0, 0));
                let digits =
                    self.text.get(start as usize..=stop as usize).unwrap_or("").trim_start_matches('-');
                // `01234` is a code that lost its quotes, not a number.
                if digits.len() > 1
                    && digits.starts_with('0')
                    && digits.bytes().all(|byte| byte.is_ascii_digit())
                {
                    return Err(Problem::new(self.at(expr), "a number does not begin with 0")
                        .fix(format!("for the text write \"'{digits}'\" or {{text: {digits}}}")));
                }
                Value::Int(*number.inner())
            }
            LiteralValue::Null => Value::Null,
            LiteralValue::String(text) => Value::from(text.inner()),
            LiteralValue::UInt(_) => {
                return Err(Problem::new(self.at(expr), "unsigned literals (`1u`) are not used here")
                    .fix("write the number without `u`"));
            }
            // The digits as written: a literal with a point is a decimal, not a double.
            LiteralValue::Double(double) => {
                let (start, stop) = self.source.offset_for(expr.id).unwrap_or((0, 0));
                let digits = self.text.get(start as usize..=stop as usize).unwrap_or("").trim();
                let sign =
                    if double.inner().is_sign_negative() && !digits.starts_with('-') { "-" } else { "" };
                Exact::parse(&format!("{sign}{digits}"))
                    .ok_or_else(|| Problem::new(self.at(expr), "a number with too many digits"))?
                    .into_value()
            }
        }))
    }

    fn name(&self, expr: &IdedExpr, name: &str) -> Result<Code, Problem> {
        if let Some(index) = self.locals.iter().rposition(|local| local == name) {
            return Ok(Code::Local(index));
        }
        let at = self.at(expr);
        match Root::named(name) {
            Some(Root::Headers) => Err(Problem { at, ..headers_alone() }),
            Some(root) => Ok(Code::Variable(root)),
            None => Err(unknown_variable(name, true, at)),
        }
    }

    fn field(
        &mut self,
        operand: &IdedExpr,
        field: &str,
        access: Access,
        depth: usize,
    ) -> Result<Code, Problem> {
        if let Expr::Ident(name) = &operand.expr
            && !self.locals.contains(name)
        {
            let at = self.at(operand);
            match Root::named(name) {
                Some(Root::Headers) => return Ok(Code::Header(field.to_owned(), access)),
                Some(root) => check_fields(root, 1, None).map_err(|problem| Problem { at, ..problem })?,
                None => return Err(unknown_variable(name, false, at)),
            }
        }
        let below = self.node(operand, depth + 1)?;
        if matches!(below.code, Code::Literal(_)) {
            return Err(Problem::new(self.at(operand), "a literal has no fields"));
        }
        Ok(Code::Field(Box::new(below), ByteString::from(field), access))
    }

    fn call(&mut self, expr: &IdedExpr, call: &CallExpr, depth: usize) -> Result<Code, Problem> {
        match (&call.target, call.func_name.as_str(), call.args.as_slice()) {
            (None, name, args) if !is_identifier(name) => self.operator(expr, name, args, depth),
            (None, "has", args) => self.has(expr, args, depth),
            (None, "coalesce", args) if !args.is_empty() => Ok(Code::Coalesce(self.nodes(args, depth)?)),
            (None, name, args) => self.function(expr, name, Style::Global, None, args, depth),
            (Some(target), name, args) => self.member(expr, target, name, args, depth),
        }
    }

    fn member(
        &mut self,
        expr: &IdedExpr,
        target: &IdedExpr,
        name: &str,
        args: &[IdedExpr],
        depth: usize,
    ) -> Result<Code, Problem> {
        if matches!(&target.expr, Expr::Ident(root) if root == "optional") {
            match (name, args) {
                ("none", []) => return Ok(Code::Absent),
                ("of", [value]) => return Ok(Code::Present(self.boxed(value, depth)?)),
                _ => {}
            }
        }
        let each = match name {
            "all" => Some(Each::All),
            "exists" => Some(Each::Exists),
            "exists_one" | "existsOne" => Some(Each::ExistsOne),
            "map" => Some(Each::Map),
            "filter" => Some(Each::Filter),
            _ => None,
        };
        match (each, name, args) {
            (Some(Each::Map), _, [variable, filter, body]) => {
                let over = self.each(Each::Filter, target, variable, filter, depth)?;
                let over = Node { code: over, label: label(target).into() };
                self.each_of(Each::Map, over, variable, body, depth)
            }
            (Some(each), _, [variable, body]) => self.each(each, target, variable, body, depth),
            (Some(_), ..) => {
                Err(Problem::new(self.at(expr), format!("`{name}` takes a variable and an expression"))
                    .fix(format!("write …{name}(x, x.field > 0)")))
            }
            (None, "matches", [pattern]) => self.matches(target, pattern, depth),
            (None, "orValue" | "or", [otherwise]) => {
                Ok(Code::OrElse(self.boxed(target, depth)?, self.boxed(otherwise, depth)?))
            }
            _ => self.function(expr, name, Style::Member, Some(target), args, depth),
        }
    }

    fn function(
        &mut self,
        expr: &IdedExpr,
        name: &str,
        style: Style,
        target: Option<&IdedExpr>,
        args: &[IdedExpr],
        depth: usize,
    ) -> Result<Code, Problem> {
        let named = |wanted: Style| FUNCTIONS.iter().find(move |known| known.0 == name && known.1 == wanted);
        let Some((.., least, most, function)) = named(style) else {
            return Err(self.unknown_function(expr, name, style));
        };
        if !(*least..=*most).contains(&args.len()) {
            let count = if least == most { least.to_string() } else { format!("{least} to {most}") };
            let message = format!("`{name}` takes {count} argument(s), not {}", args.len());
            return Err(Problem::new(self.at(expr), message));
        }
        let nodes = target.into_iter().chain(args);
        let nodes = nodes.map(|arg| self.node(arg, depth + 1)).collect::<Result<_, _>>()?;
        Ok(Code::Call(*function, nodes))
    }

    fn unknown_function(&self, expr: &IdedExpr, name: &str, style: Style) -> Problem {
        let at = self.at(expr);
        if FUNCTIONS.iter().any(|known| known.0 == name) || FORMS.contains(&name) {
            return match style {
                Style::Global => Problem::new(at, format!("`{name}` is called on a value"))
                    .fix(format!("write value.field.{name}(…)")),
                Style::Member => {
                    Problem::new(at, format!("`{name}` is not called on a value, or with other arguments"))
                        .fix(format!("write {name}(…)"))
                }
            };
        }
        let known: Vec<&str> = FUNCTIONS.iter().map(|known| known.0).chain(FORMS.iter().copied()).collect();
        Problem::new(at, format!("there is no function `{name}`")).fix(suggestion(name, &known))
    }

    fn operator(
        &mut self,
        expr: &IdedExpr,
        name: &str,
        args: &[IdedExpr],
        depth: usize,
    ) -> Result<Code, Problem> {
        let binary = match name {
            operators::ADD => Some(Binary::Add),
            operators::SUBSTRACT => Some(Binary::Subtract),
            operators::MULTIPLY => Some(Binary::Multiply),
            operators::DIVIDE => Some(Binary::Divide),
            operators::MODULO => Some(Binary::Remainder),
            operators::EQUALS => Some(Binary::Equal),
            operators::NOT_EQUALS => Some(Binary::NotEqual),
            operators::LESS => Some(Binary::Less),
            operators::LESS_EQUALS => Some(Binary::LessOrEqual),
            operators::GREATER => Some(Binary::Greater),
            operators::GREATER_EQUALS => Some(Binary::GreaterOrEqual),
            operators::IN => Some(Binary::In),
            _ => None,
        };
        match (name, args) {
            (operators::IN, [item, container]) if self.is_headers(container) => self.header_in(item),
            (_, [left, right]) if binary.is_some() => {
                let (left, right) = (self.boxed(left, depth)?, self.boxed(right, depth)?);
                Ok(Code::Binary(binary.unwrap_or(Binary::Equal), left, right))
            }
            (operators::LOGICAL_AND, [left, right]) => {
                Ok(Code::And(self.boxed(left, depth)?, self.boxed(right, depth)?))
            }
            (operators::LOGICAL_OR, [left, right]) => {
                Ok(Code::Or(self.boxed(left, depth)?, self.boxed(right, depth)?))
            }
            (operators::LOGICAL_NOT, [operand]) => Ok(Code::Not(self.boxed(operand, depth)?)),
            (operators::NEGATE, [operand]) => Ok(Code::Negate(self.boxed(operand, depth)?)),
            (operators::CONDITIONAL, [condition, then, otherwise]) => Ok(Code::Conditional(Box::new([
                self.node(condition, depth + 1)?,
                self.node(then, depth + 1)?,
                self.node(otherwise, depth + 1)?,
            ]))),
            (operators::OPT_SELECT | operators::OPT_INDEX | operators::INDEX, [operand, index]) => {
                let access = if name == operators::INDEX { Access::Needed } else { Access::Optional };
                match &index.expr {
                    Expr::Literal(LiteralValue::String(field)) => {
                        self.field(operand, field.inner(), access, depth)
                    }
                    _ => Ok(Code::Index(self.boxed(operand, depth)?, self.boxed(index, depth)?, access)),
                }
            }
            _ => Err(Problem::new(self.at(expr), format!("the operator `{name}` is not used here"))),
        }
    }

    fn has(&mut self, expr: &IdedExpr, args: &[IdedExpr], depth: usize) -> Result<Code, Problem> {
        match args {
            [IdedExpr { expr: Expr::Select(select), .. }] => {
                self.field(&select.operand, &select.field, Access::Presence, depth)
            }
            [IdedExpr { expr: Expr::Call(CallExpr { target: None, func_name, args }), .. }]
                if func_name == operators::INDEX =>
            {
                match args.as_slice() {
                    [operand, IdedExpr { expr: Expr::Literal(LiteralValue::String(field)), .. }] => {
                        self.field(operand, field.inner(), Access::Presence, depth)
                    }
                    _ => {
                        Err(Problem::new(self.at(expr), "`has` asks for a field")
                            .fix("write has(value.field)"))
                    }
                }
            }
            _ => Err(Problem::new(self.at(expr), "`has` asks for a field").fix("write has(value.field)")),
        }
    }

    fn each(
        &mut self,
        each: Each,
        target: &IdedExpr,
        variable: &IdedExpr,
        body: &IdedExpr,
        depth: usize,
    ) -> Result<Code, Problem> {
        let over = self.node(target, depth + 1)?;
        self.each_of(each, over, variable, body, depth)
    }

    fn each_of(
        &mut self,
        each: Each,
        over: Node,
        variable: &IdedExpr,
        body: &IdedExpr,
        depth: usize,
    ) -> Result<Code, Problem> {
        let Expr::Ident(variable_name) = &variable.expr else {
            return Err(Problem::new(
                self.at(variable),
                "the first argument names the variable of each item",
            )
            .fix("write a name, such as x"));
        };
        if VARIABLES.contains(&variable_name.as_str()) {
            return Err(Problem::new(
                self.at(variable),
                format!("`{variable_name}` names something else already"),
            )
            .fix("use another name for the item"));
        }
        self.locals.push(variable_name.clone());
        let body = self.node(body, depth + 1);
        self.locals.pop();
        Ok(Code::Each(each, Box::new(over), Box::new(body?)))
    }

    fn matches(&mut self, target: &IdedExpr, pattern: &IdedExpr, depth: usize) -> Result<Code, Problem> {
        let at = self.at(pattern);
        let Expr::Literal(LiteralValue::String(text)) = &pattern.expr else {
            return Err(Problem::new(at, "the pattern of `matches` must be a literal text")
                .fix("write the pattern in quotes"));
        };
        let compiled = regex::RegexBuilder::new(text.inner()).size_limit(MAX_PATTERN).build();
        let regex = compiled.map_err(|error| {
            let reason = error.to_string();
            let last = reason.lines().last().unwrap_or("").trim_start_matches("error: ").to_owned();
            Problem::new(at, format!("not a valid pattern: {last}"))
        })?;
        Ok(Code::Matches(self.boxed(target, depth)?, regex))
    }

    fn is_headers(&self, expr: &IdedExpr) -> bool {
        matches!(&expr.expr, Expr::Ident(name) if name == "headers")
            && !self.locals.iter().any(|l| l == "headers")
    }

    fn header_in(&self, item: &IdedExpr) -> Result<Code, Problem> {
        match &item.expr {
            Expr::Literal(LiteralValue::String(name)) => {
                Ok(Code::Header(name.inner().to_owned(), Access::Presence))
            }
            _ => Err(Problem::new(self.at(item), "the name of a header must be a literal text")),
        }
    }

    fn list(&mut self, expr: &IdedExpr, list: &ListExpr, depth: usize) -> Result<Code, Problem> {
        if !list.optional_indices.is_empty() {
            return Err(Problem::new(self.at(expr), "optional items of lists (`[?x]`) are not used here"));
        }
        let nodes = self.nodes(&list.elements, depth)?;
        if nodes.iter().all(|node| matches!(node.code, Code::Literal(_))) {
            let values = nodes.into_iter().filter_map(|node| match node.code {
                Code::Literal(value) => Some(value),
                _ => None,
            });
            return Ok(Code::Literal(Value::List(values.collect())));
        }
        Ok(Code::List(nodes))
    }

    fn record(&mut self, map: &MapExpr, depth: usize) -> Result<Code, Problem> {
        let mut fields: Vec<(ByteString, Node)> = Vec::with_capacity(map.entries.len());
        for entry in &map.entries {
            let EntryExpr::MapEntry(entry) = &entry.expr else {
                return Err(Problem::new(0, "this form is not used here"));
            };
            let at = self.at(&entry.key);
            let Expr::Literal(LiteralValue::String(name)) = &entry.key.expr else {
                return Err(Problem::new(at, "a key must be a literal text").fix("write the key in quotes"));
            };
            if entry.optional {
                return Err(Problem::new(at, "optional entries (`{?k: v}`) are not used here"));
            }
            if fields.iter().any(|(known, _)| *known == name.inner()) {
                return Err(Problem::new(at, format!("the key '{}' stands twice", name.inner())));
            }
            fields.push((ByteString::from(name.inner()), self.node(&entry.value, depth + 1)?));
        }
        Ok(Code::Record(fields))
    }

    fn nodes(&mut self, exprs: &[IdedExpr], depth: usize) -> Result<Vec<Node>, Problem> {
        exprs.iter().map(|expr| self.node(expr, depth + 1)).collect()
    }

    fn boxed(&mut self, expr: &IdedExpr, depth: usize) -> Result<Box<Node>, Problem> {
        self.node(expr, depth + 1).map(Box::new)
    }
}

fn headers_alone() -> Problem {
    check_fields(Root::Headers, 0, None)
        .err()
        .unwrap_or_else(|| Problem::new(0, "`headers` as a whole is no value"))
}
