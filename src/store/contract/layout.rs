//! The projector's tables, registering, tables that differ, retiring.

use super::{
    Harness, Scene, TEXT, advance, column, declaration, defaulted, item, items, registration, required, set,
    table, text,
};
use crate::fold::{Assignments, Change};
use crate::projection::{
    ColumnId, ColumnType, Datum, Declaration, Index, Nullability, Ownership, Table, View, ViewBody,
};
use crate::store::{
    Applied, ClaimRequest, Claimed, LayoutState, Promotion, Registered, SharedStore, StoreError, VersionState,
};

const ADVICE: &str = "projector retire shop@1 --execute";

pub(super) async fn laid_out(harness: &dyn Harness) -> SharedStore {
    let store = harness.store();
    store.lay_out().await.expect("laid out");
    store
}

pub(super) fn layout_text(error: StoreError) -> String {
    match error {
        StoreError::Layout { problem, fix } => format!("{problem}; {fix}"),
        other => panic!("expected a difference of the layout: {other:?}"),
    }
}

pub(super) fn refused_text(error: StoreError) -> String {
    match error {
        StoreError::Refused { problem, fix } => format!("{problem}; {fix}"),
        other => panic!("expected a refusal: {other:?}"),
    }
}

fn index(columns: &[&str]) -> Index {
    Index {
        columns: columns.iter().map(|name| (*name).to_owned()).collect(),
        expression: None,
        unique: false,
        method: None,
        condition: None,
    }
}

pub(crate) async fn laying_out_again_changes_nothing(harness: &dyn Harness) {
    assert_eq!(harness.store().layout().await, Ok(LayoutState::Absent));
    let scene = Scene::of_tables(harness, vec![items()]).await;
    assert_eq!(scene.store.layout().await, Ok(LayoutState::Present));
    let before = scene.rows("select * from projector_layout").await;
    scene.store.lay_out().await.expect("laid out again");
    assert_eq!(scene.rows("select * from projector_layout").await, before);
    assert_eq!(scene.store.versions().await.expect("versions").len(), 1);
}

pub(crate) async fn a_missing_column_of_the_projectors_tables_is_named(harness: &dyn Harness) {
    let store = laid_out(harness).await;
    harness.execute("alter table projector_erasures rename column reason to cause").await;
    let text = layout_text(store.lay_out().await.expect_err("a column is missing"));
    assert!(text.contains("projector_erasures") && text.contains("reason"), "{text}");
}

/// What has a name of the projector's and is not its own, since nobody has laid out the store.
pub(crate) async fn what_is_not_the_projectors_is_told_so(harness: &dyn Harness) {
    for (sql, name) in [
        ("create table projector_layout (x integer)", "projector_layout"),
        ("create table projector_erasures (subject integer)", "projector_erasures"),
        ("create table projector_view_status (view integer)", "projector_view_status"),
    ] {
        harness.execute(sql).await;
        let text = layout_text(harness.store().lay_out().await.expect_err(name));
        assert!(text.contains(&format!("{name} is there already and is not ours")), "{text}");
        assert!(text.contains("`store.") && text.contains("rename"), "{text}");
        harness.execute(&format!("drop table {name}")).await;
    }
    laid_out(harness).await;
}

pub(crate) async fn a_table_of_somebody_else_is_told_from_ours(harness: &dyn Harness) {
    let store = laid_out(harness).await;
    harness.execute("create table items__v1 (id integer, theirs integer)").await;
    let text =
        layout_text(store.register(&registration(declaration(vec![items()]))).await.expect_err("theirs"));
    assert!(text.contains("table items__v1 is there already and is not ours: "), "{text}");
    assert!(text.contains("rename that table"), "{text}");
    harness.execute("drop table items__v1").await;
    harness.execute("create table items (id integer)").await;
    let text =
        refused_text(store.register(&registration(declaration(vec![items()]))).await.expect_err("theirs"));
    assert!(text.contains("a table named items is there already") && text.contains("not ours"), "{text}");
    assert!(text.contains("rename"), "{text}");
}

pub(crate) async fn an_index_of_the_projectors_tables_that_differs_is_named(harness: &dyn Harness) {
    let store = laid_out(harness).await;
    harness
        .execute(
            "drop index projector_dead_letters_open; \
             create index projector_dead_letters_open on projector_dead_letters (projection)",
        )
        .await;
    let text = layout_text(store.lay_out().await.expect_err("another index"));
    assert!(text.contains("projector_dead_letters_open") && text.contains("(projection)"), "{text}");
    harness.execute("drop index projector_dead_letters_open").await;
    store.lay_out().await.expect("the index is made anew");
}

