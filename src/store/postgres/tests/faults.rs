//! What the database and the way to it can do to a transaction.

use super::*;
use crate::store::{DatabaseCode, Outcome};

fn sqlstate(answer: Result<Applied, StoreError>) -> String {
    match answer {
        Err(StoreError::Database { code: DatabaseCode::SqlState(code), .. }) => code,
        other => panic!("{other:?}"),
    }
}

impl Place {
    /// Waits until so many sessions of this test's store wait for a lock, and returns their process numbers.
    pub(super) async fn wait_for_blocked(&self, count: usize) -> Vec<i32> {
        let sql = "select pid from pg_stat_activity where wait_event_type = 'Lock' and application_name = 'projector' \
                   and position($1 in query) > 0";
        self.wait_for_sessions(sql, count).await
    }

    /// Waits until a query by the schema's name finds so many sessions.
    async fn wait_for_sessions(&self, sql: &'static str, count: usize) -> Vec<i32> {
        let mut session = session().await;
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        loop {
            let found: Vec<i32> =
                sqlx::query_scalar(sql).bind(&self.schema).fetch_all(&mut session).await.unwrap();
            if found.len() >= count {
                return found;
            }
            assert!(std::time::Instant::now() < deadline, "{} of {count} sessions", found.len());
            tokio::task::yield_now().await;
        }
    }

    async fn terminate(&self, pid: i32) {
        let mut session = session().await;
        sqlx::query("select pg_terminate_backend($1)").bind(pid).execute(&mut session).await.unwrap();
    }
}

#[tokio::test]
async fn a_lock_that_does_not_come_is_55p03_and_leaves_nothing() {
    let place = Place::new().await;
    let declaration = products();
    let mut writer = place.begin(&declaration).await;
    writer.commit(vec![row(text("p1"), set(vec![(2, Datum::Int(1))]))]).await;
    let mut holder = session().await;
    let lock = place.store.sql("begin; select from {s}.products__v1 for update");
    sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut holder).await.unwrap();
    let hasty = place.with(|settings| settings.statement_timeout = Duration::from_millis(400));
    writer.store = Arc::new(hasty);
    let changes = || vec![row(text("p0"), set(vec![])), row(text("p1"), set(vec![(2, Datum::Int(2))]))];
    assert_eq!(sqlstate(writer.apply(changes()).await), "55P03");
    sqlx::raw_sql("commit").execute(&mut holder).await.unwrap();
    assert_eq!(place.view("products").await, ["p1|∅|1"]);
    // The connection is as good as before.
    writer.commit(changes()).await;
    assert_eq!(place.view("products").await, ["p0|∅|∅", "p1|∅|2"]);
    place.end().await;
}

#[tokio::test]
async fn a_session_that_is_ended_in_a_transaction_is_replaced() {
    let place = Place::new().await;
    let declaration = products();
    let mut writer = place.begin(&declaration).await;
    writer.commit(vec![row(text("p1"), set(vec![(2, Datum::Int(1))]))]).await;
    let mut holder = session().await;
    let lock = place.store.sql("begin; select from {s}.products__v1 for update");
    sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut holder).await.unwrap();
    let applying = tokio::spawn(async move {
        let answer = writer.apply(vec![row(text("p1"), set(vec![(2, Datum::Int(2))]))]).await;
        (writer, answer)
    });
    let blocked = place.wait_for_blocked(1).await;
    place.terminate(blocked[0]).await;
    let (mut writer, answer) = applying.await.unwrap();
    assert_eq!(sqlstate(answer), "57P01");
    sqlx::raw_sql("commit").execute(&mut holder).await.unwrap();
    writer.commit(vec![row(text("p1"), set(vec![(2, Datum::Int(3))]))]).await;
    assert_eq!(place.view("products").await, ["p1|∅|3"]);
    place.end().await;
}

