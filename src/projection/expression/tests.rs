use std::path::Path as FilePath;

use bytes::Bytes;

use super::*;
use crate::config::yaml;
use crate::position::RecordOffset;
use crate::record::{Header, Record, RecordCoordinates, RecordTimestamp, TopicPartition};

fn value(json: &str) -> Value {
    fn convert(json: &serde_json::Value) -> Value {
        match json {
            serde_json::Value::Null => Value::Null,
            serde_json::Value::Bool(flag) => Value::Bool(*flag),
            serde_json::Value::Number(number) => {
                number.as_i64().map_or_else(|| Value::Number(number.to_string().into()), Value::Int)
            }
            serde_json::Value::String(text) => Value::from(text.as_str()),
            serde_json::Value::Array(items) => Value::List(items.iter().map(convert).collect()),
            serde_json::Value::Object(fields) => Value::Record(
                fields.iter().map(|(name, field)| (name.as_str().into(), convert(field))).collect(),
            ),
        }
    }
    convert(&serde_json::from_str(json).expect("test JSON"))
}

fn record() -> Record {
    Record {
        coordinates: RecordCoordinates {
            topic_partition: TopicPartition::new("shop.products", 3),
            offset: RecordOffset::new(41),
        },
        leader_epoch: None,
        timestamp: RecordTimestamp::Create(1_700_000_000_123),
        key: Some(Bytes::from_static(b"p1")),
        value: None,
        headers: vec![
            Header { name: "kind".into(), value: Some(Bytes::from_static(b"Listed")) },
            Header { name: "bad".into(), value: Some(Bytes::from_static(b"\xff")) },
            Header { name: "none".into(), value: None },
        ],
    }
}

const EVENT: &str = r#"{
    "name": "Lamp", "n": 5, "big": 9223372036854775807, "price": {"cents": 900}, "gone": null, "flag": true,
    "tags": ["a", "b", "c"], "lines": [{"sku": "x", "qty": 2}, {"sku": "y", "qty": 3}], "odd-name": 1, "text": " Ab "
}"#;

fn with(value: &Value, text: &str) -> Result<Option<Value>, Failure> {
    let record = record();
    let key = Value::from("p1");
    let event =
        Event { source: 0, record: &record, event_type: Some("T"), key: Some(&key), value: Some(value) };
    let expression = Expression::compile(text).unwrap_or_else(|problem| panic!("{text}: {problem:?}"));
    expression.evaluate(&event).map(|value| value.map(Cow::into_owned))
}

fn eval(text: &str) -> Result<Option<Value>, Failure> {
    with(&value(EVENT), text)
}

fn detail(text: &str) -> String {
    let failure = eval(text).expect_err(text);
    format!("{}: {}", failure.reason, failure.detail)
}

fn is(text: &str, expected: impl Into<Value>) {
    assert_eq!(eval(text), Ok(Some(expected.into())), "{text}");
}

fn decimal(text: &str) -> Value {
    Value::Decimal(text.parse().expect("decimal"))
}

fn problem(text: &str) -> String {
    let problem = Expression::compile(text).expect_err(text);
    format!("{}: {} | {}", problem.at, problem.message, problem.fix.unwrap_or_default())
}

#[test]
fn plain_paths_read_fields_headers_and_coordinates() {
    is("value.name", "Lamp");
    is("value.price.cents", 900);
    is("value[\"price\"]['cents']", 900);
    is("value[\"odd-name\"]", 1);
    is("key", "p1");
    is("headers.kind", "Listed");
    is("headers[\"kind\"]", "Listed");
    is("topic", "shop.products");
    is("partition", 3);
    is("offset", 41);
    is("timestamp", Value::TimestampTz(1_700_000_000_123_000));
}

#[test]
fn a_plain_path_tells_absent_from_null() {
    assert_eq!(eval("value.missing"), Ok(None));
    assert_eq!(eval("value.price.missing"), Ok(None));
    assert_eq!(eval("value.missing.deeper"), Ok(None));
    assert_eq!(eval("headers.missing"), Ok(None));
    is("value.gone", Value::Null);
    is("value.gone.deeper", Value::Null);
    is("headers.none", Value::Null);
}

