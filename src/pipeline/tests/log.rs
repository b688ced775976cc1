//! Logs that are not what the position says (promise P6).

use super::{Scene, TOPIC, eventually};
use crate::position::NextOffset;
use crate::source::{LogFault, SourceEvent, StreamId};
use crate::store::{OperatorAction, Quarantine, ReadStore, ResumeRequest};

impl Scene {
    /// Cuts a partition as an unclean election of a leader does, and writes on in the next epoch.
    fn cut(&mut self, partition: i32, end: i64) {
        self.cluster.bound(&Self::name(partition), NextOffset::ZERO, NextOffset::new(end));
        self.next.insert(partition, end);
        self.epoch = self.epoch.map(|epoch| epoch + 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_was_cut_and_has_grown_past_the_position_is_not_gone_on_with() {
    let mut scene = Scene::open("dead_letter", 2).await;
    scene.epoch = Some(4);
    for _ in 0..6 {
        scene.pay(0, "a", 1);
        scene.pay(1, "b", 1);
    }
    scene.member.assign(&[Scene::name(0), Scene::name(1)]);
    scene.reaches(0, 6).await;
    scene.reaches(1, 6).await;
    scene.stop().await;
    scene.cut(0, 3);
    for _ in 0..6 {
        scene.pay(0, "a", 100);
        // The other partition has a new leader too, which has lost nothing.
        scene.pay(1, "b", 1);
    }
    scene.start_again("dead_letter").await;
    scene.member.assign(&[Scene::name(0), Scene::name(1)]);
    let why = scene.quarantined(0).await;
    assert_eq!(why.reason, Quarantine::LOG_TRUNCATED);
    for number in ["position 6", "leader epoch 5", "by 4"] {
        assert!(why.detail.contains(number), "{number} in {}", why.detail);
    }
    scene.reaches(1, 12).await;
    let cents = scene.cents().await;
    assert_eq!((cents["a"].as_str(), cents["b"].as_str()), ("6", "12"));
    // And it is found again by every later owner.
    scene.stop().await;
    scene.start_again("dead_letter").await;
    scene.member.assign(&[Scene::name(0)]);
    assert_eq!(scene.quarantined(0).await, why);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_cut_while_it_is_read_is_compared_with_what_was_taken_last() {
    let mut scene = Scene::open("dead_letter", 1).await;
    scene.epoch = Some(0);
    for _ in 0..4 {
        scene.pay(0, "a", 1);
    }
    scene.member.assign(&[Scene::name(0)]);
    scene.reaches(0, 4).await;
    let interrupted = |stream: u64| SourceEvent::Interrupted {
        partition: Scene::name(0),
        stream: StreamId(stream),
        log_start: NextOffset::ZERO,
    };
    // Nothing is wrong: it goes on.
    scene.member.report(interrupted(1));
    scene.pay(0, "a", 1);
    scene.reaches(0, 5).await;
    scene.member.pause_all();
    scene.cut(0, 2);
    for _ in 0..8 {
        scene.pay(0, "a", 100);
    }
    scene.member.report(interrupted(2));
    assert_eq!(scene.quarantined(0).await.reason, Quarantine::LOG_TRUNCATED);
    assert_eq!(scene.cents().await["a"], "5");
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_the_log_no_longer_holds_is_not_compared() {
    let mut scene = Scene::open("dead_letter", 1).await;
    scene.epoch = Some(2);
    for _ in 0..4 {
        scene.pay(0, "a", 1);
    }
    scene.member.assign(&[Scene::name(0)]);
    scene.reaches(0, 4).await;
    scene.stop().await;
    // Retention has taken everything that was applied.
    scene.cluster.bound(&Scene::name(0), NextOffset::new(4), NextOffset::new(4));
    scene.epoch = Some(3);
    scene.pay(0, "a", 1);
    scene.start_again("dead_letter").await;
    scene.member.assign(&[Scene::name(0)]);
    scene.reaches(0, 5).await;
    assert_eq!(scene.cents().await["a"], "5");
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quarantined_record_that_was_cut_off_is_not_resumed_in_another_log() {
    let mut scene = Scene::open("quarantine", 1).await;
    scene.epoch = Some(0);
    scene.pay(0, "a", 1);
    scene.pay(0, "a", 1);
    scene.send(0, "a", r#"{"kind":"Coded","code":70000}"#);
    scene.member.assign(&[Scene::name(0)]);
    assert_eq!(scene.quarantined(0).await.reason, "value_out_of_range");
    scene.cut(0, 1);
    for _ in 0..3 {
        scene.pay(0, "a", 100);
    }
    let request = ResumeRequest {
        projection: "payments".to_owned(),
        version: None,
        partition: None,
        action: OperatorAction::Resume,
    };
    scene.store.request_resume(&request).await.expect("asked");
    eventually("another quarantine", || async {
        let why = scene.row(0).await?.quarantine?;
        (why.reason == Quarantine::LOG_TRUNCATED).then_some(())
    })
    .await;
    assert_eq!(scene.row(0).await.map(|row| row.position), Some(NextOffset::new(2)));
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_client_has_found_out_itself_is_stored_with_its_words() {
    let mut scene = Scene::open("dead_letter", 1).await;
    scene.pay(0, "a", 1);
    scene.member.assign(&[Scene::name(0)]);
    scene.reaches(0, 1).await;
    let evidence = "broker end offset is 0 (offset leader epoch 7)".to_owned();
    let fault = LogFault::Rewritten { position: NextOffset::new(1), evidence: evidence.clone() };
    scene.member.report(SourceEvent::LogFault { partition: Scene::name(0), stream: StreamId(1), fault });
    let why = scene.quarantined(0).await;
    assert_eq!(why.reason, Quarantine::LOG_TRUNCATED);
    assert!(why.detail.contains(&evidence), "{}", why.detail);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_its_topic_no_longer_has_is_quarantined() {
    for topic_id in [Some("id-2"), None] {
        let mut scene = Scene::open("dead_letter", 3).await;
        for number in 0..3 {
            scene.pay(number, &format!("c{number}"), 1);
        }
        scene.member.assign(&[0, 1, 2].map(Scene::name));
        for number in 0..3 {
            scene.reaches(number, 1).await;
        }
        scene.stop().await;
        scene.cluster.create_topic(TOPIC, 2, topic_id);
        scene.start_again("dead_letter").await;
        let why = scene.quarantined(2).await;
        assert_eq!(why.reason, Quarantine::TOPIC_RECREATED);
        assert!(
            why.detail.contains("which has 2 now") && why.detail.contains("position 1"),
            "{}",
            why.detail
        );
        assert_eq!(scene.cents().await["c2"], "1");
        scene.end().await;
    }
}
