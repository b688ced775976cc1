//! Faults that come again and again, said once.

use std::time::{Duration, Instant};

/// Decides which of many failures of the same thing is worth a line in the log: the first, one that differs from the last,
/// and otherwise one a minute.
#[derive(Debug, Default)]
pub struct Recurring {
    said: Option<(String, Instant)>,
}

impl Recurring {
    /// How often a fault that stays the same is said again.
    const REMINDER: Duration = Duration::from_mins(1);

    /// The thing has failed at `now` with this text. Returns whether to say so.
    pub fn failed(&mut self, what: &str, now: Instant) -> bool {
        if let Some((said, at)) = &self.said
            && said == what
            && now.saturating_duration_since(*at) < Self::REMINDER
        {
            return false;
        }
        self.said = Some((what.to_owned(), now));
        true
    }

    /// The thing works. Returns whether it had failed before, which is worth a line too.
    pub fn works(&mut self) -> bool {
        self.said.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_said_when_it_begins_or_changes_once_a_minute_and_when_it_ends() {
        let mut fault = Recurring::default();
        let begun = Instant::now();
        let at = |secs| begun + Duration::from_secs(secs);
        assert!(!fault.works(), "nothing has failed yet");
        let said: Vec<bool> = [("a", 0), ("a", 5), ("b", 10), ("b", 69), ("b", 70), ("b", 71), ("a", 72)]
            .map(|(what, secs)| fault.failed(what, at(secs)))
            .to_vec();
        assert_eq!(said, [true, false, true, false, true, false, true]);
        assert!(fault.works() && !fault.works());
        assert!(fault.failed("a", at(73)), "a fault that comes back is a new one");
    }
}