#[test]
fn a_path_through_a_scalar_is_a_fault_and_quotes_no_value() {
    assert_eq!(
        detail("value.name.first"),
        "expression_failed: `value.name` is text, it has no field `first`"
    );
    assert_eq!(detail("headers.bad"), "invalid_utf8: the header `bad` is not valid UTF-8");
}

#[test]
fn whole_numbers_are_exact_and_overflow_is_a_fault() {
    is("value.n + 1", 6);
    is("value.n - 7", -2);
    is("7 / 2", 3);
    is("-7 / 2", -3);
    is("-7 % 3", -1);
    is("value.big - 1", 9_223_372_036_854_775_806);
    is("-value.n", -5);
    assert_eq!(detail("value.big + 1"), "expression_failed: `+` leaves the range of 64 bits");
    assert_eq!(detail("value.n / 0"), "expression_failed: division by zero");
    assert_eq!(detail("-9223372036854775808 / -1"), "expression_failed: `/` leaves the range of 64 bits");
}

#[test]
fn decimals_are_exact_and_never_pass_through_a_double() {
    let event = Value::Record(vec![
        ("a".into(), Value::Number("0.1".into())),
        ("b".into(), decimal("0.2")),
        ("big".into(), Value::Number("18446744073709551616".into())),
        ("d".into(), Value::Double(0.5)),
        ("huge".into(), Value::Number("1e999999999".into())),
    ]);
    assert_eq!(with(&event, "value.a + value.b"), Ok(Some(decimal("0.3"))));
    assert_eq!(with(&event, "value.big + 1"), Ok(Some(decimal("18446744073709551617"))));
    assert_eq!(with(&event, "value.a * 3 == 0.3"), Ok(Some(Value::Bool(true))));
    assert_eq!(with(&event, "value.d + value.d"), Ok(Some(Value::Double(1.0))));
    assert_eq!(with(&event, "value.d < 0.50000000000000000001"), Ok(Some(Value::Bool(true))));
    assert_eq!(with(&event, "[value.a, value.b].sum()"), Ok(Some(decimal("0.3"))));
    for refused in ["value.d + value.a", "value.a / 2", "value.huge + 1", "decimal(value.d)"] {
        let failure = with(&event, refused).expect_err(refused);
        assert_eq!(failure.reason, Reason::ExpressionFailed, "{refused}");
    }
}

#[test]
fn a_literal_with_a_point_keeps_its_digits() {
    is("0.10000000000000000000000000000000000001 + 0", decimal("0.10000000000000000000000000000000000001"));
    is("-1.50 + 0.0", decimal("-1.50"));
}

#[test]
fn absent_inside_an_expression_is_missing_unless_it_is_optional() {
    assert_eq!(
        detail("value.missing + 1"),
        "missing_field: `value.missing` is absent; where that is fine, write it with `.?` and orValue"
    );
    assert_eq!(detail("value.gone.x + 1"), "missing_field: `value.gone` is null, it has no field `x`");
    is("value.?missing.orValue(0) + 1", 1);
    is("value.?price.?cents.orValue(0)", 900);
    is("value.?price.cents.orValue(0)", 900);
    is("value.?missing.cents.orValue(7)", 7);
    is("value.?missing.or(value.?n).orValue(7)", 5);
    is("value.?missing.hasValue()", false);
    assert_eq!(eval("value.?missing"), Ok(None));
    is("value.?n", 5);
    is("value.?gone.orValue(3)", Value::Null);
    is("has(value.missing)", false);
    is("has(value.price.cents)", true);
    is("has(headers.kind) && 'kind' in headers", true);
    assert_eq!(eval("value.n > 100 ? value.name : optional.none()"), Ok(None));
}

#[test]
fn coalesce_takes_the_first_that_is_there() {
    is("coalesce(value.missing, value.gone, value.n)", 5);
    is("coalesce(value.missing, null)", Value::Null);
    is("coalesce(value.?missing, 'none')", "none");
    assert_eq!(detail("coalesce(value.n + 'x', 1)"), "expression_failed: `+` of an integer and text");
}

