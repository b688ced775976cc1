//! Runs compiled expressions. Values are borrowed from the event as long as nothing changes them.

use std::borrow::Cow;

use bytestring::ByteString;

use super::budget::Budget;
use super::code::{Access, Binary, Code, Each, Node};
use super::number::Number;
use super::operator::{arithmetic, compare, equal_values, overflow, shifted, subtract, wrong};
use super::{Failure, Root, function, path, with_article};
use crate::projection::{Event, Value};

/// A value while an expression runs.
#[derive(Debug, Clone)]
pub(super) enum Term<'a> {
    Value(Cow<'a, Value>),
    /// What `a.?b` gives.
    Optional(Option<Cow<'a, Value>>),
    /// A duration in microseconds; it has no form outside of expressions.
    Duration(i64),
}

impl<'a> Term<'a> {
    pub(super) fn owned(value: Value) -> Self {
        Self::Value(Cow::Owned(value))
    }

    pub(super) fn bool(flag: bool) -> Self {
        Self::owned(Value::Bool(flag))
    }

    pub(super) fn text(text: String) -> Self {
        Self::owned(Value::Text(text.into()))
    }

    /// The plain value.
    pub(super) fn value(&self) -> Result<&Value, Failure> {
        match self {
            Self::Value(value) => Ok(value),
            other => Err(not_plain(other)),
        }
    }

    fn into_value(self) -> Result<Cow<'a, Value>, Failure> {
        match self {
            Self::Value(value) => Ok(value),
            other => Err(not_plain(&other)),
        }
    }
}

fn not_plain(term: &Term<'_>) -> Failure {
    Failure::expression(match term {
        Term::Duration(_) => "a duration is no value by itself; write .getSeconds() or .getMilliseconds()",
        _ => "an optional (`.?`) is used as a value; end it with .orValue(…)",
    })
}

/// Evaluates an expression; `None` is absent.
pub(super) fn run<'a>(node: &'a Node, event: &'a Event<'a>) -> Result<Option<Cow<'a, Value>>, Failure> {
    let mut machine = Machine { event, locals: Vec::new(), budget: Budget::new() };
    match machine.eval(node)? {
        Term::Optional(value) => Ok(value),
        term => term.into_value().map(Some),
    }
}

struct Machine<'a> {
    event: &'a Event<'a>,
    locals: Vec<Term<'a>>,
    budget: Budget,
}

impl<'a> Machine<'a> {
    fn eval(&mut self, node: &'a Node) -> Result<Term<'a>, Failure> {
        self.budget.steps(1)?;
        match &node.code {
            Code::Literal(value) => Ok(Term::Value(Cow::Borrowed(value))),
            Code::Variable(root) => self.variable(*root),
            Code::Header(name, access) => {
                let found = path::header(self.event, name)?;
                looked_up(found, *access, node)
            }
            Code::Local(index) => self
                .locals
                .get(*index)
                .cloned()
                .ok_or_else(|| Failure::expression("a variable of a macro is used outside of it")),
            Code::Field(below, name, access) => self.field(node, below, name, *access),
            Code::Index(below, index, access) => self.index(node, below, index, *access),
            Code::Not(operand) => Ok(Term::bool(!self.boolean(operand)?)),
            Code::Negate(operand) => self.negate(node, operand),
            Code::And(left, right) => self.logical(left, right, false),
            Code::Or(left, right) => self.logical(left, right, true),
            Code::Conditional(parts) => {
                let [condition, then, otherwise] = &**parts;
                if self.boolean(condition)? { self.eval(then) } else { self.eval(otherwise) }
            }
            Code::Binary(operator, left, right) => self.binary(*operator, left, right),
            Code::List(items) => self.list(items),
            Code::Record(entries) => self.record(entries),
            Code::Each(each, over, body) => self.each(*each, over, body),
            Code::Coalesce(candidates) => self.coalesce(candidates),
            Code::Absent => Ok(Term::Optional(None)),
            Code::Present(operand) => {
                self.eval(operand)?.into_value().map(|value| Term::Optional(Some(value)))
            }
            Code::OrElse(optional, otherwise) => match self.eval(optional)? {
                Term::Optional(Some(value)) if otherwise.gives_optional() => Ok(Term::Optional(Some(value))),
                Term::Optional(Some(value)) => Ok(Term::Value(value)),
                Term::Optional(None) => self.eval(otherwise),
                _ => Err(Failure::expression(format!(
                    "`{}` is no optional such as `value.?field`",
                    optional.label
                ))),
            },
            Code::Matches(subject, pattern) => {
                let term = self.eval(subject)?;
                let Value::Text(text) = term.value()? else {
                    return Err(wrong("matches", "text", term.value()?));
                };
                // Linear in the text; the constant is that of the compiled pattern.
                self.budget.text(text.len().saturating_mul(8))?;
                Ok(Term::bool(pattern.is_match(text)))
            }
            Code::Call(function, arguments) => {
                let terms =
                    arguments.iter().map(|argument| self.eval(argument)).collect::<Result<Vec<_>, _>>()?;
                function::call(*function, &terms, &mut self.budget)
            }
        }
    }

    fn variable(&self, root: Root) -> Result<Term<'a>, Failure> {
        match root.get(self.event) {
            Some(value) => Ok(Term::Value(value)),
            None => Err(Failure::missing(format!("the record has no `{}`", root.name()))),
        }
    }

