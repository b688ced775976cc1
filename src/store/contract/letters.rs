//! Dead letters: byte for byte, listed, published.

use bytes::Bytes;

use super::{Harness, Scene, advance, items, partition};
use crate::dead_letter::DeadLetter;
use crate::fault::{Reason, RecordFault, Stage};
use crate::position::RecordOffset;
use crate::record::{Header, Record, RecordCoordinates, RecordTimestamp};
use crate::store::{Applied, DeadLetterFilter, StoredDeadLetter, VersionKey};

/// A dead letter of a record that could not be decoded.
pub(crate) fn letter(version: &VersionKey, number: i32, offset: i64) -> DeadLetter {
    DeadLetter {
        version: version.clone(),
        topic_id: Some("topic-1".into()),
        record: Record {
            coordinates: RecordCoordinates {
                topic_partition: partition(number),
                offset: RecordOffset::new(offset),
            },
            leader_epoch: None,
            timestamp: RecordTimestamp::Create(1_700_000_000_123),
            key: Some(Bytes::from_static(b"key")),
            value: Some(Bytes::from_static(b"value")),
            headers: Vec::new(),
        },
        fault: RecordFault::new(Stage::Decode, Reason::InvalidJson, "expected a value at byte 1"),
        schema_id: None,
    }
}

async fn write(scene: &mut Scene<'_>, letters: &[DeadLetter]) {
    let step = advance(0, scene.fence, scene.fence.position.get() + 1);
    let applied = scene.transact(&[], letters, std::slice::from_ref(&step)).await;
    assert_eq!(applied, Ok(Applied::Committed { missed_updates: 0 }));
    scene.fence = step.expected.advanced_to(step.to);
}

fn offsets(letters: &[StoredDeadLetter]) -> Vec<i64> {
    letters.iter().map(|stored| stored.letter.record.coordinates.offset.get()).collect()
}

fn all() -> DeadLetterFilter {
    DeadLetterFilter { limit: 100, ..DeadLetterFilter::default() }
}

/// Everything that two dead letters must have in common; `Record` has no equality of its own.
fn assert_same(stored: &DeadLetter, written: &DeadLetter) {
    assert_eq!(stored.key(), written.key());
    let (is, was) = (&stored.record, &written.record);
    assert_eq!(is.coordinates, was.coordinates);
    assert_eq!(is.timestamp, was.timestamp);
    assert_eq!(is.key, was.key);
    assert_eq!(is.value, was.value);
    assert_eq!(is.headers, was.headers);
    assert_eq!(stored.fault, written.fault);
    assert_eq!(stored.schema_id, written.schema_id);
}

pub(crate) async fn a_dead_letter_is_kept_byte_for_byte(harness: &dyn Harness) {
    let mut scene = Scene::of_tables(harness, vec![items()]).await;
    let header = |name: &str, value: Option<&'static [u8]>| Header {
        name: name.into(),
        value: value.map(Bytes::from_static),
    };
    let mut nulls = letter(&scene.version, 0, 1);
    nulls.record.key = None;
    nulls.record.value = None;
    nulls.record.timestamp = RecordTimestamp::Absent;
    nulls.topic_id = None;
    let mut empties = letter(&scene.version, 0, 2);
    empties.record.key = Some(Bytes::new());
    empties.record.value = Some(Bytes::new());
    empties.record.timestamp = RecordTimestamp::LogAppend(0);
    let mut odd = letter(&scene.version, 0, i64::MAX - 1);
    let every_byte: Vec<u8> = (0..=255).collect();
    odd.record.value = Some(every_byte.into());
    odd.record.headers = vec![
        header("trace", Some(b"\xff\x00\xfe")),
        header("trace", None),
        header("", Some(b"")),
        header("trace", Some(b"again")),
    ];
    odd.schema_id = Some(u32::MAX);
    odd.fault = RecordFault::new(Stage::Apply, Reason::UniqueViolation, "the database refused the row")
        .in_column("items", "name");
    odd.fault.constraint = Some("items_name_key".into());
    odd.fault.sqlstate = Some("23505".into());
    let written = [nulls, empties, odd];
    write(&mut scene, &written).await;
    let stored = scene.store.dead_letters(&all()).await.expect("letters");
    assert_eq!(stored.len(), written.len());
    for (stored, written) in stored.iter().zip(&written) {
        assert_same(&stored.letter, written);
        assert_eq!((stored.state.as_str(), stored.published_at), ("open", None));
        assert!(stored.created_at > 1_600_000_000_000_000, "microseconds");
    }
    // All stages and reasons have their way back.
    let faults: Vec<DeadLetter> = Reason::ALL
        .iter()
        .zip(100..)
        .map(|(reason, offset)| {
            let mut letter = letter(&scene.version, 0, offset);
            let stages =
                [Stage::Consume, Stage::Decode, Stage::Map, Stage::Validate, Stage::Judge, Stage::Fold];
            letter.fault = RecordFault::new(stages[usize::try_from(offset % 6).unwrap()], *reason, "why");
            letter
        })
        .collect();
    write(&mut scene, &faults).await;
    for fault in &faults {
        let at = Some(fault.record.coordinates.offset.get());
        let filter = DeadLetterFilter { offset: at, ..all() };
        let found = scene.store.dead_letters(&filter).await.expect("letters");
        assert_same(&found[0].letter, fault);
    }
}

