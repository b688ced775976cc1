//! Layout, registration, promotion, status and retirement.

use super::*;
use crate::store::{InstanceReport, Observation, Promotion, Registered, VersionState};

#[tokio::test]
async fn laying_out_twice_changes_nothing_and_a_difference_is_named() {
    let place = Place::new().await;
    place.store.lay_out().await.unwrap();
    let error = |result: Result<(), StoreError>| result.unwrap_err().to_string();
    place.run("alter table {s}.projector_positions alter column topic_id type bytea using null").await;
    let text = error(place.store.lay_out().await);
    assert!(text.contains("projector_positions.topic_id is bytea; it should be text"), "{text}");
    place.run("alter table {s}.projector_positions drop column topic_id").await;
    let text = error(place.store.lay_out().await);
    assert!(text.contains("projector_positions has no column topic_id"), "{text}");
    place.run("update {s}.projector_layout set oldest_binary = 99").await;
    let text = error(place.store.lay_out().await);
    assert!(text.contains("newer program") && text.contains("99"), "{text}");
    place.end().await;
}

/// The SQL that an error gives, run by somebody who may.
async fn run_the_advice(error: StoreError) {
    let StoreError::Layout { fix, .. } = error else { panic!("{error:?}") };
    let sql = fix.split_once(":\n").expect("SQL").1.to_owned();
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut session().await).await.unwrap();
}

async fn run_all(statements: Vec<String>) -> Result<(), sqlx::Error> {
    let script = statements.join(";\n");
    sqlx::raw_sql(AssertSqlSafe(script)).execute(&mut session().await).await.map(drop)
}

impl Place {
    /// A role that may not make anything but temporary views, and a store that applies with it.
    async fn verifying(&self) -> (String, PostgresStore) {
        let role = unique("writer");
        self.run(&format!("create role {role} login password 'pw'")).await;
        let url = url().rsplit_once('@').map(|(_, host)| format!("postgres://{role}:pw@{host}")).unwrap();
        let store = self.with(|settings| {
            settings.url = SecretString::from(url);
            settings.ddl = DdlMode::Verify;
        });
        (role, store)
    }

    async fn end_with(self, role: &str, store: PostgresStore) {
        store.close().await;
        self.run(&format!("drop owned by {role}; drop role {role}")).await;
        self.end().await;
    }
}

#[tokio::test]
async fn with_verify_one_error_names_everything_that_is_missing() {
    let place = Place::bare();
    let (role, verifying) = place.verifying().await;
    let declarations = [Arc::new(products())];
    let error = verifying.verify(&declarations).await.unwrap_err();
    let text = error.to_string();
    for missing in [
        "schema ",
        "projector_versions",
        "projector_dead_letters_open",
        "projector_view_status",
        "products__v1",
    ] {
        assert!(text.contains(missing), "{missing}: {text}");
    }
    assert!(matches!(verifying.lay_out().await, Err(StoreError::Layout { .. })));
    run_the_advice(error).await;
    // What is there may not be used yet: that is the second thing to be said, and the last.
    let error = verifying.verify(&declarations).await.unwrap_err();
    assert!(
        error.to_string().contains(&format!("role {role} may not apply to table projector_versions")),
        "{error}"
    );
    run_the_advice(error).await;
    assert_eq!(verifying.verify(&declarations).await, Ok(()));
    verifying.lay_out().await.unwrap();
    assert_eq!(verifying.register(&registration(&declarations[0], 1)).await, Ok(Registered::New));
    place.end_with(&role, verifying).await;
}