pub(crate) async fn a_store_of_a_newer_program_is_refused(harness: &dyn Harness) {
    let store = laid_out(harness).await;
    harness.execute("update projector_layout set layout = 900, oldest_binary = 900").await;
    let text = layout_text(store.lay_out().await.expect_err("newer"));
    assert!(text.contains("newer"), "{text}");
    // A newer layout that this program may still use is left alone.
    harness.execute("update projector_layout set oldest_binary = 1").await;
    store.lay_out().await.expect("usable");
    assert_eq!(harness.rows("select layout from projector_layout").await, [["900"]]);
}

pub(crate) async fn a_version_is_new_once_and_known_afterwards(harness: &dyn Harness) {
    let store = laid_out(harness).await;
    let registration = registration(declaration(vec![items()]));
    assert_eq!(store.register(&registration).await, Ok(Registered::New));
    assert_eq!(store.register(&registration).await, Ok(Registered::Known));
    let versions = store.versions().await.expect("versions");
    assert_eq!(versions.len(), 1);
    assert_eq!(versions[0].key.to_string(), "shop@1");
    assert_eq!(versions[0].state, VersionState::Building);
    assert_eq!((&*versions[0].text, &*versions[0].digest), ("projection: shop", "d1"));
    assert_eq!(versions[0].log, registration.log);
    let positions = "select topic, partition, position, start_position, boundary, epoch, revision, topic_id \
                     from projector_positions order by partition";
    let row = |number: &str| ["shop.items", number, "0", "0", "10", "0", "0", "topic-1"].map(str::to_owned);
    assert_eq!(harness.rows(positions).await, [row("0"), row("1")]);
}

pub(crate) async fn another_mapping_version_cluster_or_group_is_refused_with_advice(harness: &dyn Harness) {
    let store = laid_out(harness).await;
    let registered = registration(declaration(vec![items()]));
    store.register(&registered).await.expect("registered");
    let changed = |change: &dyn Fn(&mut Declaration)| {
        let mut declaration = declaration(vec![items()]);
        change(&mut declaration);
        registration(declaration)
    };
    let mut other_cluster = registered.clone();
    other_cluster.log.cluster_id = "cluster-2".into();
    let mut other_group = registered.clone();
    other_group.log.consumer_group = "group-2".into();
    for (other, named) in [
        (changed(&|declaration| declaration.digest = "d2".into()), "shop@1"),
        (changed(&|declaration| declaration.version = 2), "shop@2"),
        (other_cluster, "cluster-2"),
        (other_group, "group-2"),
    ] {
        let text = refused_text(store.register(&other).await.expect_err("refused"));
        assert!(text.contains(named) && text.contains(ADVICE), "{text}");
    }
    assert_eq!(store.versions().await.expect("versions").len(), 1);
    assert_eq!(store.register(&registered).await, Ok(Registered::Known));
}

/// What differs, and how.
type Difference<'a> = (&'a str, &'a dyn Fn(&mut Table));

pub(crate) async fn a_table_that_differs_is_named_with_its_column(harness: &dyn Harness) {
    let store = laid_out(harness).await;
    let declared = |change: &dyn Fn(&mut Table)| {
        let mut table = items();
        change(&mut table);
        Declaration { views: Vec::new(), ..declaration(vec![table]) }
    };
    let cases: [Difference<'_>; 6] = [
        ("price", &|table| drop(table.columns.remove(2))),
        ("price", &|table| table.columns[2].kind = TEXT),
        ("price", &|table| table.columns[2].nullability = Nullability::NotNull),
        ("name", &|table| table.columns[1].nullability = Nullability::Nullable),
        ("primary key", &|table| table.primary_key.push(ColumnId(1))),
        ("extra", &|table| table.columns.push(required("extra", TEXT))),
    ];
    for (named, change) in cases {
        for statement in store.ddl(&declared(change)) {
            harness.execute(&statement).await;
        }
        let other = registration(declared(&|_| {}));
        let text = layout_text(store.register(&other).await.expect_err(named));
        assert!(text.contains("items__v1") && text.contains(named), "{named}: {text}");
        assert!(store.versions().await.expect("versions").is_empty());
        harness.execute("drop table items__v1").await;
    }
}

pub(crate) async fn a_table_that_is_gone_is_named(harness: &dyn Harness) {
    let scene = Scene::of_tables(harness, vec![items()]).await;
    harness.execute("drop table items__v1").await;
    let again = registration((*scene.declaration).clone());
    let text = layout_text(scene.store.register(&again).await.expect_err("gone"));
    assert!(text.contains("items__v1"), "{text}");
}

