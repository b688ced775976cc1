//! What Kafka properties must agree with: each other, the store's timeouts, and the limits of a record.

use std::collections::BTreeMap;
use std::time::Duration;

use super::properties::{Properties, Property};
use super::yaml::{Mistake, Place};

/// The broker's default session timeout, which `group.protocol: consumer` always has, and librdkafka's for the other.
const SESSION_TIMEOUT_MS: i64 = 45_000;
/// librdkafka's default of `max.poll.interval.ms`.
const MAX_POLL_INTERVAL_MS: i64 = 300_000;
/// librdkafka's default of `heartbeat.interval.ms`.
const HEARTBEAT_INTERVAL_MS: i64 = 3_000;
/// librdkafka's default of `fetch.max.bytes`.
const FETCH_MAX_BYTES: i64 = 52_428_800;
/// librdkafka's default of `receive.message.max.bytes`.
const RECEIVE_MAX_BYTES: i64 = 100_000_000;
/// What a response needs beside the records, as librdkafka counts.
const RESPONSE_OVERHEAD: i64 = 512;

/// What the rest of the configuration says that properties must agree with.
pub(super) struct Surrounding<'a> {
    /// `store.statement_timeout` and where it stands.
    pub(super) statement_timeout: (Duration, &'a Place),
    /// `limits.max_record_bytes` and where it stands.
    pub(super) max_record_bytes: (u64, &'a Place),
}

/// What is wrong with the properties together and against the rest of the configuration.
pub(super) fn disagreements(properties: &Properties, surrounding: &Surrounding<'_>) -> Vec<Mistake> {
    let mut view = Numbers { consumer: properties.consumer_view(), mistakes: Vec::new() };
    view.check_timeouts(surrounding);
    view.check_sizes(surrounding);
    view.mistakes
}

struct Numbers<'a> {
    consumer: BTreeMap<&'a str, &'a Property>,
    mistakes: Vec<Mistake>,
}

impl<'a> Numbers<'a> {
    /// The number that the property `name` has, and where it is set; its default where it is not.
    fn number(&mut self, name: &str, default: i64) -> (i64, Option<&'a Place>) {
        let Some(property) = self.consumer.get(name) else { return (default, None) };
        if let Ok(number) = property.value.trim().parse() {
            return (number, Some(&property.place));
        }
        self.mistakes.push(Mistake::new(&property.place, format!("`{name}` must be a whole number")));
        (default, None)
    }

    fn check_timeouts(&mut self, surrounding: &Surrounding<'_>) {
        let (session, session_place) = self.number("session.timeout.ms", SESSION_TIMEOUT_MS);
        let (poll, poll_place) = self.number("max.poll.interval.ms", MAX_POLL_INTERVAL_MS);
        let (heartbeat, heartbeat_place) = self.number("heartbeat.interval.ms", HEARTBEAT_INTERVAL_MS);
        if let Some(place) = poll_place.or(session_place)
            && poll < session
        {
            let message = "`max.poll.interval.ms` must not be below `session.timeout.ms`";
            self.mistakes.push(Mistake::new(place, message).fix(format!("set it to {session} or more")));
        }
        if let Some(place) = heartbeat_place.or(session_place)
            && heartbeat >= session
        {
            let message = "`heartbeat.interval.ms` must be below `session.timeout.ms`";
            self.mistakes.push(Mistake::new(place, message).fix("set it to a third of the session timeout"));
        }
        let (statement, statement_place) = surrounding.statement_timeout;
        let shortest = session.min(poll).max(0).unsigned_abs();
        if statement.as_millis() >= u128::from(shortest) {
            let message = format!(
                "`store.statement_timeout` ({} ms) must be below the session timeout ({shortest} ms): a transaction \
                 must end before the group gives its partitions to somebody else",
                statement.as_millis()
            );
            let mistake = Mistake::new(session_place.or(poll_place).unwrap_or(statement_place), message);
            self.mistakes.push(mistake.fix(format!("set it to {}ms or less", shortest / 2)));
        }
    }

