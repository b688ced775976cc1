//! `projector ddl` for teams that make tables themselves: what the verb prints is run by an administrator, the projector
//! applies with a role that may not make anything.

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::shop::Shop;
use crate::support::{eventually, unique};

/// A shop whose projector may make nothing, in a schema that is not there yet.
struct Guarded {
    shop: Shop,
    role: String,
}

impl Guarded {
    async fn open() -> Self {
        let shop = Shop::open(2).await;
        let role = unique("applier");
        shop.database.run(&format!("drop schema {}", shop.database.schema)).await;
        shop.database.run(&format!("create role {role} login password 'pw'")).await;
        let (_, host) = shop.database.url.rsplit_once('@').expect("a url with a user");
        shop.change_config(
            &format!("url: {}", shop.database.url),
            &format!("url: postgres://{role}:pw@{host}\n  ddl: verify"),
        );
        Self { shop, role }
    }

    /// Runs SQL as the administrator, all of it or nothing.
    async fn administrate(&self, sql: &str) -> Result<(), sqlx::Error> {
        let mut admin = PgConnection::connect(&self.shop.database.url).await?;
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut admin).await.map(drop)
    }

    async fn run_printed(&self, arguments: &[&str]) -> Result<(), sqlx::Error> {
        let printed = self.shop.place.run(arguments).expect_code(0);
        self.administrate(&printed.stdout).await
    }

    async fn state(&self) -> String {
        self.shop.database.one("select state from {s}.projector_versions").await
    }

    async fn end(self) {
        let Self { shop, role } = self;
        shop.database.run(&format!("drop owned by {role}")).await;
        shop.database.run(&format!("drop role {role}")).await;
        shop.database.drop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_may_make_nothing_serves_what_an_administrator_has_made() {
    let guarded = Guarded::open().await;
    let shop = &guarded.shop;
    let expected = shop.pay(500, 40).await;

    let refused = shop.place.run(&["run", "--until-caught-up"]).expect_code(2);
    let missing = [
        &*format!("schema {}", shop.database.schema),
        "projector_layout",
        "projector_dead_letters_open",
        "projector_view_status",
        "customers__v1",
        "projector ddl",
    ];
    for name in missing {
        assert!(refused.stderr.contains(name), "{name}: {}", refused.stderr);
    }

    guarded.run_printed(&["ddl"]).await.expect("what is printed can be run");
    let early = guarded.run_printed(&["ddl", "orders", "--views"]).await.expect_err("too early").to_string();
    assert!(early.contains("orders@1 is not registered"), "{early}");

    let waits = shop.place.run(&["run", "--until-caught-up"]).expect_code(4);
    assert!(waits.stderr.contains("projector ddl orders --views"), "{}", waits.stderr);
    assert!(shop.database.try_rows("select * from {s}.customers").await.is_err());
    assert_eq!(guarded.state().await, "building");
    assert_eq!(shop.progress().await, 500);

    guarded.run_printed(&["ddl", "--views"]).await.expect("it has caught up");
    shop.place.run(&["run", "--until-caught-up"]).expect_code(0);
    assert_eq!(guarded.state().await, "live");
    assert_eq!(shop.customers().await, expected);
    guarded.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_retire_may_not_drop_it_leaves_and_prints_the_sql() {
    let guarded = Guarded::open().await;
    let shop = &guarded.shop;
    let expected = shop.pay(50, 5).await;
    guarded.run_printed(&["ddl"]).await.expect("what is printed can be run");
    shop.place.run(&["run", "--until-caught-up"]).expect_code(4);
    guarded.run_printed(&["ddl", "--views"]).await.expect("it has caught up");
    shop.place.run(&["run", "--until-caught-up"]).expect_code(0);

    let plan = shop.place.run(&["retire", "orders@1"]).expect_code(0).stdout;
    assert!(plan.contains("would be left") && plan.contains("nothing has been dropped"), "{plan}");
    let retired = shop.place.run(&["retire", "orders@1", "--execute", "--json"]).expect_code(0);
    let retired: serde_json::Value = serde_json::from_str(&retired.stdout).expect("JSON");
    assert_eq!(shop.customers().await, expected, "the view is left, with its rows");
    // Over rows of nobody the version is not built anew.
    let refused = shop.place.run(&["run", "--until-caught-up"]).expect_code(2);
    assert!(refused.stderr.contains("customers__v1"), "{}", refused.stderr);
    let left: Vec<&str> =
        retired["left"].as_array().expect("SQL").iter().filter_map(|sql| sql.as_str()).collect();
    assert_eq!(left.len(), 2, "a view and a table: {left:?}");
    guarded.administrate(&left.join(";\n")).await.expect("what is printed can be run");
    guarded.run_printed(&["ddl"]).await.expect("made anew");
    shop.place.run(&["run", "--until-caught-up"]).expect_code(4);
    guarded.run_printed(&["ddl", "--views"]).await.expect("it has caught up");
    shop.place.run(&["run", "--until-caught-up"]).expect_code(0);
    assert_eq!(shop.customers().await, expected);
    guarded.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_waits_for_its_views_says_so_and_goes_live_without_a_restart() {
    let guarded = Guarded::open().await;
    let shop = &guarded.shop;
    let expected = shop.pay(100, 10).await;
    guarded.run_printed(&["ddl", "orders"]).await.expect("what is printed can be run");
    let mut running = shop.place.start("run", &["run"]);
    eventually("status says what is waited for", || async {
        let reason = "select coalesce(reason, '') from {s}.projector_view_status";
        let rows = shop.database.try_rows(reason).await.ok()?;
        let said = rows.first()?.first()?.contains("projector ddl orders --views");
        said.then_some(())
    })
    .await;
    assert!(running.log().contains("caught up, and not live"), "{}", running.log());
    let status = shop.place.run(&["status"]).expect_code(0);
    assert!(status.stdout.contains("projector ddl orders --views"), "{}", status.stdout);

    guarded.run_printed(&["ddl", "orders", "--views"]).await.expect("it has caught up");
    eventually("the version is live", || async { (guarded.state().await == "live").then_some(()) }).await;
    assert_eq!(shop.customers().await, expected);
    running.signal("TERM");
    assert_eq!(running.ended().await.code(), Some(0), "{}", running.log());
    guarded.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_that_is_made_before_its_version_is_live_is_refused() {
    let guarded = Guarded::open().await;
    let shop = &guarded.shop;
    shop.pay(10, 5).await;
    guarded.run_printed(&["ddl"]).await.expect("what is printed can be run");
    let early = "create view {s}.customers as select * from {s}.customers__v1";
    guarded.administrate(&early.replace("{s}", &shop.database.schema)).await.expect("made");
    let refused = shop.place.run(&["run", "--until-caught-up"]).expect_code(2);
    assert!(
        refused.stderr.contains("customers") && refused.stderr.contains("half-built"),
        "{}",
        refused.stderr
    );
    guarded.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_view_that_somebody_has_changed_is_as_declared_after_a_start() {
    let shop = Shop::open(1).await;
    let expected = shop.pay(50, 5).await;
    shop.place.run(&["run", "--until-caught-up"]).expect_code(0);
    let body = shop.database.one("select pg_get_viewdef('{s}.customers'::regclass)").await;
    let body = body.trim_end_matches(';');
    shop.database
        .run(&format!("create or replace view {}.customers as {body} where false", shop.database.schema))
        .await;
    assert!(shop.customers().await.is_empty());
    shop.place.run(&["run", "--until-caught-up"]).expect_code(0);
    assert_eq!(shop.customers().await, expected);
    shop.database.drop().await;
}
