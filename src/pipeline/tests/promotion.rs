//! When the first promotion is asked for.

use std::time::Instant;

use super::{Scene, eventually};
use crate::store::{StoreError, VersionState};

#[tokio::test(flavor = "multi_thread")]
async fn promotion_is_asked_for_only_where_it_may_succeed() {
    let mut scene = Scene::open_filled("dead_letter", 2, 3).await;
    let begun = Instant::now();
    // The other partition is another instance's, which is slow.
    scene.member.assign(&[Scene::name(0)]);
    scene.reaches(0, 3).await;
    for number in 0..30 {
        scene.pay(0, "a", 1);
        scene.reaches(0, 4 + number).await;
    }
    // At start, at the boundary, and now and then.
    let most = 3 + begun.elapsed().as_secs() / 5;
    let asked = scene.store.promotion_calls();
    assert!(u64::try_from(asked).expect("small") <= most, "{asked} of {most}");
    assert_eq!(scene.row(1).await.map(|row| row.version_state), Some(VersionState::Building));
    // Now its turn has come, and the partition that completes the version asks at once, also where it fails at first.
    let away = StoreError::Connection { action: "promote a version", detail: "refused".to_owned() };
    scene.store.fail_promotions(1, &away);
    scene.member.assign(&[Scene::name(1)]);
    scene.reaches(1, 3).await;
    eventually("live", || async { (scene.row(1).await?.version_state == VersionState::Live).then_some(()) })
        .await;
    assert_eq!(scene.cents().await["a"], "36");
    scene.end().await;
}