    fn check_sizes(&mut self, surrounding: &Surrounding<'_>) {
        let (receive, receive_place) = self.number("receive.message.max.bytes", RECEIVE_MAX_BYTES);
        let (fetch, fetch_place) = self.number("fetch.max.bytes", FETCH_MAX_BYTES);
        let (message_max, message_place) = self.number("message.max.bytes", 0);
        // librdkafka raises `fetch.max.bytes` to `message.max.bytes`.
        let fetch = fetch.max(message_max);
        if let Some(place) = receive_place.or(fetch_place).or(message_place)
            && receive < fetch.saturating_add(RESPONSE_OVERHEAD)
        {
            let message = format!(
                "`receive.message.max.bytes` ({receive}) must be above `fetch.max.bytes` ({fetch}) by {RESPONSE_OVERHEAD}: \
                 a full response could never be received"
            );
            let fix = format!(
                "set `receive.message.max.bytes` to {} or more",
                fetch.saturating_add(RESPONSE_OVERHEAD)
            );
            self.mistakes.push(Mistake::new(place, message).fix(fix));
        }
        let (largest, largest_place) = surrounding.max_record_bytes;
        let largest = i64::try_from(largest).unwrap_or(i64::MAX);
        if receive < largest.saturating_add(RESPONSE_OVERHEAD) {
            let message = format!(
                "`limits.max_record_bytes` ({largest}) must be below `receive.message.max.bytes` ({receive}) by \
                 {RESPONSE_OVERHEAD}: the largest record could never be received"
            );
            let mistake = Mistake::new(receive_place.unwrap_or(largest_place), message);
            self.mistakes
                .push(mistake.fix("raise `receive.message.max.bytes`, or lower `limits.max_record_bytes`"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::properties::tests::{place, properties};
    use super::*;

    fn disagreeing(consumer: &[(&str, &str)], statement_timeout: u64, max_record_bytes: u64) -> Vec<Mistake> {
        let statement_place = place(100);
        let surrounding = Surrounding {
            statement_timeout: (Duration::from_secs(statement_timeout), &statement_place),
            max_record_bytes: (max_record_bytes, &statement_place),
        };
        disagreements(&properties(consumer), &surrounding)
    }

    #[test]
    fn ordinary_properties_agree() {
        let ordinary = [("session.timeout.ms", "30000"), ("fetch.queue.backoff.ms", "5")];
        assert_eq!(disagreeing(&ordinary, 20, 8 << 20), []);
    }

    #[test]
    fn a_statement_must_end_before_the_session_does() {
        assert_eq!(disagreeing(&[], 44, 0), []);
        assert_eq!(disagreeing(&[], 45, 0)[0].place.line, 100);
        let short = disagreeing(&[("session.timeout.ms", "10000")], 20, 0);
        assert_eq!((short.len(), short[0].place.line), (1, 1));
        assert_eq!(short[0].fix.as_deref(), Some("set it to 5000ms or less"));
        assert_eq!(disagreeing(&[("max.poll.interval.ms", "10000")], 5, 0).len(), 1);
        assert_eq!(disagreeing(&[("session.timeout.ms", "3000")], 1, 0).len(), 1);
        let text = disagreeing(&[("session.timeout.ms", "10 s")], 20, 0);
        assert_eq!(text[0].message, "`session.timeout.ms` must be a whole number");
    }

    #[test]
    fn a_response_must_be_receivable() {
        assert_eq!(disagreeing(&[("receive.message.max.bytes", "1000000")], 20, 1_000).len(), 1);
        let both = [("fetch.max.bytes", "1000000"), ("receive.message.max.bytes", "1000512")];
        assert_eq!(disagreeing(&both, 20, 1_000), []);
        assert_eq!(disagreeing(&both, 20, 1_000_001).len(), 1);
        assert_eq!(disagreeing(&[("message.max.bytes", "200000000")], 20, 1_000).len(), 1);
        assert_eq!(disagreeing(&[], 20, 200_000_000).len(), 1);
    }
}