#[tokio::test]
async fn the_printed_ddl_is_what_verification_wants() {
    let place = Place::bare();
    let (role, verifying) = place.verifying().await;
    let declaration = products();
    run_all(verifying.layout_ddl()).await.unwrap();
    run_all(verifying.layout_ddl()).await.unwrap();
    run_all(verifying.ddl(&declaration)).await.unwrap();
    assert_eq!(verifying.verify(&[Arc::new(declaration.clone())]).await, Ok(()));
    verifying.lay_out().await.unwrap();
    let refused = run_all(verifying.views_ddl(&declaration)).await.unwrap_err().to_string();
    assert!(refused.contains("is not registered"), "{refused}");
    let mut registration = registration(&declaration, 1);
    registration.partitions[0].boundary = NextOffset::new(1);
    assert_eq!(verifying.register(&registration).await, Ok(Registered::New));
    let refused = run_all(verifying.views_ddl(&declaration)).await.unwrap_err().to_string();
    assert!(refused.contains("has not caught up"), "{refused}");
    let verifying = Arc::new(verifying);
    let mut writer = Writer::claim(verifying.clone(), &declaration, 0).await;
    writer.commit(vec![row(text("p1"), set(vec![]))]).await;
    let error = verifying.promote_first(&declaration).await.unwrap_err().to_string();
    assert!(
        error.contains("view products is missing") && error.contains("projector ddl catalogue --views"),
        "{error}"
    );
    run_all(verifying.views_ddl(&declaration)).await.unwrap();
    // A restart between the views and the promotion changes nothing.
    assert_eq!(verifying.register(&registration).await, Ok(Registered::Known));
    assert_eq!(verifying.promote_first(&declaration).await, Ok(Promotion::Live));
    assert_eq!(verifying.register(&registration).await, Ok(Registered::Known));
    assert_eq!(place.view("products").await, ["p1|∅|∅"]);
    drop(writer);
    place.end_with(&role, Arc::into_inner(verifying).unwrap()).await;
}

#[tokio::test]
async fn with_verify_a_view_is_refused_before_its_version_is_live() {
    let place = Place::new().await;
    let verifying = place.with(|settings| settings.ddl = DdlMode::Verify);
    let declaration = products();
    run_all(verifying.ddl(&declaration)).await.unwrap();
    let mut registration = registration(&declaration, 1);
    registration.partitions[0].boundary = NextOffset::new(1);
    let early = "create view {s}.products as select * from {s}.products__v1";
    place.run(early).await;
    let refused = async |registration: &Registration| {
        let error = verifying.register(registration).await.unwrap_err();
        assert!(matches!(error, StoreError::Refused { .. }), "{error:?}");
        assert!(error.to_string().contains("half-built"), "{error}");
    };
    refused(&registration).await;
    place.run("drop view {s}.products").await;
    assert_eq!(verifying.register(&registration).await, Ok(Registered::New));
    place.run(early).await;
    refused(&registration).await;
    verifying.close().await;
    place.end().await;
}

#[tokio::test]
async fn with_verify_a_view_that_differs_is_named_with_the_sql() {
    let place = Place::new().await;
    let mut declaration = products();
    let names = |sql: &str| View { name: "names".into(), body: ViewBody::Sql(sql.into()) };
    declaration.views.push(names("select name from {products} p"));
    place.begin(&declaration).await;
    let (role, verifying) = place.verifying().await;
    run_all(verifying.layout_ddl()).await.unwrap();
    run_the_advice(verifying.verify(&[Arc::new(declaration.clone())]).await.unwrap_err()).await;
    let known = async |declaration: &Declaration| verifying.register(&registration(declaration, 2)).await;
    assert_eq!(known(&declaration).await, Ok(Registered::Known));
    place.run("create or replace view {s}.names as select name from {s}.products__v1 where false").await;
    for changed in [
        "select name from {products} p",
        "select name, price from {products} p",
        "select price from {products}",
    ] {
        *declaration.views.last_mut().unwrap() = names(changed);
        let error = known(&declaration).await.unwrap_err();
        assert!(error.to_string().contains("view names differs"), "{error}");
        run_the_advice(error).await;
        assert_eq!(known(&declaration).await, Ok(Registered::Known), "{changed}");
    }
    declaration.views.pop();
    let error = known(&declaration).await.unwrap_err();
    assert!(error.to_string().contains("no longer declared, and to be dropped: names"), "{error}");
    run_the_advice(error).await;
    assert_eq!(known(&declaration).await, Ok(Registered::Known));
    place.run("alter view {s}.projector_view_status rename column as_of to at").await;
    let error = verifying.lay_out().await.unwrap_err();
    assert!(error.to_string().contains("view projector_view_status differs"), "{error}");
    run_the_advice(error).await;
    verifying.lay_out().await.unwrap();
    place.end_with(&role, verifying).await;
}