pub(crate) async fn a_table_with_rows_of_nobody_is_refused(harness: &dyn Harness) {
    let store = laid_out(harness).await;
    let declared = Declaration { views: Vec::new(), ..declaration(vec![items()]) };
    for statement in store.ddl(&declared) {
        harness.execute(&statement).await;
    }
    harness.execute("insert into items__v1 (id, name) values (1, 'left over')").await;
    let text = refused_text(store.register(&registration(declared.clone())).await.expect_err("rows"));
    assert!(text.contains("items__v1 is there already and is not ours"), "{text}");
    assert!(!text.contains("left over"), "{text}");
    harness.execute("delete from items__v1").await;
    assert_eq!(store.register(&registration(declared)).await, Ok(Registered::New));
}

pub(crate) async fn a_name_of_another_projection_is_refused(harness: &dyn Harness) {
    let scene = Scene::of_tables(harness, vec![items()]).await;
    let other = Declaration { name: "other".into(), ..declaration(vec![items()]) };
    let text = refused_text(scene.store.register(&registration(other)).await.expect_err("taken"));
    assert!(text.contains("shop"), "{text}");
    assert_eq!(scene.store.versions().await.expect("versions").len(), 1);
}

pub(crate) async fn indexes_and_views_that_are_new_are_added(harness: &dyn Harness) {
    let mut scene = Scene::of_tables(harness, vec![items()]).await;
    scene.accept(vec![item(1, Change::upsert(named("lamp")))]).await;
    let mut more = (*scene.declaration).clone();
    more.tables[0].indexes = vec![Index { unique: true, ..index(&["name"]) }, index(&["price", "stock"])];
    assert_eq!(scene.store.register(&registration(more.clone())).await, Ok(Registered::Known));
    let twice = vec![item(2, Change::upsert(named("lamp")))];
    assert!(matches!(scene.apply(twice).await, Err(StoreError::Database { .. })), "the new index is unique");

    reach_boundary(&mut scene).await;
    assert_eq!(scene.store.promote_first(&more).await, Ok(Promotion::Live));
    let sql = "select name from {items}".to_owned();
    more.views.push(View { name: "names".into(), body: ViewBody::Sql(sql) });
    assert_eq!(scene.store.register(&registration(more)).await, Ok(Registered::Known));
    assert_eq!(scene.rows("select * from names").await, [["lamp"]]);
    assert_eq!(scene.rows("select name from items").await, [["lamp"]]);
}

pub(super) fn named(name: &str) -> Assignments {
    vec![set(super::NAME, text(name))]
}

/// Moves both partitions to their boundary.
pub(super) async fn reach_boundary(scene: &mut Scene<'_>) {
    scene.advance(advance(0, scene.fence, 10)).await;
    let other = scene.owned(1).await.fence;
    assert_eq!(
        scene.transact(&[], &[], &[advance(1, other, 12)]).await,
        Ok(Applied::Committed { missed_updates: 0 })
    );
}

pub(crate) async fn the_printed_layout_is_what_laying_out_expects(harness: &dyn Harness) {
    let store = harness.store();
    for _ in 0..2 {
        for statement in store.layout_ddl() {
            harness.execute(&statement).await;
        }
    }
    store.lay_out().await.expect("as printed");
    assert_eq!(harness.rows("select layout, oldest_binary from projector_layout").await, [["1", "1"]]);
}

pub(crate) async fn the_printed_ddl_is_what_registering_expects(harness: &dyn Harness) {
    let store = laid_out(harness).await;
    let mut rich = items();
    rich.ownership = Ownership::OwnedStored;
    rich.indexes = vec![
        index(&["name"]),
        Index { unique: true, condition: Some("price > 0".into()), ..index(&["price", "stock"]) },
        Index { expression: Some("lower(name)".into()), ..index(&[]) },
    ];
    let mut loud = column("loud", TEXT);
    loud.generated = Some("upper(name)".into());
    rich.columns.push(loud);
    rich.columns.push(column("price_exact", ColumnType::Numeric { precision_scale: Some((10, 2)) }));
    rich.columns.push(column("short", ColumnType::Text { max_chars: Some(3) }));
    rich.columns.push(defaulted("seen", ColumnType::TimestampTz, Datum::TimestampTz(-1)));
    rich.columns.push(defaulted("quoted", TEXT, text("it's \\ \"so\"")));
    let declared = Declaration { views: Vec::new(), ..declaration(vec![rich]) };
    for statement in store.ddl(&declared) {
        harness.execute(&statement).await;
    }
    assert_eq!(store.register(&registration(declared.clone())).await, Ok(Registered::New));
    assert_eq!(store.register(&registration(declared)).await, Ok(Registered::Known));
}

