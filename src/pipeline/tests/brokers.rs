//! Brokers that are away: the store says why nothing moves.

use std::time::Duration;

use super::{Scene, eventually};
use crate::position::NextOffset;
use crate::source::{SourceEvent, Trouble};
use crate::store::{ClaimRequest, InstanceId, ReadStore};
use crate::telemetry::{self, RetryClass};

/// Gauges are the process's: these partitions are of no other test.
const MINE: (i32, i32) = (40, 41);

#[tokio::test(flavor = "multi_thread")]
async fn the_owner_says_why_nothing_moves_also_once_it_has_lost_the_partition() {
    let mut scene = Scene::open("dead_letter", 42).await;
    scene.pay(MINE.0, "a", 1);
    scene.member.assign(&[Scene::name(MINE.0)]);
    scene.reaches(MINE.0, 1).await;
    let blocked = |what: &'static str, end: Option<i64>| {
        let scene = &scene;
        eventually(what, move || async move {
            let row = scene.row(MINE.0).await?;
            let is_so = row.blocked.as_deref() == Some(what) && row.readable_end == end.map(NextOffset::new);
            (is_so && row.owner_alive).then_some(())
        })
    };
    let trouble = |what: &str| {
        SourceEvent::Trouble(Some(Trouble { what: what.to_owned(), class: RetryClass::Infrastructure }))
    };
    // At first the end that was told last still holds; then it says nothing any more.
    scene.member.silence(Some(Duration::from_secs(1)));
    scene.member.report(trouble("no broker can be reached"));
    blocked("no broker can be reached", Some(1)).await;
    scene.member.report(SourceEvent::Trouble(None));
    scene.member.silence(Some(Duration::from_mins(1)));
    blocked("no broker has answered for more than 10 s", None).await;
    scene.member.lose(&[Scene::name(MINE.0)]);
    scene.member.report(trouble("still away"));
    blocked("still away", None).await;
    let version = scene.store.versions().await.expect("versions").remove(0).key;
    assert!(telemetry::gauges::is_owned(&version, &Scene::name(MINE.0)), "its gauges are still there");
    // They are back, and give the partition to somebody: then its last owner is silent.
    scene.member.report(SourceEvent::Trouble(None));
    scene.member.silence(None);
    eventually("its gauges are gone", || async {
        (!telemetry::gauges::is_owned(&version, &Scene::name(MINE.0))).then_some(())
    })
    .await;
    scene.member.assign(&[Scene::name(MINE.0)]);
    scene.pay(MINE.0, "a", 1);
    scene.reaches(MINE.0, 2).await;
    eventually("nothing blocks", || async {
        let row = scene.row(MINE.0).await?;
        (row.blocked.is_none() && row.readable_end == Some(NextOffset::new(2))).then_some(())
    })
    .await;
    assert_eq!(scene.cents().await["a"], "2");
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_another_instance_has_taken_over_is_left_to_it() {
    let mut scene = Scene::open("dead_letter", 42).await;
    scene.pay(MINE.1, "a", 1);
    scene.member.assign(&[Scene::name(MINE.1)]);
    scene.reaches(MINE.1, 1).await;
    scene.member.silence(Some(Duration::from_mins(1)));
    scene.member.lose(&[Scene::name(MINE.1)]);
    let version = scene.store.versions().await.expect("versions").remove(0);
    eventually("it says so", || async { scene.row(MINE.1).await?.blocked }).await;
    let claim = ClaimRequest {
        version: version.key.clone(),
        partition: Scene::name(MINE.1),
        topic_id: Some("id-1".to_owned()),
        digest: version.digest,
        instance: InstanceId("other".into()),
    };
    scene.store.claim(&claim).await.expect("claimed");
    eventually("it is silent", || async {
        (!telemetry::gauges::is_owned(&version.key, &Scene::name(MINE.1))).then_some(())
    })
    .await;
    assert_eq!(scene.row(MINE.1).await.and_then(|row| row.blocked), None);
    scene.end().await;
}