    fn field(
        &mut self,
        node: &'a Node,
        below: &'a Node,
        name: &'a ByteString,
        access: Access,
    ) -> Result<Term<'a>, Failure> {
        let (operand, access) = match self.eval(below)? {
            Term::Optional(None) if access == Access::Presence => return Ok(Term::bool(false)),
            Term::Optional(None) => return Ok(Term::Optional(None)),
            // A field of an optional is itself optional.
            Term::Optional(Some(value)) if access == Access::Needed => (value, Access::Optional),
            Term::Optional(Some(value)) => (value, access),
            term => (term.into_value()?, access),
        };
        let found = match operand {
            Cow::Borrowed(Value::Record(_)) | Cow::Owned(Value::Record(_)) => field_of(operand, name),
            Cow::Borrowed(Value::Null) | Cow::Owned(Value::Null) if access == Access::Needed => {
                return Err(Failure::missing(format!("`{}` is null, it has no field `{name}`", below.label)));
            }
            Cow::Borrowed(Value::Null) | Cow::Owned(Value::Null) => None,
            other => {
                let detail =
                    format!("`{}` is {}, it has no field `{name}`", below.label, with_article(&other));
                return Err(Failure::expression(detail));
            }
        };
        looked_up(found, access, node)
    }

    fn index(
        &mut self,
        node: &'a Node,
        below: &'a Node,
        index: &'a Node,
        access: Access,
    ) -> Result<Term<'a>, Failure> {
        let operand = match self.eval(below)? {
            Term::Optional(None) => return Ok(Term::Optional(None)),
            Term::Optional(Some(value)) => value,
            term => term.into_value()?,
        };
        let at = self.eval(index)?.into_value()?;
        let found = match (&*operand, &*at) {
            (Value::Record(_), Value::Text(name)) => field_of(operand, name),
            (Value::List(_), Value::Int(position)) => item_of(operand, *position),
            (Value::Null, _) if access == Access::Optional => None,
            (container, _) => {
                let detail = format!(
                    "`{}` is {}, it cannot be indexed with {}",
                    below.label,
                    with_article(container),
                    with_article(&at)
                );
                return Err(Failure::expression(detail));
            }
        };
        looked_up(found, access, node)
    }

    fn boolean(&mut self, node: &'a Node) -> Result<bool, Failure> {
        match self.eval(node)?.value()? {
            Value::Bool(flag) => Ok(*flag),
            other => Err(Failure::expression(format!(
                "`{}` is {}, not a boolean",
                node.label,
                with_article(other)
            ))),
        }
    }

    /// As CEL has it: one side alone may decide, also where the other fails.
    fn logical(&mut self, left: &'a Node, right: &'a Node, deciding: bool) -> Result<Term<'a>, Failure> {
        match self.boolean(left) {
            Ok(flag) if flag == deciding => Ok(Term::bool(deciding)),
            Ok(_) => self.boolean(right).map(Term::bool),
            Err(failure) => match self.boolean(right) {
                Ok(flag) if flag == deciding => Ok(Term::bool(deciding)),
                _ => Err(failure),
            },
        }
    }

    fn negate(&mut self, node: &'a Node, operand: &'a Node) -> Result<Term<'a>, Failure> {
        match self.eval(operand)? {
            Term::Duration(micros) => micros
                .checked_neg()
                .map(Term::Duration)
                .ok_or_else(|| Failure::expression("a duration overflows")),
            term => match Number::read(term.value()?)? {
                Some(number) => Ok(Term::owned(number.negate()?.into_value())),
                None => Err(wrong(&node.label, "a number", term.value()?)),
            },
        }
    }

    fn binary(&mut self, operator: Binary, left: &'a Node, right: &'a Node) -> Result<Term<'a>, Failure> {
        let a = self.eval(left)?;
        let b = self.eval(right)?;
        match operator {
            Binary::Equal => self.equal(&a, &b).map(Term::bool),
            Binary::NotEqual => self.equal(&a, &b).map(|equal| Term::bool(!equal)),
            Binary::Less => compare("<", &a, &b).map(|order| Term::bool(order.is_lt())),
            Binary::LessOrEqual => compare("<=", &a, &b).map(|order| Term::bool(order.is_le())),
            Binary::Greater => compare(">", &a, &b).map(|order| Term::bool(order.is_gt())),
            Binary::GreaterOrEqual => compare(">=", &a, &b).map(|order| Term::bool(order.is_ge())),
            Binary::In => self.contained(&a, &b),
            Binary::Add => self.add(&a, &b),
            Binary::Subtract => subtract(&a, &b),
            Binary::Multiply => arithmetic("*", &a, &b, Number::multiply),
            Binary::Divide => arithmetic("/", &a, &b, Number::divide),
            Binary::Remainder => arithmetic("%", &a, &b, Number::remainder),
        }
    }

    fn equal(&mut self, a: &Term<'a>, b: &Term<'a>) -> Result<bool, Failure> {
        match (a, b) {
            (Term::Duration(a), Term::Duration(b)) => Ok(a == b),
            (Term::Duration(_), Term::Value(_)) | (Term::Value(_), Term::Duration(_)) => Ok(false),
            _ => equal_values(a.value()?, b.value()?, &mut self.budget),
        }
    }

    fn contained(&mut self, item: &Term<'a>, container: &Term<'a>) -> Result<Term<'a>, Failure> {
        let item = item.value()?;
        match (container.value()?, item) {
            (Value::List(items), _) => {
                for candidate in items {
                    if equal_values(item, candidate, &mut self.budget)? {
                        return Ok(Term::bool(true));
                    }
                }
                Ok(Term::bool(false))
            }
            (record @ Value::Record(_), Value::Text(name)) => Ok(Term::bool(record.field(name).is_some())),
            (other, _) => Err(wrong("in", "a list, or a text and a record", other)),
        }
    }

    fn add(&mut self, a: &Term<'a>, b: &Term<'a>) -> Result<Term<'a>, Failure> {
        match (a, b) {
            (Term::Duration(a), Term::Duration(b)) => {
                return a.checked_add(*b).map(Term::Duration).ok_or_else(|| overflow("+"));
            }
            (Term::Value(time), Term::Duration(span)) | (Term::Duration(span), Term::Value(time)) => {
                return shifted("+", time, i64::checked_add, *span);
            }
            _ => {}
        }
        match (a.value()?, b.value()?) {
            (Value::Text(a), Value::Text(b)) => {
                self.budget.bytes(a.len() + b.len())?;
                Ok(Term::text(format!("{a}{b}")))
            }
            (Value::Bytes(a), Value::Bytes(b)) => {
                self.budget.bytes(a.len() + b.len())?;
                Ok(Term::owned(Value::Bytes([&**a, &**b].concat().into())))
            }
            (Value::List(a), Value::List(b)) => {
                self.budget.bytes((a.len() + b.len()) * size_of::<Value>())?;
                Ok(Term::owned(Value::List(a.iter().chain(b).cloned().collect())))
            }
            _ => arithmetic("+", a, b, Number::add),
        }
    }

    fn list(&mut self, items: &'a [Node]) -> Result<Term<'a>, Failure> {
        self.budget.bytes(size_of_val(items))?;
        let mut list = Vec::with_capacity(items.len());
        for item in items {
            list.push(self.owned_item(item)?);
        }
        Ok(Term::owned(Value::List(list)))
    }

    fn record(&mut self, entries: &'a [(ByteString, Node)]) -> Result<Term<'a>, Failure> {
        let mut fields = Vec::with_capacity(entries.len());
        for (name, node) in entries {
            fields.push((name.clone(), self.owned_item(node)?));
        }
        Ok(Term::owned(Value::Record(fields)))
    }

    /// A value that goes into a list or record; a copy of a list or record is paid for.
    fn owned_item(&mut self, node: &'a Node) -> Result<Value, Failure> {
        let value = self.eval(node)?.into_value()?;
        self.budget.bytes(copied_bytes(&value))?;
        Ok(value.into_owned())
    }

    fn coalesce(&mut self, candidates: &'a [Node]) -> Result<Term<'a>, Failure> {
        for candidate in candidates {
            match self.eval(candidate) {
                Ok(Term::Optional(Some(value)) | Term::Value(value)) if !matches!(&*value, Value::Null) => {
                    return Ok(Term::Value(value));
                }
                Ok(duration @ Term::Duration(_)) => return Ok(duration),
                Ok(_) => {}
                Err(failure) if failure.reason == crate::fault::Reason::MissingField => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(Term::owned(Value::Null))
    }

    fn each(&mut self, each: Each, over: &'a Node, body: &'a Node) -> Result<Term<'a>, Failure> {
        let items = match self.eval(over)?.into_value()? {
            Cow::Borrowed(Value::List(items)) => Items::Borrowed(items.iter()),
            Cow::Owned(Value::List(items)) => Items::Owned(items.into_iter()),
            Cow::Borrowed(Value::Record(fields)) => Items::Owned(names(fields).into_iter()),
            Cow::Owned(Value::Record(fields)) => Items::Owned(names(&fields).into_iter()),
            other => {
                let detail = format!("`{}` is {}, not a list", over.label, with_article(&other));
                return Err(Failure::expression(detail));
            }
        };
        let depth = self.locals.len();
        let result = self.each_item(each, items, body);
        self.locals.truncate(depth);
        result
    }

    fn each_item(&mut self, each: Each, items: Items<'a>, body: &'a Node) -> Result<Term<'a>, Failure> {
        let depth = self.locals.len();
        let mut list = Vec::new();
        let mut count = 0_usize;
        let mut first_failure = None;
        for item in items {
            self.budget.steps(1)?;
            self.locals.truncate(depth);
            self.locals.push(Term::Value(item));
            if each == Each::Map {
                self.budget.bytes(size_of::<Value>())?;
                let value = self.owned_item(body)?;
                list.push(value);
                continue;
            }
            let flag = match self.boolean(body) {
                Ok(flag) => flag,
                // As in CEL, one item that decides does so beside others that fail.
                Err(failure) if matches!(each, Each::All | Each::Exists) => {
                    self.budget.steps(1)?;
                    first_failure.get_or_insert(failure);
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            match each {
                Each::All if !flag => return Ok(Term::bool(false)),
                Each::Exists if flag => return Ok(Term::bool(true)),
                Each::ExistsOne => count += usize::from(flag),
                Each::Filter if flag => {
                    if let Some(Term::Value(item)) = self.locals.pop() {
                        self.budget.bytes(copied_bytes(&item))?;
                        list.push(item.into_owned());
                    }
                }
                _ => {}
            }
        }
        match (each, first_failure) {
            (_, Some(failure)) => Err(failure),
            (Each::All, None) => Ok(Term::bool(true)),
            (Each::Exists, None) => Ok(Term::bool(false)),
            (Each::ExistsOne, None) => Ok(Term::bool(count == 1)),
            (Each::Map | Each::Filter, None) => Ok(Term::owned(Value::List(list))),
        }
    }
}

/// The items of a list that an event lends, or of one that an expression made.
enum Items<'a> {
    Borrowed(std::slice::Iter<'a, Value>),
    Owned(std::vec::IntoIter<Value>),
}

impl<'a> Iterator for Items<'a> {
    type Item = Cow<'a, Value>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Borrowed(items) => items.next().map(Cow::Borrowed),
            Self::Owned(items) => items.next().map(Cow::Owned),
        }
    }
}

fn names(fields: &[(ByteString, Value)]) -> Vec<Value> {
    fields.iter().map(|(name, _)| Value::Text(name.clone())).collect()
}

fn looked_up<'a>(found: Option<Cow<'a, Value>>, access: Access, node: &Node) -> Result<Term<'a>, Failure> {
    match access {
        Access::Presence => Ok(Term::bool(found.is_some())),
        Access::Optional => Ok(Term::Optional(found)),
        Access::Needed => found.map(Term::Value).ok_or_else(|| {
            Failure::missing(format!(
                "`{}` is absent; where that is fine, write it with `.?` and orValue",
                node.label
            ))
        }),
    }
}

