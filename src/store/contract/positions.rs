//! Claims, fences, unknown COMMITs, quarantines, observations, status.

use super::{Harness, NAME, Scene, advance, instance, item, items, partition, set, text};
use crate::fold::{Change, RowChange};
use crate::position::{Epoch, Fence, NextOffset};
use crate::store::{
    Advance, Applied, Claimed, InstanceReport, Observation, Observed, OperatorAction, OperatorRequest,
    Outcome, Promotion, Quarantine, QuarantineChange, ResumeOutcome, ResumeRequest, ResumeState, StoreError,
    VersionKey, VersionState,
};

fn lamp(id: i64) -> RowChange {
    item(id, Change::upsert(vec![set(NAME, text("lamp"))]))
}

fn numbers(fence: Fence) -> (i64, i64, i64) {
    (fence.position.get(), fence.epoch.get(), fence.revision.get())
}

pub(crate) async fn a_claim_raises_the_epoch_and_fences_the_older_owner(harness: &dyn Harness) {
    let mut scene = Scene::of_tables(harness, vec![items()]).await;
    assert_eq!(numbers(scene.fence), (0, 1, 0));
    scene.accept(vec![lamp(1)]).await;
    let Claimed::Owned(row) = scene.claim(0, "instance-2").await else { panic!("not owned") };
    assert_eq!(numbers(row.fence), (1, 2, 1));
    assert_eq!((row.boundary, row.topic_id.as_deref()), (NextOffset::new(10), Some("topic-1")));
    assert_eq!((row.leader_epoch, row.quarantine), (None, None));
    assert_eq!(scene.apply(vec![lamp(2)]).await, Ok(Applied::Fenced(vec![0])));
    assert_eq!(scene.rows("select id from items__v1").await, [["1"]]);
    scene.fence = row.fence;
    scene.accept(vec![lamp(3)]).await;
    assert_eq!(
        scene.rows("select owner from projector_positions where partition = 0").await,
        [["instance-2"]]
    );
}

pub(crate) async fn a_partition_that_appeared_later_begins_at_zero(harness: &dyn Harness) {
    let scene = Scene::of_tables(harness, vec![items()]).await;
    let row = scene.owned(7).await;
    assert_eq!((numbers(row.fence), row.boundary), ((0, 1, 0), NextOffset::ZERO));
    assert_eq!(row.topic_id.as_deref(), Some("topic-1"));
    assert_eq!(numbers(scene.owned(7).await.fence), (0, 2, 0));
}

pub(crate) async fn a_claim_of_a_retired_version_is_gone(harness: &dyn Harness) {
    let scene = Scene::of_tables(harness, vec![items()]).await;
    scene.store.retire(&scene.version).await.expect("retired");
    assert_eq!(scene.claim(0, "instance-1").await, Claimed::Gone);
    assert_eq!(scene.claim(9, "instance-1").await, Claimed::Gone);
    assert_eq!(scene.rows("select count(*) from projector_positions").await, [["0"]]);
}

pub(crate) async fn a_transaction_advances_position_and_revision_by_one_step(harness: &dyn Harness) {
    let mut scene = Scene::of_tables(harness, vec![items()]).await;
    let step =
        Advance { topic_id: Some("topic-2".into()), leader_epoch: Some(4), ..advance(0, scene.fence, 40) };
    scene.advance(step).await;
    // What is not named stays.
    scene.advance(advance(0, scene.fence, 41)).await;
    let row = scene.owned(0).await;
    assert_eq!(numbers(row.fence), (41, 2, 2));
    assert_eq!((row.topic_id.as_deref(), row.leader_epoch), (Some("topic-2"), Some(4)));
}

pub(crate) async fn a_position_that_is_not_as_expected_rolls_everything_back(harness: &dyn Harness) {
    let scene = Scene::of_tables(harness, vec![items()]).await;
    let right = scene.fence;
    let wrong = [
        Fence { position: NextOffset::new(1), ..right },
        Fence { epoch: right.epoch.successor(), ..right },
        Fence { revision: right.revision.successor(), ..right },
        Fence { epoch: Epoch::ZERO, ..right },
    ];
    let letters = [super::letters::letter(&scene.version, 0, 0)];
    for expected in wrong {
        let step = advance(0, expected, 5);
        let applied = scene.transact(&[vec![lamp(1)]], &letters, &[step]).await;
        assert_eq!(applied, Ok(Applied::Fenced(vec![0])), "{expected:?}");
        assert!(scene.items().await.is_empty(), "{expected:?}");
        assert_eq!(scene.rows("select count(*) from projector_dead_letters").await, [["0"]]);
    }
    let applied = scene.transact(&[vec![lamp(1)]], &letters, &[advance(0, right, 5)]).await;
    assert_eq!(applied, Ok(Applied::Committed { missed_updates: 0 }));
    assert_eq!(scene.rows("select count(*) from projector_dead_letters").await, [["1"]]);
}