#[tokio::test]
async fn a_view_is_replaced_under_its_readers_where_its_shape_allows() {
    let place = Place::new().await;
    let role = unique("reader");
    place.run(&format!("create role {role}")).await;
    let mut declaration = products();
    let names = |sql: &str| View { name: "names".into(), body: ViewBody::Sql(sql.into()) };
    declaration.views.push(names("select name from {products} p"));
    let mut writer = place.begin(&declaration).await;
    writer.commit(vec![row(text("p1"), set(vec![(1, text("lamp"))]))]).await;
    place
        .run(&format!(
            "grant select on {{s}}.names to {role}; create view {{s}}.on_top as select * from {{s}}.names"
        ))
        .await;
    let known = async |declaration: &Declaration| place.store.register(&registration(declaration, 2)).await;
    *declaration.views.last_mut().unwrap() = names("select upper(name) as name, id from {products} p");
    assert_eq!(known(&declaration).await, Ok(Registered::Known));
    assert_eq!(
        (place.view("names").await, place.view("on_top").await),
        (vec!["LAMP|p1".to_owned()], vec!["LAMP".to_owned()])
    );
    let may = format!("select has_table_privilege('{role}', '{}.names', 'select')::text", place.schema);
    assert_eq!(place.texts(&may).await, ["true"]);

    *declaration.views.last_mut().unwrap() = names("select id from {products} p");
    let error = known(&declaration).await.unwrap_err();
    assert!(matches!(error, StoreError::Layout { .. }), "{error:?}");
    assert!(error.to_string().contains("view names has other columns"), "{error}");
    assert_eq!(place.view("names").await, ["LAMP|p1"]);

    declaration.views.pop();
    let error = known(&declaration).await.unwrap_err().to_string();
    assert!(error.contains("names") && error.contains("on_top depends on it"), "{error}");
    place
        .run(&format!("drop view {{s}}.on_top; revoke all on {{s}}.names from {role}; drop role {role}"))
        .await;
    assert_eq!(known(&declaration).await, Ok(Registered::Known));
    assert!(place.store.read_view("names", 1).await.is_err());
    place.end().await;
}

#[tokio::test]
async fn readers_that_are_new_in_the_settings_may_query_views_that_are_there() {
    let place = Place::new().await;
    let declaration = products();
    place.begin(&declaration).await;
    let role = unique("reader");
    place.run(&format!("create role {role}")).await;
    let store = place.with(|settings| settings.readers = vec![role.clone()]);
    store.lay_out().await.unwrap();
    assert_eq!(store.register(&registration(&declaration, 2)).await, Ok(Registered::Known));
    let may = format!("select has_table_privilege('{role}', '{}.products', 'select')::text", place.schema);
    assert_eq!(place.texts(&may).await, ["true"]);
    store.close().await;
    place.run(&format!("drop owned by {role}; drop role {role}")).await;
    place.end().await;
}

#[tokio::test]
async fn keys_and_not_null_of_the_projectors_tables_are_verified() {
    let place = Place::new().await;
    let differs = async |change: &str, words: &str, back: &str| {
        place.run(change).await;
        let error = place.store.lay_out().await.unwrap_err();
        assert!(matches!(error, StoreError::Layout { .. }), "{error:?}");
        assert!(error.to_string().contains(words), "{error}");
        place.run(back).await;
        place.store.lay_out().await.unwrap();
    };
    differs(
        "alter table {s}.projector_positions drop constraint projector_positions_pkey",
        "the primary key of table projector_positions is (); it should be (projection, version, topic, partition)",
        "alter table {s}.projector_positions add primary key (projection, version, topic, partition)",
    )
    .await;
    differs(
        "alter table {s}.projector_positions alter column boundary drop not null",
        "column projector_positions.boundary may be null; it should be not null",
        "alter table {s}.projector_positions alter column boundary set not null",
    )
    .await;
    differs(
        "alter table {s}.projector_positions alter column epoch drop default",
        "column projector_positions.epoch has no default; it should have one",
        "alter table {s}.projector_positions alter column epoch set default 0",
    )
    .await;
    differs(
        "drop index {s}.projector_dead_letters_open; \
         create unique index projector_dead_letters_open on {s}.projector_dead_letters (projection, version, topic, partition) where state = 'open'",
        "the index projector_dead_letters_open is unique",
        "drop index {s}.projector_dead_letters_open",
    )
    .await;
    differs(
        "alter table {s}.projector_erasures add column who text not null",
        "table projector_erasures has the column who, which must be given",
        "alter table {s}.projector_erasures alter column who set default ''",
    )
    .await;
    place.end().await;
}