#[tokio::test]
async fn sessions_that_died_idle_are_not_noticed() {
    let place = Place::new().await;
    let declaration = products();
    let mut writer = place.begin(&declaration).await;
    writer.commit(vec![row(text("p1"), set(vec![]))]).await;
    let idle = "select pid from pg_stat_activity where state = 'idle' and application_name = $1";
    let name = unique("idle");
    let url = format!("{}?application_name={name}", url());
    let store = Arc::new(place.with(|settings| settings.url = SecretString::from(url)));
    store.status(None).await.unwrap();
    let mut session = session().await;
    let found: Vec<i32> = sqlx::query_scalar(idle).bind(&name).fetch_all(&mut session).await.unwrap();
    assert_eq!(found.len(), 1);
    place.terminate(found[0]).await;
    assert_eq!(store.status(None).await.unwrap().len(), 2);
    store.close().await;
    place.end().await;
}

#[tokio::test]
async fn a_session_that_is_ended_during_commit_leaves_the_outcome_unknown() {
    let place = Place::new().await;
    let declaration = products();
    let mut writer = place.begin(&declaration).await;
    place
        .run(
            "create function {s}.slow() returns trigger language plpgsql as $$ begin \
               perform pg_advisory_xact_lock(hashtextextended(tg_table_schema, 1)); return null; end $$; \
             create constraint trigger slow after insert on {s}.products__v1 deferrable initially deferred \
               for each row execute function {s}.slow()",
        )
        .await;
    let mut holder = session().await;
    sqlx::query("select pg_advisory_lock(hashtextextended($1, 1))")
        .bind(&place.schema)
        .execute(&mut holder)
        .await
        .unwrap();
    let advance = writer.advance(1);
    let applying = tokio::spawn(async move {
        let answer = writer.apply(vec![row(text("p1"), set(vec![]))]).await;
        (writer, answer)
    });
    let committing = "select l.pid from pg_locks l join pg_stat_activity a on a.pid = l.pid \
                      where l.locktype = 'advisory' and not l.granted and a.query = 'commit' \
                        and l.classid::int8 = (hashtextextended($1, 1) >> 32) & 4294967295";
    let found = place.wait_for_sessions(committing, 1).await;
    place.terminate(found[0]).await;
    let (mut writer, answer) = applying.await.unwrap();
    assert_eq!(answer, Err(StoreError::CommitUnknown));
    let outcome = place.store.outcome(&key(&declaration), std::slice::from_ref(&advance)).await;
    assert_eq!(outcome, Ok(vec![Outcome::NotApplied]));
    sqlx::query("select pg_advisory_unlock_all()").execute(&mut holder).await.unwrap();
    writer.commit(vec![row(text("p1"), set(vec![]))]).await;
    assert_eq!(place.view("products").await, ["p1|∅|∅"]);
    place.end().await;
}

#[tokio::test]
async fn what_a_deferred_constraint_refuses_at_commit_is_an_error_like_any_other() {
    let place = Place::new().await;
    let declaration = products();
    let mut writer = place.begin(&declaration).await;
    place
        .run("alter table {s}.products__v1 add constraint one_price unique (price) deferrable initially deferred")
        .await;
    let same = |id: &str| row(text(id), set(vec![(2, Datum::Int(7))]));
    let answer = writer.apply(vec![same("p1"), same("p2")]).await;
    let Err(StoreError::Database { code, place: at, .. }) = answer else { panic!("{answer:?}") };
    assert_eq!(code, DatabaseCode::SqlState("23505".into()));
    assert_eq!(at.constraint.as_deref(), Some("one_price"));
    writer.commit(vec![same("p1")]).await;
    place.end().await;
}