#[test]
fn conditions_compare_and_combine() {
    is("value.n == 5 && value.name != 'Desk'", true);
    is("value.n == 5.0", true);
    is("value.n == '5'", false);
    is("value.gone == null", true);
    is("value.name < 'Lamq'", true);
    is("value.flag ? 'yes' : 'no'", "yes");
    is("!value.flag", false);
    is("value.missing == 1 || value.flag", true);
    is("'b' in value.tags && !('z' in value.tags)", true);
    assert_eq!(detail("value.n && true"), "expression_failed: `value.n` is an integer, not a boolean");
    assert_eq!(detail("value.name > 3"), "expression_failed: `>` of text and an integer");
}

#[test]
fn texts_and_lists_have_functions() {
    is("value.text.trim().lowerAscii()", "ab");
    is("'a,b'.split(',').join('-')", "a-b");
    is("'banana'.replace('an', 'o', 1)", "boana");
    is("'héllo'.substring(1, 3)", "él");
    is("size('héllo') + 'héllo'.size()", 10);
    is("'héllo'.indexOf('l') + 'hello'.lastIndexOf('l')", 5);
    is("value.name.matches('^L.*p$')", true);
    is("value.name.startsWith('La') && value.name.contains('am') && value.name.endsWith('p')", true);
    is("value.lines.map(l, l.qty).sum()", 5);
    is("value.lines.filter(l, l.qty > 2).map(l, l.sku).join()", "y");
    is("value.lines.map(l, l.qty > 2, l.sku)[0]", "y");
    is("value.lines.all(l, l.qty > 1) && value.lines.exists(l, l.sku == 'y')", true);
    is("value.lines.exists_one(l, l.qty == 2)", true);
    is("value.tags[1]", "b");
    is("value.tags[?9].orValue('none')", "none");
    is("string(value.n) + '!'", "5!");
    is("int('42') + int(1.9)", 43);
    is("[1, value.n].map(x, [10, 20].map(y, x + y))[1][0]", 15);
}

#[test]
fn times_are_exact_to_the_microsecond() {
    is("timestamp('2023-11-14T22:13:20.123456Z')", Value::TimestampTz(1_700_000_000_123_456));
    is("timestamp == timestampFromMillis(1700000000123)", true);
    is("timestamp + duration('1h30m') - timestamp > duration('89m')", true);
    is("(timestamp + duration('90m') - timestamp).getMinutes()", 90);
    is("timestamp.getFullYear() * 100 + timestamp.getMonth()", 202_310);
    is("string(timestampFromSeconds(0))", "1970-01-01T00:00:00Z");
    assert_eq!(
        detail("timestamp('2023-11-14T22:13:20.1234567Z')"),
        "expression_failed: `timestamp` of a text with more than six digits of a second"
    );
}

#[test]
fn unknown_names_and_functions_are_found_when_the_expression_is_compiled() {
    assert_eq!(
        problem("paid"),
        "0: `paid` is not a variable | for the text write \"'paid'\" or {text: paid}; variables are key, value, headers, topic, partition, offset, timestamp"
    );
    assert_eq!(problem("vlaue.x"), "0: `vlaue` is not a variable | did you mean `value`?");
    assert_eq!(
        problem("value.kind == paid"),
        "14: `paid` is not a variable | for the text write \"'paid'\" or {text: paid}; variables are key, value, headers, topic, partition, offset, timestamp"
    );
    assert_eq!(problem("value.name.trimm()"), "16: there is no function `trimm` | did you mean `trim`?");
    assert_eq!(problem("trim(value.name)"), "4: `trim` is called on a value | write value.field.trim(…)");
    assert_eq!(problem("size()"), "4: `size` takes 1 argument(s), not 0 | ");
    assert_eq!(problem("headers"), "0: `headers` as a whole is no value | name one: headers[\"event-type\"]");
    assert_eq!(problem("offset.x"), "0: `offset` has no fields | write `offset` alone");
    assert_eq!(
        problem("value.name.matches(value.re)"),
        "24: the pattern of `matches` must be a literal text | write the pattern in quotes"
    );
    assert_eq!(problem("value.name.matches('(')"), "19: not a valid pattern: unclosed group | ");
    assert_eq!(
        problem("value.a + 1u"),
        "10: unsigned literals (`1u`) are not used here | write the number without `u`"
    );
}