pub(crate) async fn the_fenced_partitions_are_told_by_index(harness: &dyn Harness) {
    let scene = Scene::of_tables(harness, vec![items()]).await;
    let mut fences = Vec::new();
    for number in 0..5 {
        fences.push(scene.owned(number).await.fence);
    }
    scene.owned(1).await;
    scene.owned(4).await;
    // By descending number: indexes are those of the list.
    let advances: Vec<Advance> =
        (0..5).rev().zip(fences.iter().rev()).map(|(number, fence)| advance(number, *fence, 3)).collect();
    let Ok(Applied::Fenced(mut lost)) = scene.transact(&[vec![lamp(1)]], &[], &advances).await else {
        panic!("two are fenced")
    };
    lost.sort_unstable();
    assert_eq!(lost, [0, 3]);
    let left: Vec<Advance> = [1, 2, 4].map(|index| advances[index].clone()).into();
    assert_eq!(
        scene.transact(&[vec![lamp(1)]], &[], &left).await,
        Ok(Applied::Committed { missed_updates: 0 })
    );
    let sql = "select partition, position, revision from projector_positions order by partition";
    let moved = [["0", "3", "1"], ["1", "0", "0"], ["2", "3", "1"], ["3", "3", "1"], ["4", "0", "0"]];
    assert_eq!(scene.rows(sql).await, moved);
}

pub(crate) async fn an_unknown_commit_is_decided_by_the_row(harness: &dyn Harness) {
    let scene = Scene::of_tables(harness, vec![items()]).await;
    let other = scene.owned(1).await.fence;
    let expected = [advance(1, other, 4), advance(0, scene.fence, 5), advance(8, scene.fence, 1)];
    let ask = || scene.store.outcome(&scene.version, &expected);
    assert_eq!(ask().await, Ok(vec![Outcome::NotApplied, Outcome::NotApplied, Outcome::Fenced]));
    assert_eq!(scene.transact(&[], &[], &expected[1..2]).await, Ok(Applied::Committed { missed_updates: 0 }));
    assert_eq!(ask().await, Ok(vec![Outcome::NotApplied, Outcome::Applied, Outcome::Fenced]));
    scene.owned(1).await;
    assert_eq!(ask().await, Ok(vec![Outcome::Fenced, Outcome::Applied, Outcome::Fenced]));
    scene.owned(0).await;
    assert_eq!(ask().await, Ok(vec![Outcome::Fenced; 3]));
    let nobody = VersionKey { projection: "nobody".into(), version: 1 };
    assert_eq!(scene.store.outcome(&nobody, &expected).await, Ok(vec![Outcome::Fenced; 3]));
}

fn quarantine(reason: &str) -> Quarantine {
    Quarantine { reason: reason.into(), detail: "offset 3; `projector resume shop` decides".into() }
}

fn enter(scene: &Scene<'_>, reason: &str) -> Advance {
    Advance {
        quarantine: QuarantineChange::Enter(quarantine(reason)),
        ..advance(0, scene.fence, scene.fence.position.get())
    }
}

fn end(scene: &Scene<'_>) -> Advance {
    Advance { quarantine: QuarantineChange::End, ..advance(0, scene.fence, scene.fence.position.get()) }
}

pub(crate) async fn a_quarantine_survives_claims_and_ends_by_a_transaction(harness: &dyn Harness) {
    let mut scene = Scene::of_tables(harness, vec![items()]).await;
    scene.advance(enter(&scene, "not_null")).await;
    for _ in 0..2 {
        let row = scene.owned(0).await;
        assert_eq!(row.quarantine, Some(quarantine("not_null")));
        scene.fence = row.fence;
    }
    // Another transaction leaves it as it is.
    scene.accept(Vec::new()).await;
    let row = scene.owned(0).await;
    assert_eq!(row.quarantine, Some(quarantine("not_null")));
    scene.fence = row.fence;
    let quarantined = "select count(*) from projector_positions where quarantined_at is not null";
    assert_eq!(scene.rows(quarantined).await, [["1"]]);
    scene.advance(end(&scene)).await;
    assert_eq!(scene.owned(0).await.quarantine, None);
    assert_eq!(scene.rows(quarantined).await, [["0"]]);
}