#[tokio::test]
async fn a_version_is_registered_once_and_another_one_is_refused() {
    let place = Place::new().await;
    let declaration = products();
    assert_eq!(place.store.register(&registration(&declaration, 2)).await, Ok(Registered::New));
    assert_eq!(place.store.register(&registration(&declaration, 2)).await, Ok(Registered::Known));
    let refused = async |registration: Registration, words: &[&str]| {
        let error = place.store.register(&registration).await.unwrap_err();
        assert!(matches!(error, StoreError::Refused { .. }), "{error:?}");
        let text = error.to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    };
    let changed = Declaration { digest: "digest-2".into(), ..declaration.clone() };
    refused(registration(&changed, 2), &["another mapping", "projector retire catalogue@1 --execute"]).await;
    let second = Declaration { version: 2, ..declaration.clone() };
    refused(registration(&second, 2), &["catalogue@2", "catalogue@1", "retire"]).await;
    let mut elsewhere = registration(&declaration, 2);
    elsewhere.log.cluster_id = "cluster-2".into();
    refused(elsewhere, &["cluster-1", "cluster-2"]).await;
    let mut elsewhere = registration(&declaration, 2);
    elsewhere.log.consumer_group = "group-2".into();
    refused(elsewhere, &["consumer group"]).await;
    let namesake = Declaration { name: "other".into(), ..declaration.clone() };
    refused(registration(&namesake, 2), &["products", "catalogue@1"]).await;
    let rows = place.store.versions().await.unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].digest.as_str(), rows[0].state), ("digest-1", VersionState::Building));
    place.end().await;
}

#[tokio::test]
async fn what_the_database_cannot_make_is_refused_at_registration() {
    let place = Place::new().await;
    let mut declaration = products();
    let sql = |sql: &str| View { name: "broken".into(), body: ViewBody::Sql(sql.into()) };
    declaration.views.push(sql("select p.id,\n  nothing\nfrom {products} p, {products}"));
    let layout = async |declaration: &Declaration, words: &[&str]| {
        let error = place.store.register(&registration(declaration, 1)).await.unwrap_err();
        let is_layout =
            matches!(error, StoreError::Layout { .. } | StoreError::View { .. } | StoreError::Refused { .. });
        assert!(is_layout, "{error:?}");
        let text = error.to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    };
    let said = "column \"nothing\" does not exist (SQLSTATE 42703), in line 2, column 3 of its SQL";
    layout(&declaration, &["view broken", said]).await;
    declaration.views.pop();
    declaration.tables[0].columns.push(column("odd", ColumnType::Catalogue("no_such_type".into())));
    layout(&declaration, &["table products", "type \"no_such_type\" does not exist (SQLSTATE 42704)"]).await;
    declaration.tables[0].columns.pop();
    place.run("create view {s}.products as select 1 as one").await;
    layout(&declaration, &["a view named products"]).await;
    place.run("drop view {s}.products; create table {s}.products__v1 (id text primary key, name text, price int)").await;
    layout(&declaration, &["products__v1.price is integer; it should be bigint"]).await;
    place
        .run("alter table {s}.products__v1 alter column price type bigint, alter column price set default 3")
        .await;
    layout(&declaration, &["products__v1.price has the default", "3", "null"]).await;
    place.run("alter table {s}.products__v1 alter column price drop default, add column more text").await;
    layout(&declaration, &["column more"]).await;
    place.run("alter table {s}.products__v1 drop column more, drop constraint products__v1_pkey, alter column id drop not null").await;
    layout(&declaration, &["products__v1.id may be null"]).await;
    place.run("alter table {s}.products__v1 alter column id set not null").await;
    layout(&declaration, &["primary key of table products__v1 is (); it should be (id)"]).await;
    place
        .run("alter table {s}.products__v1 add primary key (id); insert into {s}.products__v1 values ('p0')")
        .await;
    layout(&declaration, &["has rows"]).await;
    place.run("truncate {s}.products__v1").await;
    assert_eq!(place.store.register(&registration(&declaration, 1)).await, Ok(Registered::New));
    place.run("drop table {s}.products__v1").await;
    layout(&declaration, &["products__v1", "is gone"]).await;
    place.end().await;
}