#[test]
fn mistakes_of_syntax_are_told_in_plain_words() {
    assert_eq!(problem("coalesce(value.a"), "16: the expression ends too early | ");
    assert_eq!(
        problem("value.a == 'x"),
        "11: a text in the expression is not closed | add the closing quote"
    );
    assert_eq!(problem("value.a $ 1"), "8: `$` has no meaning in an expression | ");
    assert_eq!(problem("value.a value.b"), "8: `value` is not expected here | ");
    assert_eq!(problem(""), "0: the expression is empty | write null to clear the column");
}

#[test]
fn reads_names_exactly_the_fields_that_an_expression_uses() {
    let reads = |text: &str| Expression::compile(text).expect(text).reads();
    assert_eq!(reads("value.a.b + value.?c.orValue(0)").fields, [vec!["a", "b"], vec!["c"]]);
    assert_eq!(reads("has(value.a.b) ? value.c[\"d-e\"] : key").fields, [vec!["a", "b"], vec!["c", "d-e"]]);
    assert!(reads("has(value.a) && key == 'x'").key);
    assert_eq!(reads("value.lines.map(l, l.sku).join()").fields, [vec!["lines"]]);
    assert_eq!(reads("value.lines[0].sku").fields, [vec!["lines"]]);
    assert!(reads("size(value) > 0").whole_value);
    assert!(!reads("headers.x + topic").value());
}

#[test]
fn no_expression_runs_away() {
    let items = Value::List((0..100_000).map(Value::Int).collect());
    let text = Value::from("x".repeat(1_000_000));
    let event = Value::Record(vec![("items".into(), items), ("text".into(), text)]);
    for text in [
        "value.items.all(a, value.items.all(b, a + b >= 0))",
        "value.items.filter(a, a in value.items).size()",
        "value.text.replace('x', value.text)",
        "value.items.map(a, value.items)",
        "value.items.map(a, value.text + 'y')",
        "value.items.exists(a, value.text.contains('y'))",
    ] {
        let failure = with(&event, text).expect_err(text);
        assert_eq!(failure.reason, Reason::ExpressionFailed, "{text}");
        assert!(failure.detail.contains("the expression "), "{text}: {}", failure.detail);
    }
    assert_eq!(with(&event, "value.items.all(a, a >= 0)"), Ok(Some(Value::Bool(true))));
}

#[test]
fn deep_and_long_texts_are_mistakes_and_not_crashes() {
    for text in [
        format!("{}1{}", "(".repeat(900), ")".repeat(900)),
        format!("1{}", " + 1".repeat(450)),
        format!("value{}", ".a()".repeat(450)),
        format!("{}1{}", "[".repeat(900), "]".repeat(900)),
        "x".repeat(5_000) + " + 1",
        format!("1{}", " ? 1 : 1".repeat(200)),
    ] {
        assert!(Expression::compile(&text).is_err(), "{} bytes", text.len());
    }
    // The parser itself folds a row of these into one or none.
    assert!(Expression::compile(&format!("{}true", "!".repeat(1_900))).is_ok());
}

fn from_yaml(text: &str) -> Result<Expression, String> {
    let tree = yaml::parse(FilePath::new("p.yaml"), text)
        .map_err(|mistake| explain(mistake, SourceText(text)).to_string())?;
    let mut node = &tree;
    while let yaml::Kind::Map(entries) = &node.kind {
        if entries[0].key == "text" {
            break;
        }
        node = &entries[0].value;
    }
    expression(node, SourceText(text)).map_err(|mistake| mistake.to_string())
}