pub(crate) async fn odd_names_are_kept_exactly(harness: &dyn Harness) {
    let odd = table(
        "Order \"Lines\"",
        Ownership::OwnedByKey,
        vec![
            required("select", ColumnType::BigInt),
            column("a\"b'c", TEXT),
            column("Größe {x}", ColumnType::BigInt),
        ],
    );
    let mut scene = Scene::of_tables(harness, vec![odd]).await;
    let change = Change::upsert(vec![set(1, text("t")), super::add(2, 3)]);
    scene.accept(vec![item(1, change.clone())]).await;
    scene.accept(vec![item(1, change)]).await;
    scene.advance(advance(0, scene.fence, 10)).await;
    let other = scene.owned(1).await.fence;
    assert_eq!(
        scene.transact(&[], &[], &[advance(1, other, 12)]).await,
        Ok(Applied::Committed { missed_updates: 0 })
    );
    assert_eq!(scene.store.promote_first(&scene.declaration).await, Ok(Promotion::Live));
    let rows =
        scene.rows("select \"select\", \"a\"\"b'c\", \"Größe {x}\" from \"Order \"\"Lines\"\"\"").await;
    assert_eq!(rows, [["1", "t", "6"]]);
    let read = scene.store.read_view("Order \"Lines\"", 9).await.expect("rows");
    assert_eq!(read.columns, ["select", "a\"b'c", "Größe {x}"]);
}

pub(crate) async fn views_appear_with_the_first_promotion(harness: &dyn Harness) {
    let mut scene = Scene::of_tables(harness, vec![items()]).await;
    scene.accept(vec![item(1, Change::upsert(named("lamp")))]).await;
    assert_eq!(scene.store.promote_first(&scene.declaration).await, Ok(Promotion::NotYet));
    scene.advance(advance(0, scene.fence, 10)).await;
    assert_eq!(
        scene.store.promote_first(&scene.declaration).await,
        Ok(Promotion::NotYet),
        "partition 1 is behind"
    );
    refused_text(scene.store.read_view("items", 10).await.expect_err("no view yet"));
    let other = scene.owned(1).await.fence;
    assert_eq!(
        scene.transact(&[], &[], &[advance(1, other, 12)]).await,
        Ok(Applied::Committed { missed_updates: 0 })
    );
    for _ in 0..2 {
        assert_eq!(scene.store.promote_first(&scene.declaration).await, Ok(Promotion::Live));
    }
    assert_eq!(scene.rows("select id, name from items").await, [["1", "lamp"]]);
    assert_eq!(scene.store.versions().await.expect("versions")[0].state, VersionState::Live);
}

pub(crate) async fn views_hide_the_projectors_columns(harness: &dyn Harness) {
    let mut owned = items();
    owned.ownership = Ownership::OwnedStored;
    let mut declared = declaration(vec![owned]);
    let sql = "select p.*, p.price * 2 as twice, '{x}' as braces from {items} p where p.name <> '{items'";
    declared.views.push(View { name: "dear_items".into(), body: ViewBody::Sql(sql.into()) });
    let mut scene = Scene::of(harness, declared).await;
    let mut change =
        item(1, Change::upsert(vec![set(super::NAME, text("lamp")), set(super::PRICE, Datum::Int(4))]));
    change.aggregate = Some(text("a"));
    scene.accept(vec![change]).await;
    reach_boundary(&mut scene).await;
    assert_eq!(scene.store.promote_first(&scene.declaration).await, Ok(Promotion::Live));
    let items = scene.store.read_view("items", 10).await.expect("rows");
    assert_eq!(items.columns, ["id", "name", "price", "stock", "note"]);
    let dear = scene.store.read_view("dear_items", 10).await.expect("rows");
    assert_eq!(dear.columns, ["id", "name", "price", "stock", "note", "twice", "braces"]);
    let row = ["1", "lamp", "4", "5", "-", "8", "{x}"].map(|text| Some(text.to_owned()));
    assert_eq!(dear.rows, [row]);
}