fn observation(scene: &Scene<'_>, number: i32, epoch: i64) -> Observation {
    Observation {
        version: scene.version.clone(),
        partition: partition(number),
        epoch: Epoch::new(epoch),
        readable_end: Some(NextOffset::new(20)),
        oldest_pending_at: Some(1_700_000_000_123),
        blocked: None,
    }
}

fn report(name: &str, observations: Vec<Observation>) -> InstanceReport {
    InstanceReport {
        instance: instance(name),
        host: "host-1".into(),
        program_version: "0.1.0".into(),
        broker_answered_at: Some(1_700_000_000_000_000),
        observations,
    }
}

fn resume(action: OperatorAction, number: Option<i32>) -> ResumeRequest {
    ResumeRequest { projection: "shop".into(), version: None, partition: number.map(partition), action }
}

pub(crate) async fn a_request_reaches_the_owner_and_ends_with_the_quarantine(harness: &dyn Harness) {
    let mut scene = Scene::of_tables(harness, vec![items()]).await;
    let ask = async |number| {
        let request = resume(OperatorAction::Resume, number);
        scene.store.request_resume(&request).await
    };
    assert_eq!(ask(None).await, Ok(Vec::new()), "nothing is quarantined");
    scene.advance(enter(&scene, "not_null")).await;
    let store = scene.store.clone();
    let ask = async |action, number| store.request_resume(&resume(action, number)).await;
    assert_eq!(ask(OperatorAction::Resume, Some(1)).await, Ok(Vec::new()), "partition 1 is not");
    let of_two = ResumeRequest { version: Some(2), ..resume(OperatorAction::Resume, None) };
    assert_eq!(store.request_resume(&of_two).await, Ok(Vec::new()), "version 1 is, and not version 2");

    let outcome = |state| Ok(vec![ResumeOutcome { partition: partition(0), state }]);
    let left = ask(OperatorAction::Resume, Some(0)).await;
    assert_eq!(left, outcome(ResumeState::LeftForNextOwner), "no heartbeat yet");
    let fence = scene.fence;
    let request = |action| OperatorRequest {
        version: scene.version.clone(),
        partition: partition(0),
        revision: fence.revision,
        action,
    };
    let observe = async |epoch| {
        let report = report("instance-1", vec![observation(&scene, 0, epoch), observation(&scene, 1, 1)]);
        store.observe(&report).await
    };
    let epoch = fence.epoch.get();
    let unclaimed = (scene.version.clone(), partition(1), Epoch::new(1));
    let asked = |action| Observed { requests: vec![request(action)], lost: vec![unclaimed.clone()] };
    assert_eq!(observe(epoch).await, Ok(asked(OperatorAction::Resume)));
    assert_eq!(ask(OperatorAction::ResumeWithDeadLetter, None).await, outcome(ResumeState::LeftForOwner));
    assert_eq!(observe(epoch).await, Ok(asked(OperatorAction::ResumeWithDeadLetter)));
    let lost = vec![(scene.version.clone(), partition(0), Epoch::new(epoch - 1)), unclaimed.clone()];
    let none = Observed { requests: Vec::new(), lost };
    assert_eq!(
        observe(epoch - 1).await,
        Ok(none),
        "an older owner gets none, and hears that it is not the owner"
    );

    // A quarantine that is entered anew is another one than the request was for; so is none.
    let again = enter(&scene, "null_key");
    scene.advance(again).await;
    let observe = async |scene: &Scene<'_>| {
        let report = report("instance-1", vec![observation(scene, 0, scene.fence.epoch.get())]);
        scene.store.observe(&report).await
    };
    assert_eq!(observe(&scene).await, Ok(Observed::default()));
    assert_eq!(ask(OperatorAction::Resume, None).await, outcome(ResumeState::LeftForOwner));
    assert_eq!(observe(&scene).await.expect("requests").requests[0].revision, scene.fence.revision);
    scene.advance(end(&scene)).await;
    assert_eq!(observe(&scene).await, Ok(Observed::default()));
    assert_eq!(
        scene.rows("select count(*) from projector_positions where request is not null").await,
        [["0"]]
    );
    scene.store.sign_off(&instance("instance-1")).await.expect("signed off");
    assert_eq!(scene.rows("select count(*) from projector_instances").await, [["0"]]);
}