#[test]
fn plain_scalars_of_json_are_literals_digit_by_digit() {
    let literal = |text: &str| from_yaml(text).expect(text).as_literal().cloned();
    assert_eq!(literal("a: 5"), Some(Value::Int(5)));
    assert_eq!(literal("a: 1.50"), Some(Value::Number("1.50".into())));
    assert_eq!(literal("a: 18446744073709551615"), Some(Value::Number("18446744073709551615".into())));
    assert_eq!(literal("a: 1e3"), Some(Value::Number("1e3".into())));
    assert_eq!(literal("a: true"), Some(Value::Bool(true)));
    assert_eq!(literal("a: null"), Some(Value::Null));
    assert_eq!(literal("a: \"'paid'\""), Some(Value::from("paid")));
    assert_eq!(literal("a: {text: paid}"), Some(Value::from("paid")));
    assert_eq!(literal("a: {text: 007}"), Some(Value::from("007")));
    assert!(from_yaml("a: 'value.x'").expect("path").as_path().is_some());
    for refused in ["a: 0x1F.x", "a: on", "a: ~", "a: 01", "a: +1"] {
        assert!(from_yaml(refused).is_err(), "{refused}");
    }
}

#[test]
fn what_yaml_does_to_expressions_is_recognised() {
    let mistake = |text: &str| from_yaml(text).expect_err(text);
    assert_eq!(
        mistake("a: {n: coalesce(value.a, value.b)}"),
        "p.yaml:1:8: the expression is cut at a comma, which ends a value between `{` and `}`\n    fix: put the whole expression in quotes, or write one entry a line"
    );
    assert_eq!(
        mistake("a: value.x + ' #1'"),
        "p.yaml:1:4: the expression is cut at ` #`, where YAML begins a comment\n    fix: put the whole expression in quotes"
    );
    assert!(
        mistake("a: !value.flag")
            .contains("fix: an expression that begins with `!` needs quotes: \"!value.flag\"")
    );
    assert!(mistake("a: *x").contains("fix: an expression that begins with this character needs quotes"));
    assert!(mistake("a: @x").contains("fix: an expression that begins with this character needs quotes"));
    assert!(mistake("a: &x y").contains("fix: an expression that begins with this character needs quotes"));
    assert!(
        mistake("a: {b: headers[\"x\"]}").contains("fix: between `{` and `}` an expression with brackets")
    );
    assert_eq!(
        mistake("a: 'paid'"),
        "p.yaml:1:5: `paid` is not a variable\n    fix: for the text write \"'paid'\" or {text: paid}; variables are key, value, headers, topic, partition, offset, timestamp"
    );
    assert_eq!(
        mistake("a: in stock"),
        "p.yaml:1:4: `in` is not expected here\n    fix: for the text write \"'in stock'\" or {text: in stock}; an expression computes a value"
    );
}

#[test]
fn mistakes_in_quoted_and_block_scalars_are_at_their_character() {
    assert!(from_yaml("a: \"value.x + oops\"").expect_err("name").starts_with("p.yaml:1:15: "));
    assert!(from_yaml("a: |\n  value.x\n    + oops\n").expect_err("name").starts_with("p.yaml:3:7: "));
}

