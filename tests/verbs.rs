//! Verbs of the command line on real services: `check`, `check --connect`, `dlq`, `demo`, `retire`, and `run` with several
//! projections.

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::shop::{QUICK_SESSIONS, Shop};
use crate::support::eventually;
use crate::support::process::Finished;
use crate::support::unique;

fn json(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {}", finished.stdout))
}

/// What `check --connect --json` says about `what`.
#[track_caller]
fn finding<'a>(object: &'a Value, what: &str) -> (bool, &'a str) {
    let services = object["services"].as_array().expect("a list");
    let found = services.iter().find(|finding| finding["what"] == what);
    let found = found.unwrap_or_else(|| panic!("{what} is not in {object:#}"));
    (found["ok"].as_bool().expect("a bool"), found["detail"].as_str().expect("a text"))
}

#[tokio::test(flavor = "multi_thread")]
async fn check_finds_properties_that_the_client_does_not_take() {
    let section = "  consumer_properties:\n    nosuch.prop: abc\n    fetch.min.bytes: abc\n  \
                   producer_properties: { linger.ms: fast }\n";
    let shop = Shop::open_with(1, section, "").await;
    for verb in ["check", "run"] {
        let finished = shop.place.run(&[verb]).expect_code(2);
        let all = finished.stdout + &finished.stderr;
        for (place, name) in
            [(":5:5: ", "nosuch.prop"), (":6:5: ", "fetch.min.bytes"), (":7:26: ", "linger.ms")]
        {
            let line = all.lines().find(|line| line.contains(&format!("`{name}`")));
            assert!(
                line.is_some_and(|line| line.contains(&format!("projector.yaml{place}"))),
                "{name}: {all}"
            );
        }
    }
    shop.database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn properties_that_fail_only_together_end_a_run_before_it_joins() {
    let section = "  properties: { security.protocol: SSL, ssl.ca.location: /nowhere/ca.pem }\n";
    let shop = Shop::open_with(1, section, "").await;
    // A check may run on a machine that lacks the file.
    shop.place.run(&["check"]).expect_code(0);
    let refused = shop.place.run(&["run", "--until-caught-up"]).expect_code(2);
    assert!(refused.stderr.contains("ssl.ca.location"), "{}", refused.stderr);
    shop.database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn check_connect_is_content_with_a_fresh_database_and_writes_nothing() {
    let shop = Shop::open(2).await;
    shop.send("c1", r#"{"kind":"Paid","cents":5,"note":"SECRET"}"#).await;
    shop.send("c2", r#"{"kind":"Refunded","cents":5}"#).await;
    shop.send("c3", "SECRET and no JSON").await;
    shop.send("c4", r#"{"kind":"LimitSet","limit":3000000000}"#).await;
    let finished = shop.place.run(&["check", "--connect", "--json"]).expect_code(0);
    assert!(!finished.stdout.contains("SECRET"), "{}", finished.stdout);
    let object = json(&finished);
    assert_eq!(finding(&object, "store"), (true, "not laid out yet; `run` makes the tables"));
    assert_eq!(finding(&object, "version orders@1"), (true, "not registered yet; `run` registers it"));
    assert!(finding(&object, "kafka").1.starts_with("cluster "));
    assert_eq!(finding(&object, &format!("topic {}", shop.topic)), (true, "2 partitions"));
    assert_eq!(
        finding(&object, &format!("dead-letter topic {}", shop.dead_letter_topic())),
        (true, "1 partition")
    );
    assert!(finding(&object, &format!("group {}", shop.group())).0);
    let (ok, sample) = finding(&object, &format!("sample of {} for orders@1", shop.topic));
    assert!(ok, "{sample}");
    for part in [
        "the newest 4",
        "handled: 1 LimitSet, 1 Paid",
        "without a handler: 1 Refunded",
        "handlers without a record: Left",
        "2 would become dead letters",
        "1 invalid_json at decode",
        "1 value_out_of_range at validate",
    ] {
        assert!(sample.contains(part), "{part} is not in {sample}");
    }
    let tables = "select count(*)::text from pg_class c join pg_namespace n on n.oid = c.relnamespace \
                  where n.nspname = '{s}'";
    assert_eq!(shop.database.one(tables).await, "0");
    assert!(shop.kafka.committed(&shop.group(), &shop.topic, 2).is_empty());
    shop.database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn check_connect_says_what_run_would() {
    let shop = Shop::open(1).await;
    shop.pay(20, 5).await;
    shop.place.run(&["run", "--until-caught-up"]).expect_code(0);
    let object = json(&shop.place.run(&["check", "--connect", "--json"]).expect_code(0));
    assert_eq!(finding(&object, "store"), (true, "laid out; versions that are registered: 1"));
    assert_eq!(finding(&object, "version orders@1"), (true, "registered with the same mapping; live"));
    let (ok, sample) = finding(&object, &format!("sample of {} for orders@1", shop.topic));
    assert!(ok && sample.contains("the newest 10; handled: 10 Paid"), "{sample}");

    let text = std::fs::read_to_string(shop.place.path().join("orders.v1.yaml")).expect("the file");
    shop.place.write("orders.v1.yaml", &text.replace("note: value.note", "note: value.kind"));
    shop.change_config("projections:", "dead_letter: { topic: not.there }\nprojections:");
    let object = json(&shop.place.run(&["check", "--connect", "--json"]).expect_code(1));
    let (ok, detail) = finding(&object, "version orders@1");
    assert!(!ok && detail.contains("projector retire orders@1 --execute"), "{detail}");
    let (ok, detail) = finding(&object, "dead-letter topic not.there");
    assert!(!ok && detail.contains("create it"), "{detail}");

    shop.place.write("orders.v1.yaml", &text.replace(&shop.topic, "neither.this"));
    let object = json(&shop.place.run(&["check", "--connect", "--json"]).expect_code(1));
    let (ok, detail) = finding(&object, "topic neither.this");
    assert!(!ok && detail.contains("does not exist"), "{detail}");
    shop.database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn check_connect_names_the_rights_that_are_missing() {
    let shop = Shop::open(1).await;
    let role = unique("role");
    shop.database.run(&format!("create role {role} login password 'secret'")).await;
    let mut url = reqwest::Url::parse(&shop.database.url).expect("a URL");
    url.set_username(&role).expect("a name");
    url.set_password(Some("secret")).expect("a password");
    let admin = shop.database.url.clone();
    shop.change_config(&admin, url.as_str());
    let object = json(&shop.place.run(&["check", "--connect", "--json"]).expect_code(1));
    let (ok, detail) = finding(&object, "store");
    assert!(
        !ok && detail.contains("may not make tables") && detail.contains("grant usage, create"),
        "{detail}"
    );

    shop.change_config("  schema:", "  ddl: verify\n  schema:");
    let object = json(&shop.place.run(&["check", "--connect", "--json"]).expect_code(1));
    let (ok, detail) = finding(&object, "store");
    assert!(!ok && detail.contains("projector_positions") && detail.contains("customers__v1"), "{detail}");

    shop.change_config("  ddl: verify\n", "");
    shop.change_config(url.as_str(), &admin);
    shop.place.run(&["run", "--until-caught-up"]).expect_code(0);
    shop.change_config(&admin, url.as_str());
    let object = json(&shop.place.run(&["check", "--connect", "--json"]).expect_code(1));
    let services = object["services"].as_array().expect("a list");
    let may_not = format!("role {role} may not select, insert, update, delete on table customers__v1");
    assert!(
        services.iter().any(|finding| finding["detail"].as_str().is_some_and(|text| text.contains(&may_not))),
        "{object:#}"
    );
    let named = shop.database.schema.clone();
    shop.database.run(&format!("drop schema {named} cascade; ")).await;
    shop.database.run(&format!("drop role {role}")).await;
    shop.database.pool.close().await;
}

/// A server that answers every request with this status.
async fn answering(status: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let _ = client.read(&mut request).await;
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            let _ = client.write_all(answer.as_bytes()).await;
        }
    });
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn check_connect_tells_refused_credentials_of_the_registry_and_a_store_that_is_not_there() {
    let shop = Shop::open(1).await;
    let registry = answering("401 Unauthorized").await;
    shop.change_config("store:", &format!("schema_registry: {{ url: '{registry}' }}\nstore:"));
    let url = shop.database.url.clone();
    shop.change_config(&url, "postgres://nobody:SECRET@127.0.0.1:1/none");
    let finished = shop.place.run(&["check", "--connect", "--json"]).expect_code(1);
    assert!(!finished.stdout.contains("SECRET"), "{}", finished.stdout);
    let object = json(&finished);
    let (ok, detail) = finding(&object, "schema_registry");
    assert!(!ok && detail.contains("401") && detail.contains("schema_registry.username"), "{detail}");
    let (ok, detail) = finding(&object, "store");
    assert!(!ok && detail.contains("store.url"), "{detail}");
    assert!(finding(&object, "kafka").0, "the others are looked at all the same");
    shop.database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_listed_and_shown_with_their_payload_on_request_only() {
    let shop = Shop::open(1).await;
    shop.send("SECRET1", "SECRET2").await;
    shop.send("c2", r#"{"kind":"LimitSet","limit":3000000000}"#).await;
    shop.place.run(&["run", "--until-caught-up"]).expect_code(0);

    let listed = shop.place.run(&["dlq", "list", "orders", "--json"]).expect_code(0);
    assert!(!listed.stdout.contains("SECRET"), "{}", listed.stdout);
    let object = json(&listed);
    let letters = object["dead_letters"].as_array().expect("a list");
    let reasons: Vec<&str> = letters.iter().filter_map(|letter| letter["reason"].as_str()).collect();
    assert_eq!(reasons, ["invalid_json", "value_out_of_range"]);
    assert_eq!((&letters[0]["offset"], &letters[0]["state"]), (&Value::from(0), &Value::from("open")));
    let one = shop.place.run(&["dlq", "list", "--reason", "value_out_of_range"]).expect_code(0);
    assert!(
        one.stdout.contains("customers.limit_cents") && !one.stdout.contains("invalid_json"),
        "{}",
        one.stdout
    );
    shop.place.run(&["dlq", "list", "--reason", "out_of_range"]).expect_code(2);

    let record = format!("{}:0:0", shop.topic);
    let shown = shop.place.run(&["dlq", "show", &record]).expect_code(0);
    assert!(shown.stdout.contains("invalid_json") && !shown.stdout.contains("SECRET"), "{}", shown.stdout);
    let shown = shop.place.run(&["dlq", "show", &record, "--payload", "--json"]).expect_code(0);
    let payload = &json(&shown)["dead_letters"][0]["payload"];
    assert_eq!((&payload["key"]["data"], &payload["value"]["data"]), (&"SECRET1".into(), &"SECRET2".into()));
    let none = shop.place.run(&["dlq", "show", &format!("{}:0:7", shop.topic)]).expect_code(4);
    assert!(none.stderr.contains("is no dead letter"), "{}", none.stderr);
    shop.database.drop().await;
}

#[test]
fn the_demo_verifies_itself() {
    let place = crate::support::process::Workplace::new();
    let finished = place.run(&["demo", "--events", "2000", "--json"]).expect_code(0);
    let report: Value = serde_json::from_str(finished.stdout.lines().last().expect("a line")).expect("JSON");
    assert_eq!((&report["verified"], &report["lag"]), (&Value::from(true), &Value::from(0)), "{report}");
    assert!(report["dead_letters"].as_u64() > Some(0) && report["rows"].as_u64() > Some(0), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_process_serves_several_projections() {
    let shop = Shop::open(3).await;
    shop.kafka.create_topic(&format!("{}.totals.dlq", shop.prefix), 1, &[]).await;
    let totals = format!(
        "projection: totals\nversion: 1\nsources:\n  - {{ topic: {}, format: json, type: value.kind }}\ntables:\n  totals:\n    \
         shared: true\n    primary_key: [cents]\n    columns: {{ cents: bigint, payments: bigint not null default 0 }}\n\
         events:\n  Paid:\n    - {{ upsert: totals, key: {{ cents: value.cents }}, add: {{ payments: 1 }} }}\n",
        shop.topic
    );
    shop.place.write("totals.v1.yaml", &totals);
    shop.change_config("[orders.v1.yaml]", "[orders.v1.yaml, totals.v1.yaml]");
    let expected = shop.pay(7000, 100).await;
    shop.place.run(&["run", "--until-caught-up"]).expect_code(0);
    assert_eq!(shop.customers().await, expected);
    let by_cents =
        shop.database.rows("select cents::text, payments::text from {s}.totals order by cents").await;
    let each: Vec<Vec<String>> = (1..=7).map(|cents| vec![cents.to_string(), "1000".to_owned()]).collect();
    assert_eq!(by_cents, each);
    let other = format!("{}.totals.v1", shop.prefix);
    for group in [shop.group(), other] {
        let committed: i64 = shop.kafka.committed(&group, &shop.topic, 3).values().sum();
        assert_eq!(committed, 7000, "{group}");
    }
    // One of them by name leaves the other where it is.
    shop.pay(70, 10).await;
    shop.place.run(&["run", "totals", "--until-caught-up"]).expect_code(0);
    let sum = "select sum(position)::text from {s}.projector_positions where projection = ";
    assert_eq!(shop.database.one(&format!("{sum}'totals'")).await, "7070");
    assert_eq!(shop.database.one(&format!("{sum}'orders'")).await, "7000");
    shop.database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_to_retire_says_what_is_in_use_and_drops_nothing() {
    let shop = Shop::open(2).await;
    let expected = shop.pay(200, 20).await;
    shop.send("c1", "no JSON").await;
    let mut running = shop.place.start("run", &["run"]);
    eventually("everything is applied", || async { (shop.progress().await == 201).then_some(()) }).await;
    eventually("the version is live", || async {
        let state = shop.database.one("select state from {s}.projector_versions").await;
        (state == "live").then_some(())
    })
    .await;
    let plan = json(&shop.place.run(&["retire", "orders@1", "--json"]).expect_code(0));
    assert_eq!((&plan["executed"], &plan["in_use"]), (&Value::from(false), &Value::from(true)), "{plan}");
    assert_eq!(plan["views"], serde_json::json!(["customers"]));
    assert_eq!(plan["tables"], serde_json::json!([{ "table": "customers__v1", "rows": 20 }]));
    assert_eq!(plan["open_dead_letters"], 1);
    assert_eq!(shop.customers().await, expected);
    let unknown = shop.place.run(&["retire", "orders@2"]).expect_code(2);
    assert!(unknown.stderr.contains("no projection orders@2; known: orders@1"), "{}", unknown.stderr);

    let done = json(&shop.place.run(&["retire", "orders@1", "--execute", "--json"]).expect_code(0));
    assert_eq!(done["executed"], true);
    assert!(shop.database.try_rows("select customer from {s}.customers").await.is_err());
    running.signal("TERM");
    assert_eq!(running.ended().await.code(), Some(0), "{}", running.log());
    shop.database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_of_the_log_is_never_answered_with_resume() {
    let shop = Shop::open_with(1, QUICK_SESSIONS, "").await;
    shop.pay(50, 5).await;
    shop.place.run(&["run", "--until-caught-up"]).expect_code(0);
    shop.kafka.delete_topic(&shop.topic).await;
    shop.kafka.create_topic(&shop.topic, 1, &[]).await;
    shop.pay(80, 5).await;
    let stuck = shop.place.run(&["run", "--until-caught-up"]).expect_code(1);
    let status = shop.place.run(&["status"]).expect_code(0);
    let said: Vec<&str> = stuck.stderr.lines().skip_while(|line| !line.starts_with("error: ")).collect();
    for text in [said.join("\n"), status.stdout] {
        assert_eq!(text.matches("projector retire orders@1 --execute").count(), 1, "{text}");
        assert!(!text.contains("projector resume"), "{text}");
    }
    let partition = format!("{}:0", shop.topic);
    shop.place.run(&["resume", "orders", "--partition", &partition]).expect_code(4);
    shop.database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_that_the_database_does_not_take_is_a_mistake_in_its_file() {
    let views = "views: { totals: { sql: 'select c.customer, nme from {customers} c' } }";
    let shop = Shop::open_with(1, QUICK_SESSIONS, views).await;
    shop.place.run(&["check"]).expect_code(0);
    let refused = shop.place.run(&["run", "--until-caught-up"]).expect_code(2);
    let said = "view `totals` cannot be made: column \"nme\" does not exist (SQLSTATE 42703), in line 1, column 20 of its SQL";
    let text = std::fs::read_to_string(shop.place.path().join("orders.v1.yaml")).expect("the file");
    let line = text.lines().position(|line| line.starts_with("views:")).expect("a line") + 1;
    assert!(refused.stderr.contains(&format!("orders.v1.yaml:{line}:25: {said}")), "{}", refused.stderr);
    assert!(refused.stderr.contains("fix: correct its `sql`"), "{}", refused.stderr);
    shop.database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_run_makes_in_the_store_is_told_once() {
    let shop = Shop::open(1).await;
    let schema = unique("made");
    shop.change_config(&format!("schema: {}", shop.database.schema), &format!("schema: {schema}"));
    let first = shop.place.run(&["run", "--until-caught-up"]).expect_code(0);
    for said in [
        format!("made schema {schema}, which was not there"),
        format!("made tables in schema {schema}: projector_layout, projector_versions, "),
        format!("made tables in schema {schema}: customers__v1"),
    ] {
        assert!(first.stderr.contains(&said), "{said}: {}", first.stderr);
    }
    let again = shop.place.run(&["run", "--until-caught-up"]).expect_code(0);
    assert!(!again.stderr.contains("made "), "{}", again.stderr);
    shop.database.run(&format!("drop schema {schema} cascade")).await;
    shop.database.drop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_projection_is_wrong_usage_and_a_store_without_layout_is_not_ready() {
    let shop = Shop::open(1).await;
    let asking = [
        ["status", "orders"].as_slice(),
        &["status", "orders@1", "--json"],
        &["dlq", "list", "orders"],
        &["dlq", "show", "t:0:0", "--projection", "orders"],
        &["resume", "orders"],
        &["retire", "orders@1"],
        &["retire", "orders@1", "--json"],
    ];
    for verb in
        asking.iter().chain(&[["status"].as_slice(), &["status", "--json"], &["dlq", "list", "--json"]])
    {
        let refused = shop.place.run(verb).expect_code(4);
        assert!(
            refused.stderr.contains("has not been laid out") && refused.stderr.contains("projector run"),
            "{refused:?}"
        );
        let is_json = verb.contains(&"--json");
        assert!(!is_json || json(&refused)["exit_code"] == 4, "{refused:?}");
    }

    shop.place.run(&["run", "--until-caught-up"]).expect_code(0);
    shop.place.run(&["status", "orders@1"]).expect_code(0);
    shop.place.run(&["dlq", "list", "orders@1"]).expect_code(0);
    let stuck = shop.place.run(&["resume", "orders@1"]).expect_code(4);
    assert!(stuck.stderr.contains("no partition of orders@1 is quarantined"), "{}", stuck.stderr);
    for verb in asking {
        let verb: Vec<String> = verb.iter().map(|word| word.replace("orders", "order")).collect();
        let verb: Vec<&str> = verb.iter().map(String::as_str).collect();
        let unknown = shop.place.run(&verb).expect_code(2);
        assert!(
            unknown.stderr.contains("no projection order") && unknown.stderr.contains("known: orders@1"),
            "{unknown:?}"
        );
    }
    shop.place.run(&["resume", "orders@2"]).expect_code(2);
    let unknown = shop.place.run(&["run", "orders@1"]).expect_code(2);
    assert!(unknown.stderr.contains("no projection orders@1; known: orders"), "{}", unknown.stderr);

    shop.place.run(&["retire", "orders@1", "--execute"]).expect_code(0);
    for verb in asking {
        let refused = shop.place.run(verb).expect_code(4);
        assert!(refused.stderr.contains("is not registered in this store"), "{refused:?}");
    }
    let empty = shop.place.run(&["status"]).expect_code(0);
    assert!(empty.stdout.contains("`projector run` registers"), "{}", empty.stdout);
    assert_eq!(
        json(&shop.place.run(&["status", "--json"]).expect_code(0))["projections"],
        serde_json::json!([])
    );
    shop.database.drop().await;
}