pub(crate) async fn a_dead_letter_that_is_there_stays_as_it_is(harness: &dyn Harness) {
    let mut scene = Scene::of_tables(harness, vec![items()]).await;
    let first = letter(&scene.version, 0, 3);
    write(&mut scene, std::slice::from_ref(&first)).await;
    scene.store.mark_published(&[first.key()]).await.expect("marked");
    let mut second = first.clone();
    second.fault = RecordFault::new(Stage::Map, Reason::MissingField, "value.name");
    write(&mut scene, &[second]).await;
    let stored = scene.store.dead_letters(&all()).await.expect("letters");
    assert_eq!(stored.len(), 1);
    assert_same(&stored[0].letter, &first);
    assert!(stored[0].published_at.is_some());
}

pub(crate) async fn unpublished_letters_come_in_pages_until_they_are_marked(harness: &dyn Harness) {
    let mut scene = Scene::of_tables(harness, vec![items()]).await;
    let letters: Vec<_> = [9, 4, 7, 1, 5].map(|offset| letter(&scene.version, 0, offset)).into();
    write(&mut scene, &letters).await;
    let elsewhere = letter(&scene.version, 1, 2);
    write(&mut scene, &[elsewhere]).await;
    let page = async || {
        let page = scene.store.unpublished(&scene.version, &partition(0), 2).await.expect("a page");
        let keys: Vec<_> = page.iter().map(|stored| stored.letter.key()).collect();
        (offsets(&page), keys)
    };
    let count = async |most| {
        scene.store.count_unpublished(&scene.version, &partition(0), most).await.expect("a number")
    };
    for (expected, left) in [(vec![1, 4], 5), (vec![5, 7], 3), (vec![9], 1), (vec![], 0)] {
        let (offsets, keys) = page().await;
        assert_eq!(offsets, expected);
        assert_eq!((count(99).await, count(2).await), (left, left.min(2)));
        assert_eq!(page().await.0, expected, "reading marks nothing");
        scene.store.mark_published(&keys).await.expect("marked");
        scene.store.mark_published(&keys).await.expect("marked again");
    }
    let left = scene.store.unpublished(&scene.version, &partition(1), 9).await.expect("a page");
    assert_eq!(offsets(&left), [2]);
    scene.store.mark_published(&[letter(&scene.version, 1, 77).key()]).await.expect("one that is not there");
}

pub(crate) async fn letters_are_found_by_every_part_of_the_filter(harness: &dyn Harness) {
    let mut scene = Scene::of_tables(harness, vec![items()]).await;
    let mut other_reason = letter(&scene.version, 1, 5);
    other_reason.fault = RecordFault::new(Stage::Map, Reason::MissingField, "value.name");
    let letters = [letter(&scene.version, 0, 1), letter(&scene.version, 0, 5), other_reason];
    write(&mut scene, &letters).await;
    harness.execute("update projector_dead_letters set state = 'discarded' where record_offset = 1").await;
    let find = async |filter: DeadLetterFilter| {
        let mut found = scene.store.dead_letters(&filter).await.expect("letters");
        found.sort_by_key(|stored| stored.letter.key());
        found.iter().map(|stored| stored.letter.record.coordinates.to_string()).collect::<Vec<_>>()
    };
    let (a, b, c) = ("shop.items:0:1", "shop.items:0:5", "shop.items:1:5");
    assert_eq!(find(all()).await, [a, b, c]);
    assert_eq!(find(DeadLetterFilter { limit: 2, ..all() }).await.len(), 2);
    assert_eq!(find(DeadLetterFilter { projection: Some("shop".into()), ..all() }).await.len(), 3);
    assert!(find(DeadLetterFilter { projection: Some("nobody".into()), ..all() }).await.is_empty());
    assert_eq!(find(DeadLetterFilter { version: Some(1), ..all() }).await.len(), 3);
    assert!(find(DeadLetterFilter { version: Some(2), ..all() }).await.is_empty());
    assert_eq!(find(DeadLetterFilter { partition: Some(partition(0)), ..all() }).await, [a, b]);
    assert_eq!(find(DeadLetterFilter { offset: Some(5), ..all() }).await, [b, c]);
    assert_eq!(find(DeadLetterFilter { reason: Some("missing_field".into()), ..all() }).await, [c]);
    assert_eq!(find(DeadLetterFilter { state: Some("discarded".into()), ..all() }).await, [a]);
    let both = DeadLetterFilter {
        offset: Some(5),
        state: Some("open".into()),
        partition: Some(partition(1)),
        ..all()
    };
    assert_eq!(find(both).await, [c]);
}