#[test]
fn equal_values_name_the_same_aggregate() {
    assert_eq!(text_of(&Value::Int(5)), "5");
    for same in [Value::Number("5.0".into()), Value::Number("5e0".into()), decimal("5.00")] {
        assert_eq!(text_of(&same), "5");
    }
    assert_eq!(text_of(&value(r#"{"b": 1, "a": [null, "x"]}"#)), r#"{"a":[null,"x"],"b":1}"#);
    assert_eq!(text_of(&Value::Number("1e999999999".into())), "1e999999999");
    assert_eq!(text_of(&Value::Bytes(Bytes::from_static(b"\x00\xff"))), "\\x00ff");
}

mod random {
    use proptest::prelude::*;

    use super::*;

    /// Text that often has the form of an expression.
    fn expression_text() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            Just("value.n"),
            Just("value.name"),
            Just("value.missing"),
            Just("value.?gone"),
            Just("value.lines"),
            Just("value.price"),
            Just("key"),
            Just("timestamp"),
            Just("1"),
            Just("-2"),
            Just("1.5"),
            Just("'x'"),
            Just("null"),
            Just("true"),
            Just("value.big"),
            Just("duration('1h')"),
            Just("b'x'"),
            Just("headers.kind"),
            Just("9223372036854775807"),
            Just("'é'"),
        ]
        .prop_map(str::to_owned);
        leaf.prop_recursive(4, 24, 3, |inner| {
            let operator = prop_oneof![
                Just("+"),
                Just("-"),
                Just("*"),
                Just("/"),
                Just("%"),
                Just("=="),
                Just("<"),
                Just("&&"),
                Just("||"),
                Just("in"),
                Just("!="),
            ];
            let call = prop_oneof![
                Just("size"),
                Just("int"),
                Just("string"),
                Just("double"),
                Just("decimal"),
                Just("timestamp"),
                Just("timestampFromMillis"),
                Just("coalesce"),
            ];
            let member = prop_oneof![
                Just("trim()"),
                Just("sum()"),
                Just("substring(1)"),
                Just("split('')"),
                Just("join()"),
                Just("size()"),
                Just("orValue(1)"),
                Just("hasValue()"),
                Just("map(x, x)"),
                Just("filter(x, x != 1)"),
                Just("all(x, x == x)"),
                Just("getFullYear()"),
                Just("replace('x', 'yy')"),
                Just("indexOf('x')"),
            ];
            prop_oneof![
                (inner.clone(), operator, inner.clone()).prop_map(|(a, o, b)| format!("({a} {o} {b})")),
                (call, inner.clone()).prop_map(|(name, a)| format!("{name}({a})")),
                (inner.clone(), member).prop_map(|(a, name)| format!("({a}).{name}")),
                (inner.clone(), inner.clone(), inner.clone())
                    .prop_map(|(a, b, c)| format!("({a} ? {b} : {c})")),
                (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("[{a}, {b}]")),
                (inner.clone(), inner).prop_map(|(a, b)| format!("({a})[{b}]")),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn expressions_fail_but_never_panic_and_never_quote_a_value(text in expression_text()) {
            let event_value = value(EVENT);
            let record = record();
            let key = Value::from("p1");
            let event =
                Event { source: 0, record: &record, event_type: None, key: Some(&key), value: Some(&event_value) };
            if let Ok(expression) = Expression::compile(&text)
                && let Err(failure) = expression.evaluate(&event)
            {
                prop_assert!(!failure.detail.contains("Lamp"), "{}: {}", text, failure.detail);
            }
        }

        #[test]
        fn any_text_compiles_or_is_a_mistake_inside_of_it(text in "[ -~é\n]{0,60}") {
            if let Err(problem) = Expression::compile(&text) {
                prop_assert!(problem.at <= text.len());
            }
        }

        #[test]
        fn whole_number_arithmetic_is_that_of_64_bits(a: i64, b: i64) {
            let event = Value::Record(vec![("a".into(), Value::Int(a)), ("b".into(), Value::Int(b))]);
            for (operator, expected) in [
                ("+", a.checked_add(b)), ("-", a.checked_sub(b)), ("*", a.checked_mul(b)), ("/", a.checked_div(b)),
                ("%", a.checked_rem(b)),
            ] {
                let result = with(&event, &format!("value.a {operator} value.b")).ok().flatten();
                prop_assert_eq!(result, expected.map(Value::Int));
            }
        }

        #[test]
        fn any_json_number_in_a_file_keeps_its_digits(text in "-?(0|[1-9][0-9]{0,40})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?") {
            let literal = from_yaml(&format!("a: {text}")).expect("a literal").as_literal().cloned();
            let kept = match literal {
                Some(Value::Int(number)) => number.to_string(),
                Some(Value::Number(kept)) => kept.to_string(),
                other => panic!("{other:?}"),
            };
            prop_assert_eq!(kept, text);
        }
    }
}