#[tokio::test]
async fn an_index_that_is_new_in_the_declaration_is_added() {
    let place = Place::new().await;
    let mut declaration = products();
    place.begin(&declaration).await;
    declaration.tables[0].indexes.push(crate::projection::Index {
        columns: Vec::new(),
        expression: Some("lower(name)".into()),
        unique: false,
        method: None,
        condition: Some("price > 0".into()),
    });
    declaration.views.push(View {
        name: "cheap".into(),
        body: ViewBody::Sql("select id from {products} p where price < 9".into()),
    });
    assert_eq!(place.store.register(&registration(&declaration, 2)).await, Ok(Registered::Known));
    assert_eq!(place.store.register(&registration(&declaration, 2)).await, Ok(Registered::Known));
    assert_eq!(place.count_indexes("lower(name)").await, 1);
    assert_eq!(place.view("cheap").await, [""; 0]);
    place.end().await;
}

#[tokio::test]
async fn an_index_that_rows_refuse_quotes_none_of_them() {
    let place = Place::new().await;
    let mut declaration = products();
    place.begin(&declaration).await;
    place.run("insert into {s}.products__v1 (id, name) values ('p1', 'SECRET')").await;
    declaration.tables[0].indexes.push(crate::projection::Index {
        columns: Vec::new(),
        expression: Some("name::int".into()),
        unique: false,
        method: None,
        condition: None,
    });
    let error = place.store.register(&registration(&declaration, 2)).await.expect_err("no number");
    assert!(matches!(error, StoreError::Layout { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("an index of table products") && !text.contains("SECRET"), "{text}");
    place.end().await;
}

#[tokio::test]
async fn a_partition_without_a_row_gets_one_and_a_retired_version_is_gone() {
    let place = Place::new().await;
    let declaration = products();
    place.register(&declaration).await;
    let answer = place.store.claim(&claim(&declaration, 7)).await.unwrap();
    let Claimed::Owned(row) = answer else { panic!("{answer:?}") };
    assert_eq!(
        (row.fence.position, row.fence.epoch.get(), row.fence.revision.get()),
        (NextOffset::ZERO, 1, 0)
    );
    assert_eq!((row.boundary, row.topic_id.as_deref()), (NextOffset::ZERO, Some("topic-id")));
    let answer = place.store.claim(&claim(&declaration, 7)).await.unwrap();
    let Claimed::Owned(row) = answer else { panic!("{answer:?}") };
    assert_eq!(row.fence.epoch.get(), 2);
    place.store.retire(&key(&declaration)).await.unwrap();
    assert_eq!(place.store.claim(&claim(&declaration, 7)).await, Ok(Claimed::Gone));
    assert_eq!(place.store.claim(&claim(&declaration, 0)).await, Ok(Claimed::Gone));
    place.end().await;
}

#[tokio::test]
async fn no_view_is_there_before_every_partition_has_reached_its_boundary() {
    let place = Place::new().await;
    let declaration = products();
    let mut registration = registration(&declaration, 2);
    registration.partitions[1].boundary = NextOffset::new(1);
    place.store.register(&registration).await.unwrap();
    let mut writer = Writer::claim(place.store.clone(), &declaration, 1).await;
    assert_eq!(place.store.promote_first(&declaration).await, Ok(Promotion::NotYet));
    assert!(place.store.read_view("products", 1).await.is_err());
    writer.commit(vec![row(text("p1"), set(vec![]))]).await;
    assert_eq!(place.store.promote_first(&declaration).await, Ok(Promotion::Live));
    assert_eq!(place.store.promote_first(&declaration).await, Ok(Promotion::Live));
    assert_eq!(place.view("products").await, ["p1|∅|∅"]);
    place.end().await;
}

#[tokio::test]
async fn readers_may_query_views_and_nothing_else() {
    let place = Place::new().await;
    let role = unique("reader");
    let (missing, declaration) = (place.with(|settings| settings.readers = vec![role.clone()]), products());
    let error = missing.lay_out().await.unwrap_err().to_string();
    assert!(error.contains(&role), "{error}");
    place.run(&format!("create role {role}")).await;
    missing.lay_out().await.unwrap();
    missing.register(&registration(&declaration, 1)).await.unwrap();
    missing.promote_first(&declaration).await.unwrap();
    let asked = |what: &str| {
        format!("select has_table_privilege('{role}', '{}.{what}', 'select')::text", place.schema)
    };
    assert_eq!(place.texts(&asked("products")).await, ["true"]);
    assert_eq!(place.texts(&asked("projector_view_status")).await, ["true"]);
    assert_eq!(place.texts(&asked("products__v1")).await, ["false"]);
    missing.close().await;
    place.run(&format!("drop owned by {role}; drop role {role}")).await;
    place.end().await;
}

#[tokio::test]
async fn a_role_of_its_own_for_ddl_lets_the_other_one_write() {
    let place = Place::bare();
    let role = unique("writer");
    place.run(&format!("create role {role} login password 'pw'")).await;
    let plain = url().rsplit_once('@').map(|(_, host)| format!("postgres://{role}:pw@{host}")).unwrap();
    let store = Arc::new(place.with(|settings| {
        settings.admin_url = Some(settings.url.clone());
        settings.url = SecretString::from(plain);
    }));
    let declaration = products();
    store.lay_out().await.unwrap();
    store.lay_out().await.unwrap();
    store.register(&registration(&declaration, 1)).await.unwrap();
    store.promote_first(&declaration).await.unwrap();
    let mut writer = Writer::claim(store.clone(), &declaration, 0).await;
    writer.commit(vec![row(text("p1"), set(vec![]))]).await;
    assert_eq!(store.read_view("products__v1", 5).await.unwrap().rows.len(), 1);
    store.retire(&key(&declaration)).await.unwrap();
    store.close().await;
    place.run(&format!("drop owned by {role}; drop role {role}")).await;
    place.end().await;
}

#[tokio::test]
async fn retiring_drops_everything_of_the_version_and_frees_its_number() {
    let place = Place::new().await;
    let declaration = products();
    let mut writer = place.begin(&declaration).await;
    writer.commit(vec![row(text("p1"), set(vec![])), row(text("p2"), set(vec![]))]).await;
    let version = key(&declaration);
    let plan = place.store.retire_plan(&version).await.unwrap();
    assert_eq!(
        (plan.views.as_slice(), plan.tables.as_slice()),
        (&["products".to_owned()][..], &[("products__v1".to_owned(), 2)][..])
    );
    assert!(!plan.in_use);
    place.run("create view {s}.on_top as select * from {s}.products").await;
    let error = place.store.retire(&version).await.unwrap_err();
    assert!(matches!(error, StoreError::Refused { .. }), "{error:?}");
    assert!(error.to_string().contains(&format!("view {}.on_top depends on it", place.schema)), "{error}");
    assert_eq!(place.view("products").await.len(), 2);
    place.run("drop view {s}.on_top").await;
    assert_eq!(place.store.retire(&version).await, Ok(plan));
    let answer = writer.apply(vec![]).await;
    assert_eq!(answer, Ok(Applied::Fenced(vec![0])));
    assert!(matches!(place.store.retire_plan(&version).await, Err(StoreError::Refused { .. })));
    assert!(place.store.versions().await.unwrap().is_empty());
    let changed = Declaration { digest: "digest-2".into(), ..declaration };
    assert_eq!(place.store.register(&registration(&changed, 1)).await, Ok(Registered::New));
    place.end().await;
}

fn report(_declaration: &Declaration, observations: Vec<Observation>) -> InstanceReport {
    InstanceReport {
        instance: InstanceId("instance-1".into()),
        host: "host".into(),
        program_version: "0.1.0".into(),
        broker_answered_at: Some(1_700_000_000_000_000),
        observations,
    }
}

fn observation(writer: &Writer) -> Observation {
    Observation {
        version: key(&writer.declaration),
        partition: writer.partition.clone(),
        epoch: writer.fence.epoch,
        readable_end: Some(writer.fence.position),
        oldest_pending_at: None,
        blocked: None,
    }
}

const STATUS: &str = "select view, state, coalesce(reason, '-'), coalesce(lag_records::text, '-'), coalesce(round(age_seconds)::text, '-'), \
                      open_dead_letters::text from {s}.projector_view_status";

#[tokio::test]
async fn the_status_view_and_status_follow_the_observations() {
    let place = Place::new().await;
    let declaration = products();
    let mut registration = registration(&declaration, 2);
    registration.partitions[1].boundary = NextOffset::new(1);
    place.store.register(&registration).await.unwrap();
    assert_eq!(
        place.texts(STATUS).await,
        ["products|unavailable|nobody observes partition events:0 and 1 more|-|-|0"]
    );
    let first = Writer::claim(place.store.clone(), &declaration, 0).await;
    let mut second = Writer::claim(place.store.clone(), &declaration, 1).await;
    let behind = Observation { readable_end: Some(NextOffset::new(3)), ..observation(&second) };
    place.store.observe(&report(&declaration, vec![behind.clone(), observation(&first)])).await.unwrap();
    assert_eq!(
        place.texts(STATUS).await,
        ["products|catching_up|being built: partitions that have not reached their boundary: 1 of 2|3|-|0"]
    );
    second.commit(vec![]).await;
    place.store.promote_first(&declaration).await.unwrap();
    let long_ago = Observation { oldest_pending_at: Some(0), ..behind.clone() };
    place.store.observe(&report(&declaration, vec![long_ago])).await.unwrap();
    let rows = place.texts(STATUS).await;
    assert!(rows[0].starts_with("products|catching_up|the oldest event that is not applied is "), "{rows:?}");
    assert!(rows[0].contains("the limit is 120 s|2|"), "{rows:?}");
    let blocked =
        Observation { oldest_pending_at: Some(i64::MAX), blocked: Some("SQLSTATE 53300".into()), ..behind };
    place.store.observe(&report(&declaration, vec![blocked])).await.unwrap();
    assert_eq!(
        place.texts(STATUS).await,
        ["products|ready|partition events:1 is blocked: SQLSTATE 53300|2|0|0"]
    );
    let status = place.store.status(Some("catalogue")).await.unwrap();
    assert_eq!(status.len(), 2);
    assert!(status[1].owner_alive && status[1].observed_seconds_ago.unwrap() < 5.0);
    assert_eq!(
        (status[1].readable_end, status[1].blocked.as_deref()),
        (Some(NextOffset::new(3)), Some("SQLSTATE 53300"))
    );
    assert!(place.store.status(Some("other")).await.unwrap().is_empty());
    // An older owner's word does not replace a newer one's.
    let newer = Writer::claim(place.store.clone(), &declaration, 1).await;
    place.store.observe(&report(&declaration, vec![observation(&newer)])).await.unwrap();
    place
        .store
        .observe(&report(
            &declaration,
            vec![Observation { blocked: Some("old".into()), ..observation(&second) }],
        ))
        .await
        .unwrap();
    assert_eq!(place.store.status(None).await.unwrap()[1].blocked, None);
    assert_eq!(place.texts(STATUS).await, ["products|ready|-|0|0|0"]);
    place
        .run(
            "update {s}.projector_observations set observed_at = now() - interval '11 s' where partition = 0",
        )
        .await;
    assert_eq!(place.texts(STATUS).await, ["products|unavailable|nobody observes partition events:0|0|-|0"]);
    place.store.sign_off(&InstanceId("instance-1".into())).await.unwrap();
    assert!(!place.store.status(None).await.unwrap()[1].owner_alive);
    place.end().await;
}