fn field_of<'a>(record: Cow<'a, Value>, name: &str) -> Option<Cow<'a, Value>> {
    match record {
        Cow::Borrowed(record) => record.field(name).map(Cow::Borrowed),
        Cow::Owned(Value::Record(fields)) => {
            fields.into_iter().find(|(field, _)| field == name).map(|(_, value)| Cow::Owned(value))
        }
        Cow::Owned(_) => None,
    }
}

fn item_of(list: Cow<'_, Value>, position: i64) -> Option<Cow<'_, Value>> {
    let position = usize::try_from(position).ok()?;
    match list {
        Cow::Borrowed(Value::List(items)) => items.get(position).map(Cow::Borrowed),
        Cow::Owned(Value::List(mut items)) => {
            (position < items.len()).then(|| Cow::Owned(items.swap_remove(position)))
        }
        _ => None,
    }
}

/// Bytes that copying a value allocates: texts and bytes are shared, lists and records are not.
fn copied_bytes(value: &Value) -> usize {
    match value {
        Value::List(items) => size_of_val(items.as_slice()) + items.iter().map(copied_bytes).sum::<usize>(),
        Value::Record(fields) => {
            size_of_val(fields.as_slice())
                + fields.iter().map(|(_, field)| copied_bytes(field)).sum::<usize>()
        }
        _ => 0,
    }
}