pub(crate) async fn a_fault_of_the_log_is_not_ended_by_resume(harness: &dyn Harness) {
    let mut scene = Scene::of_tables(harness, vec![items()]).await;
    scene.advance(enter(&scene, Quarantine::LOG_EXPIRED)).await;
    match scene.store.request_resume(&resume(OperatorAction::Resume, None)).await {
        Err(StoreError::Refused { problem, fix }) => {
            assert!(problem.contains("shop.items:0") && problem.contains("log_expired"), "{problem}");
            assert!(fix.contains("projector retire shop@1 --execute"), "{fix}");
        }
        other => panic!("expected a refusal: {other:?}"),
    }
    assert_eq!(
        scene.rows("select count(*) from projector_positions where request is not null").await,
        [["0"]]
    );
}

pub(crate) async fn an_older_owners_observation_never_replaces_a_newer_one(harness: &dyn Harness) {
    let scene = Scene::of_tables(harness, vec![items()]).await;
    let write = async |epoch, end| {
        let seen = Observation { readable_end: Some(NextOffset::new(end)), ..observation(&scene, 0, epoch) };
        scene.store.observe(&report("instance-1", vec![seen])).await.expect("observed");
    };
    let kept = "select epoch, readable_end from projector_observations";
    write(2, 20).await;
    write(1, 99).await;
    assert_eq!(scene.rows(kept).await, [["2", "20"]]);
    write(2, 21).await;
    assert_eq!(scene.rows(kept).await, [["2", "21"]]);
    write(3, 5).await;
    assert_eq!(scene.rows(kept).await, [["3", "5"]]);
    let status = scene.store.status(None).await.expect("status");
    assert_eq!(status[0].readable_end, None, "only an observation of the owner's epoch counts");
}

pub(crate) async fn status_has_the_numbers_of_every_partition(harness: &dyn Harness) {
    let mut scene = Scene::of_tables(harness, vec![items()]).await;
    assert!(scene.store.status(Some("nobody")).await.expect("status").is_empty());
    let letters =
        [super::letters::letter(&scene.version, 0, 0), super::letters::letter(&scene.version, 0, 1)];
    let step = advance(0, scene.fence, 3);
    assert_eq!(
        scene.transact(&[], &letters, std::slice::from_ref(&step)).await,
        Ok(Applied::Committed { missed_updates: 0 })
    );
    scene.fence = step.expected.advanced_to(step.to);
    scene.advance(enter(&scene, "not_null")).await;
    let seen = Observation { blocked: Some("the database refuses".into()), ..observation(&scene, 0, 1) };
    scene.store.observe(&report("instance-1", vec![seen])).await.expect("observed");

    let status = scene.store.status(Some("shop")).await.expect("status");
    assert_eq!(status, scene.store.status(None).await.map(|all| aged_alike(all, &status)).expect("status"));
    assert_eq!(
        status.iter().map(|row| row.partition.clone()).collect::<Vec<_>>(),
        [partition(0), partition(1)]
    );
    let (first, second) = (&status[0], &status[1]);
    assert_eq!((&first.version, first.version_state), (&scene.version, VersionState::Building));
    assert_eq!((first.position, first.boundary), (NextOffset::new(3), NextOffset::new(10)));
    assert_eq!((first.epoch, first.revision), (Epoch::new(1), 2));
    assert_eq!(first.readable_end, Some(NextOffset::new(20)));
    assert_eq!(first.oldest_pending_at, Some(1_700_000_000_123));
    assert!(first.observed_seconds_ago.is_some_and(|seconds| (0.0..60.0).contains(&seconds)));
    assert!(first.owner_alive);
    assert_eq!(first.blocked.as_deref(), Some("the database refuses"));
    assert_eq!(first.quarantine, Some(quarantine("not_null")));
    assert_eq!(first.open_dead_letters, 2);
    assert!(first.oldest_dead_letter_at.is_some_and(|micros| micros > 1_600_000_000_000_000));

    assert_eq!((second.position, second.epoch, second.revision), (NextOffset::ZERO, Epoch::ZERO, 0));
    assert_eq!((second.readable_end, second.observed_seconds_ago, second.owner_alive), (None, None, false));
    assert_eq!((second.open_dead_letters, second.oldest_dead_letter_at), (0, None));

    scene.store.sign_off(&instance("instance-1")).await.expect("signed off");
    assert!(!scene.store.status(None).await.expect("status")[0].owner_alive);
}

