//! The dead-letter topic as its consumers read it from the broker.

use rdkafka::message::{Headers, Message, OwnedMessage};

use crate::shop::Shop;
use crate::support::kafka::Out;

/// Every header in order, as text; null is `∅`.
fn headers(message: &OwnedMessage) -> Vec<(String, String)> {
    let text = |value: Option<&[u8]>| {
        value.map_or_else(|| "∅".to_owned(), |value| String::from_utf8(value.to_vec()).expect("text"))
    };
    let headers = message.headers().expect("headers");
    headers.iter().map(|header| (header.key.to_owned(), text(header.value))).collect()
}

/// The headers that are expected, without those whose value is left to the program.
fn expected(headers: &[(&str, &str)]) -> Vec<(String, String)> {
    headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// Takes the value of a header off a list, which has it once.
fn take(headers: &mut Vec<(String, String)>, name: &str) -> String {
    let at: Vec<usize> = (0..headers.len()).filter(|index| headers[*index].0 == name).collect();
    assert_eq!(at.len(), 1, "{name} once in {headers:?}");
    headers.remove(at[0]).1
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_are_those_of_the_documentation_and_never_two_of_a_kind() {
    let shop = Shop::open(1).await;
    shop.change_config("http:", "dead_letter: { headers: [projector, connect] }\nhttp:");
    let own: [(&str, Option<&[u8]>); 3] = [("trace", Some(b"t1")), ("trace", None), ("tenant", Some(b"x"))];
    let value: &[u8] = br#"{"kind":"LimitSet","limit":3000000000}"#;
    let out = Out { topic: &shop.topic, key: Some(b"c1"), headers: &own, ..Out::default() };
    shop.kafka.send(Out { value: Some(value), ..out }).await;
    shop.place.run(&["run", "--until-caught-up"]).expect_code(0);

    let first = shop.kafka.read_all(&shop.dead_letter_topic()).remove(0);
    assert_eq!((first.key(), first.payload()), (Some(&b"c1"[..]), Some(value)));
    let topic_id = shop.database.one("select topic_id from {s}.projector_positions").await;
    let timestamp = shop.database.one("select record_timestamp::text from {s}.projector_dead_letters").await;
    let id = format!("orders@1/{}:0:0", shop.topic);
    let mut found = headers(&first);
    let detail = take(&mut found, "projector.detail");
    assert_eq!(
        take(&mut found, "__connect.errors.exception.message"),
        format!("value_out_of_range: {detail}")
    );
    assert!(!detail.is_empty() && !detail.contains("3000000000"), "{detail}");
    assert_eq!(
        found,
        expected(&[
            ("trace", "t1"),
            ("trace", "∅"),
            ("tenant", "x"),
            ("projector.id", &id),
            ("projector.projection", "orders"),
            ("projector.version", "1"),
            ("projector.topic", &shop.topic),
            ("projector.partition", "0"),
            ("projector.offset", "0"),
            ("projector.stage", "validate"),
            ("projector.reason", "value_out_of_range"),
            ("projector.topic_id", &topic_id),
            ("projector.timestamp", &timestamp),
            ("projector.column", "customers.limit_cents"),
            ("__connect.errors.topic", &shop.topic),
            ("__connect.errors.partition", "0"),
            ("__connect.errors.offset", "0"),
            ("__connect.errors.connector.name", "orders@1"),
            ("__connect.errors.stage", "validate"),
        ])
    );

    // Somebody puts it back as it is, but for another mistake.
    let all = first.headers().expect("headers");
    let all: Vec<(&str, Option<&[u8]>)> = all.iter().map(|header| (header.key, header.value)).collect();
    let value: &[u8] = b"not JSON";
    shop.kafka.send(Out { value: Some(value), headers: &all, ..out }).await;
    shop.place.run(&["run", "--until-caught-up"]).expect_code(0);
    let published = shop.kafka.read_all(&shop.dead_letter_topic());
    assert_eq!(published.len(), 2, "the first is not published again");
    assert_eq!((published[1].key(), published[1].payload()), (Some(&b"c1"[..]), Some(value)));
    let mut found = headers(&published[1]);
    assert_eq!(take(&mut found, "projector.id"), format!("orders@1/{}:0:1", shop.topic));
    assert_eq!(take(&mut found, "projector.reason"), "invalid_json");
    assert_eq!(take(&mut found, "projector.offset"), "1");
    assert_eq!(take(&mut found, "__connect.errors.offset"), "1");
    assert_eq!(take(&mut found, "__connect.errors.stage"), "decode");
    assert!(found.iter().all(|(name, _)| name != "projector.column"), "of the first fault: {found:?}");
    assert_eq!(found[..3], expected(&[("trace", "t1"), ("trace", "∅"), ("tenant", "x")]));
    let mut names: Vec<&String> = found[3..].iter().map(|(name, _)| name).collect();
    names.sort();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count, "no header of ours twice: {found:?}");
    shop.database.drop().await;
}