pub(crate) async fn a_view_is_read_in_order(harness: &dyn Harness) {
    let mut scene = Scene::of_tables(harness, vec![items()]).await;
    let changes = [3, 1, 2].map(|id| item(id, Change::upsert(named(&format!("n{id}")))));
    scene.accept(changes.to_vec()).await;
    reach_boundary(&mut scene).await;
    assert_eq!(scene.store.promote_first(&scene.declaration).await, Ok(Promotion::Live));
    let read = scene.store.read_view("items", 2).await.expect("rows");
    let ids: Vec<_> = read.rows.iter().map(|row| row[0].as_deref()).collect();
    assert_eq!(ids, [Some("1"), Some("2")]);
    assert_eq!(read.rows[0][super::PRICE], None);
    assert_eq!(scene.store.read_view("items", u32::MAX).await.expect("rows").rows.len(), 3);
    refused_text(scene.store.read_view("nothing", 1).await.expect_err("no such view"));
}

pub(crate) async fn retiring_drops_everything_and_frees_the_number(harness: &dyn Harness) {
    let mut scene = Scene::of_tables(
        harness,
        vec![items(), table("tags", Ownership::OwnedByKey, vec![required("id", ColumnType::BigInt)])],
    )
    .await;
    scene.accept(vec![item(1, Change::upsert(named("lamp"))), item(2, Change::upsert(named("desk")))]).await;
    let letter = super::letters::letter(&scene.version, 0, 1);
    let next = advance(0, scene.fence, 10);
    let letters = std::slice::from_ref(&letter);
    assert_eq!(
        scene.transact(&[], letters, std::slice::from_ref(&next)).await,
        Ok(Applied::Committed { missed_updates: 0 })
    );
    let other = scene.owned(1).await.fence;
    assert_eq!(
        scene.transact(&[], &[], &[advance(1, other, 12)]).await,
        Ok(Applied::Committed { missed_updates: 0 })
    );
    assert_eq!(scene.store.promote_first(&scene.declaration).await, Ok(Promotion::Live));

    let plan = scene.store.retire_plan(&scene.version).await.expect("a plan");
    assert_eq!((plan.version.key.clone(), plan.version.state), (scene.version.clone(), VersionState::Live));
    assert_eq!(plan.views, ["items", "tags"]);
    assert_eq!(plan.tables, [("items__v1".to_owned(), 2), ("tags__v1".to_owned(), 0)]);
    assert_eq!((plan.dead_letters, plan.open_dead_letters, plan.in_use), (1, 1, false));
    assert_eq!(scene.rows("select count(*) from items").await, [["2"]], "a plan drops nothing");

    assert_eq!(scene.store.retire(&scene.version).await, Ok(plan));
    for table in ["versions", "positions", "dead_letters", "observations"] {
        let sql = format!("select count(*) from projector_{table}");
        assert_eq!(scene.rows(&sql).await, [["0"]], "{table}");
    }
    refused_text(scene.store.retire_plan(&scene.version).await.expect_err("gone"));
    refused_text(scene.store.retire(&scene.version).await.expect_err("gone"));
    refused_text(scene.store.read_view("items", 1).await.expect_err("gone"));

    // What its owner still sends is fenced, and its claims find nothing.
    let late = advance(0, next.expected.advanced_to(next.to), 11);
    let change = vec![item(3, Change::upsert(named("late")))];
    match scene.transact(&[change], &[], std::slice::from_ref(&late)).await {
        Ok(Applied::Fenced(lost)) => assert_eq!(lost, [0]),
        Err(StoreError::Database { .. }) => {}
        other => panic!("a retired version takes no rows: {other:?}"),
    }
    let request = ClaimRequest {
        version: scene.version.clone(),
        partition: super::partition(0),
        topic_id: None,
        digest: scene.declaration.digest.clone(),
        instance: super::instance("late"),
    };
    assert_eq!(scene.store.claim(&request).await, Ok(Claimed::Gone));

    let changed = Declaration { digest: "d2".into(), ..(*scene.declaration).clone() };
    assert_eq!(scene.store.register(&registration(changed)).await, Ok(Registered::New));
    assert_eq!(scene.rows("select count(*) from items__v1").await, [["0"]]);
    assert_eq!(scene.store.versions().await.expect("versions")[0].state, VersionState::Building);

    // An instance that still has the former mapping owns nothing of the new one, neither by a claim nor by its fence.
    assert_eq!(scene.store.claim(&request).await, Ok(Claimed::Gone));
    let new_partition = ClaimRequest { partition: super::partition(77), ..request.clone() };
    assert_eq!(scene.store.claim(&new_partition).await, Ok(Claimed::Gone));
    for number in [0, 78] {
        let partition = super::partition(number);
        let of_now = ClaimRequest { digest: "d2".into(), partition, ..request.clone() };
        let Ok(Claimed::Owned(row)) = scene.store.claim(&of_now).await else { panic!("claimed") };
        assert!(row.fence.epoch > late.expected.epoch, "{:?} after {:?}", row.fence, late.expected);
    }
}
