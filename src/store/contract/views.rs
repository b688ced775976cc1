//! Views: refused where the database does not take them, made, changed and dropped with their version.

use super::layout::{laid_out, named, reach_boundary, refused_text};
use super::{Harness, Scene, declaration, item, items, registration};
use crate::fold::Change;
use crate::projection::{Declaration, View, ViewBody};
use crate::store::{Promotion, Registered, StoreError, VersionState};

pub(crate) async fn a_view_that_cannot_be_made_is_named_before_anything_runs(harness: &dyn Harness) {
    let store = laid_out(harness).await;
    for (sql, said) in
        [("select nonsense from {items}", "nonsense"), ("selec 1", "selec"), ("select * from {itemz}", "{")]
    {
        let mut declared = declaration(vec![items()]);
        declared.views.push(View { name: "dear_items".into(), body: ViewBody::Sql(sql.into()) });
        match store.register(&registration(declared)).await {
            Err(StoreError::View { view, problem, .. }) => {
                assert_eq!(view, "dear_items");
                assert!(problem.contains(said), "{sql}: {problem}");
            }
            other => panic!("{sql}: {other:?}"),
        }
        assert!(store.versions().await.expect("versions").is_empty(), "{sql}");
    }
}

/// A live version with one row in `items` and, beside the view of the table, one of these names and texts.
async fn live<'h>(harness: &'h dyn Harness, views: &[(&str, &str)]) -> Scene<'h> {
    let mut declared = declaration(vec![items()]);
    declared.views.extend(views.iter().map(|(name, sql)| view(name, sql)));
    let mut scene = Scene::of(harness, declared).await;
    scene.accept(vec![item(1, Change::upsert(named("lamp")))]).await;
    reach_boundary(&mut scene).await;
    assert_eq!(scene.store.promote_first(&scene.declaration).await, Ok(Promotion::Live));
    scene
}

fn view(name: &str, sql: &str) -> View {
    View { name: name.to_owned(), body: ViewBody::Sql(sql.to_owned()) }
}

pub(crate) async fn a_view_that_was_changed_is_as_declared_after_a_start(harness: &dyn Harness) {
    let scene = live(harness, &[]).await;
    let columns = "id, name, price, stock, note";
    harness
        .execute(&format!(
            "drop view items; create view items as select {columns} from items__v1 where 1 = 0"
        ))
        .await;
    assert_eq!(scene.rows("select name from items").await.len(), 0);
    let again = registration((*scene.declaration).clone());
    for _ in 0..2 {
        assert_eq!(scene.store.register(&again).await, Ok(Registered::Known));
        assert_eq!(scene.rows("select name from items").await, [["lamp"]]);
    }
    harness.execute("drop view items").await;
    assert_eq!(scene.store.register(&again).await, Ok(Registered::Known));
    assert_eq!(scene.rows("select name from items").await, [["lamp"]]);
}

pub(crate) async fn a_changed_declaration_of_a_view_is_taken_over(harness: &dyn Harness) {
    let scene = live(harness, &[("names", "select name from {items} i where price > 0")]).await;
    assert_eq!(scene.rows("select * from names").await.len(), 0);
    let mut changed = (*scene.declaration).clone();
    changed.views[1] = view("names", "select name, stock from {items} i");
    assert_eq!(scene.store.register(&registration(changed)).await, Ok(Registered::Known));
    assert_eq!(scene.rows("select * from names").await, [["lamp", "5"]]);
}

pub(crate) async fn a_view_that_is_no_longer_declared_is_dropped(harness: &dyn Harness) {
    let mut declared = declaration(vec![items()]);
    declared.views.push(view("names", "select name from {items} i"));
    let scene =
        live(harness, &[("names", "select name from {items} i"), ("ids", "select id from {items} i")]).await;
    harness.execute("drop view ids").await;
    let fewer = Declaration { views: declared.views[..1].to_vec(), ..(*scene.declaration).clone() };
    assert_eq!(scene.store.register(&registration(fewer)).await, Ok(Registered::Known));
    refused_text(scene.store.read_view("names", 1).await.expect_err("dropped"));
    assert_eq!(scene.store.retire(&scene.version).await.expect("retired").views, ["items"]);
}

pub(crate) async fn a_view_of_somebody_else_is_left_alone(harness: &dyn Harness) {
    let scene = live(harness, &[]).await;
    harness.execute("create view names as select 'theirs' as name").await;
    let mut more = (*scene.declaration).clone();
    more.views.push(view("names", "select name from {items} i"));
    let text = refused_text(scene.store.register(&registration(more)).await.expect_err("taken"));
    assert!(text.contains("names"), "{text}");
    assert_eq!(scene.rows("select name from names").await, [["theirs"]]);
}

pub(crate) async fn a_view_before_the_version_is_live_is_refused(harness: &dyn Harness) {
    let mut scene = Scene::of_tables(harness, vec![items()]).await;
    harness.execute("create view items as select 'theirs' as name").await;
    let again = registration((*scene.declaration).clone());
    let text = refused_text(scene.store.register(&again).await.expect_err("taken"));
    assert!(text.contains("items"), "{text}");
    reach_boundary(&mut scene).await;
    refused_text(scene.store.promote_first(&scene.declaration).await.expect_err("taken"));
    assert_eq!(scene.store.versions().await.expect("versions")[0].state, VersionState::Building);
    harness.execute("drop view items").await;
    assert_eq!(scene.store.promote_first(&scene.declaration).await, Ok(Promotion::Live));
}