/// The same rows with the ages of others: two readings are never of the same moment.
fn aged_alike(
    mut rows: Vec<crate::store::PartitionStatus>,
    others: &[crate::store::PartitionStatus],
) -> Vec<crate::store::PartitionStatus> {
    for (row, other) in rows.iter_mut().zip(others) {
        row.observed_seconds_ago = other.observed_seconds_ago;
    }
    rows
}

pub(crate) async fn the_status_view_judges_as_status_does(harness: &dyn Harness) {
    let mut scene = Scene::of_tables(harness, vec![items()]).await;
    let judged =
        "select view, projection, version, state, lag_records, open_dead_letters from projector_view_status";
    let reason = "select reason from projector_view_status";
    let row = |state: &str, lag: &str| vec![["items", "shop", "1", state, lag, "0"].map(str::to_owned)];
    assert_eq!(scene.rows(judged).await, row("unavailable", "NULL"));
    assert!(scene.rows(reason).await[0][0].contains("nobody observes"));

    let other = scene.owned(1).await.fence;
    let look = async |scene: &Scene<'_>, end: Option<i64>, pending: Option<i64>| {
        let seen = |number| Observation {
            readable_end: end.map(NextOffset::new),
            oldest_pending_at: pending,
            ..observation(scene, number, 1)
        };
        let report = report("instance-1", vec![seen(0), seen(1)]);
        scene.store.observe(&report).await.expect("observed");
    };
    look(&scene, Some(20), Some(1_700_000_000_000)).await;
    assert_eq!(scene.rows(judged).await, row("catching_up", "40"));
    assert!(scene.rows(reason).await[0][0].contains("boundary: 2 of 2"));

    assert_eq!(
        scene.transact(&[], &[], &[advance(1, other, 20)]).await,
        Ok(Applied::Committed { missed_updates: 0 })
    );
    scene.advance(advance(0, scene.fence, 20)).await;
    let waits = |number| Observation {
        readable_end: Some(NextOffset::new(20)),
        blocked: Some("it waits for its views".into()),
        ..observation(&scene, number, 1)
    };
    scene.store.observe(&report("instance-1", vec![waits(0), waits(1)])).await.expect("observed");
    assert_eq!(scene.rows(judged).await, row("catching_up", "0"));
    assert_eq!(
        scene.rows(reason).await,
        [["not live yet: partition shop.items:0 and 1 more is blocked: it waits for its views"]]
    );
    assert_eq!(scene.store.promote_first(&scene.declaration).await, Ok(Promotion::Live));
    look(&scene, Some(20), None).await;
    assert_eq!(scene.rows(judged).await, row("ready", "0"));
    let ages =
        "select reason, age_seconds + 0.0 < 1, staleness_limit_seconds = 120 from projector_view_status";
    let ages = scene.rows(ages).await.remove(0);
    assert_eq!(ages[0], "NULL");
    assert!(ages[1..].iter().all(|flag| ["1", "t", "true"].contains(&flag.as_str())), "{ages:?}");

    look(&scene, Some(23), Some(1_700_000_000_000)).await;
    assert_eq!(scene.rows(judged).await, row("catching_up", "6"));
    assert!(scene.rows(reason).await[0][0].contains("the limit is 120 s"));
    look(&scene, None, None).await;
    assert_eq!(scene.rows(judged).await, row("unavailable", "NULL"));
    assert_eq!(
        scene.rows(reason).await,
        [["the end of partition shop.items:0 is not known: the broker does not answer"]]
    );
    let away = |number| Observation {
        readable_end: None,
        blocked: Some("no broker can be reached".into()),
        ..observation(&scene, number, 1)
    };
    scene.store.observe(&report("instance-1", vec![away(0), away(1)])).await.expect("observed");
    assert_eq!(scene.rows(judged).await, row("unavailable", "NULL"));
    assert_eq!(
        scene.rows(reason).await,
        [["the end of partition shop.items:0 is not known: no broker can be reached"]]
    );
    look(&scene, Some(20), None).await;
    scene.advance(enter(&scene, "not_null")).await;
    assert_eq!(scene.rows(judged).await, row("quarantined", "0"));
    assert!(scene.rows(reason).await[0][0].contains("shop.items:0 is quarantined: not_null"));
}
