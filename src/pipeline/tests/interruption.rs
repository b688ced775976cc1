//! A partition that is taken away, or a process that ends, does not wait until everything is cut and tried.

use super::{Scene, database, eventually};
use crate::position::NextOffset;
use crate::store::faulty::{ApplyFault, Held};

/// 64 records in one batch, which the store refuses as a whole; its first half is held at the store.
async fn cut_in_two() -> (Scene, Held) {
    let mut scene = Scene::open("dead_letter", 2).await;
    for _ in 0..64 {
        scene.pay(0, "a", 1);
    }
    scene.store.script_apply(ApplyFault::Fails(database("22003")));
    let mut held = scene.store.hold_next_apply();
    scene.member.assign(&[Scene::name(0), Scene::name(1)]);
    held.reached().await;
    (scene, held)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_partition_is_let_go_after_the_run_that_is_in_flight() {
    let (mut scene, held) = cut_in_two().await;
    let (member, name) = (scene.member.clone(), Scene::name(0));
    let mut revoking = Box::pin(member.revoke(std::slice::from_ref(&name)));
    let claims = scene.store.claim_calls();
    tokio::select! {
        biased;
        () = &mut revoking => panic!("the run in flight is waited for"),
        // Events are served in order: once this one is, the revocation has been.
        () = async {
            scene.member.lose(&[Scene::name(1)]);
            scene.member.assign(&[Scene::name(1)]);
            eventually("a claim", || async { (scene.store.claim_calls() > claims).then_some(()) }).await;
        } => {}
    }
    held.release();
    revoking.await;
    assert_eq!(scene.row(0).await.map(|row| row.position), Some(NextOffset::new(32)));
    assert_eq!(scene.member.commits().last(), Some(&(Scene::name(0), NextOffset::new(32))));
    assert_eq!(scene.store.apply_calls(), 2);
    scene.member.assign(&[Scene::name(0)]);
    scene.reaches(0, 64).await;
    scene.pay(0, "a", 1);
    scene.reaches(0, 65).await;
    assert_eq!(scene.cents().await["a"], "65");
    assert_eq!(scene.reasons().await, []);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_ends_ends_after_the_run_that_is_in_flight() {
    let (mut scene, held) = cut_in_two().await;
    let (member, store) = (scene.member.clone(), scene.store.clone());
    scene.stop.cancel();
    // Nothing of this one is in flight; once it is let go, the runner has seen that it is to end.
    member.revoke(&[Scene::name(1)]).await;
    held.release();
    scene.stop().await;
    assert_eq!(store.apply_calls(), 2);
    assert_eq!(member.commits().last(), Some(&(Scene::name(0), NextOffset::new(32))));
    scene.start_again("dead_letter").await;
    scene.member.assign(&[Scene::name(0)]);
    scene.reaches(0, 64).await;
    assert_eq!(scene.cents().await["a"], "64");
    scene.end().await;
}