#[tokio::test]
async fn a_refused_row_names_constraint_and_column_and_no_value() {
    let place = Place::new().await;
    let declaration = declaration(vec![table(
        "people",
        Ownership::OwnedByKey,
        vec![
            not_null(column("id", TEXT)),
            not_null(column("name", TEXT)),
            column("age", ColumnType::SmallInt),
        ],
    )]);
    let mut writer = place.begin(&declaration).await;
    place.run("alter table {s}.people__v1 add constraint grown_up check (age >= 18)").await;
    for (change, code, name) in [
        (set(vec![(2, Datum::Int(20))]), "23502", "name"),
        (set(vec![(1, text("secret")), (2, Datum::Int(3))]), "23514", "grown_up"),
    ] {
        let error = writer.apply(vec![row(text("secret"), change)]).await.unwrap_err();
        let shown = format!("{error} {error:?}");
        assert!(shown.contains(code) && shown.contains(name) && !shown.contains("secret"), "{shown}");
    }
    writer.commit(vec![row(text("p1"), set(vec![(1, text("x")), (2, Datum::Int(32767))]))]).await;
    let error = writer.apply(vec![row(text("p1"), add(vec![(2, 1)]))]).await;
    assert_eq!(sqlstate(error), "22003");
    place.end().await;
}

#[tokio::test]
async fn a_prepared_statement_survives_a_change_of_its_table() {
    let place = Place::new().await;
    let declaration = products();
    let mut writer = place.begin(&declaration).await;
    writer.commit(vec![row(text("p1"), set(vec![(1, text("a"))]))]).await;
    place.run("alter table {s}.products__v1 add column extra text").await;
    writer.commit(vec![row(text("p1"), set(vec![(1, text("b"))]))]).await;
    place.run("alter table {s}.products__v1 drop column extra").await;
    writer.commit(vec![row(text("p2"), set(vec![(1, text("c"))]))]).await;
    assert_eq!(place.view("products").await, ["p1|b|∅", "p2|c|∅"]);
    place.end().await;
}

#[tokio::test]
async fn unnamed_statements_for_poolers_work_alike() {
    let place = Place::new().await;
    let declaration = products();
    let mut writer = place.begin(&declaration).await;
    let url = format!("{}?pgbouncer=true", url());
    writer.store = Arc::new(place.with(|settings| settings.url = SecretString::from(url)));
    for number in 0..3 {
        writer.commit(vec![row(text("p1"), set(vec![(2, Datum::Int(number))]))]).await;
    }
    assert_eq!(place.view("products").await, ["p1|∅|2"]);
    writer.store.close().await;
    place.end().await;
}

#[tokio::test]
async fn a_wrong_password_and_a_closed_port_are_told_apart_without_secrets() {
    let place = Place::bare();
    let (start, rest) = url().split_once("://").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let host = rest.rsplit_once('@').map_or(rest.clone(), |(_, host)| host.to_owned());
    let wrong = format!("{start}://nobody_here:hunter2@{host}");
    let store = place.with(|settings| settings.url = SecretString::from(wrong));
    let error = store.lay_out().await.unwrap_err();
    let shown = format!("{error} {error:?} {store:?}");
    assert!(shown.contains("SqlState(\"28") && !shown.contains("hunter2"), "{shown}");
    let closed = "postgres://user:hunter2@127.0.0.1:1/database";
    let store = place.with(|settings| settings.url = SecretString::from(closed));
    let error = store.lay_out().await.unwrap_err();
    assert!(matches!(error, StoreError::Connection { .. }), "{error:?}");
    assert_eq!(error.to_string(), "no answer from the database on trying to connect: connection refused");
    assert!(!format!("{store:?}").contains("hunter2"));
}

#[tokio::test]
async fn a_stricter_default_of_the_role_changes_nothing() {
    let place = Place::new().await;
    let declaration = products();
    let mut writer = place.begin(&declaration).await;
    let url = format!("{}?options[default_transaction_isolation]=serializable", url());
    writer.store = Arc::new(place.with(|settings| settings.url = SecretString::from(url)));
    writer.commit(vec![row(text("p1"), set(vec![]))]).await;
    writer.store.close().await;
    place.end().await;
}
