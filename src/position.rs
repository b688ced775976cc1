//! Offsets and fences as types, so that "last applied" and "next to read" cannot be confused.
//!
//! The only `+ 1` on an offset in this program is [`RecordOffset::next`].

use std::fmt;

/// The offset of one record in its partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordOffset(i64);

impl RecordOffset {
    /// The offset as Kafka gave it.
    #[must_use]
    pub const fn new(offset: i64) -> Self {
        Self(offset)
    }

    /// The plain number, for the store, for messages and for JSON.
    #[must_use]
    pub const fn get(self) -> i64 {
        self.0
    }

    /// The position at which this record is the next one to read.
    #[must_use]
    pub const fn position(self) -> NextOffset {
        NextOffset(self.0)
    }

    /// The position after this record.
    #[must_use]
    pub const fn next(self) -> NextOffset {
        NextOffset(self.0 + 1)
    }
}

/// A position: the offset of the next record to read. What the store keeps, and what is committed to Kafka.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NextOffset(i64);

impl NextOffset {
    /// The first position of a partition whose log has never been cut.
    pub const ZERO: Self = Self(0);

    /// A position as the store or the broker gave it.
    #[must_use]
    pub const fn new(offset: i64) -> Self {
        Self(offset)
    }

    /// The plain number, for the store, for messages and for JSON.
    #[must_use]
    pub const fn get(self) -> i64 {
        self.0
    }

    /// The offset just before this position; `None` at the beginning of a log.
    #[must_use]
    pub const fn before(self) -> Option<RecordOffset> {
        if self.0 > 0 { Some(RecordOffset(self.0 - 1)) } else { None }
    }

    /// Whether the record at `offset` lies behind this position, that is, has been applied.
    #[must_use]
    pub const fn is_past(self, offset: RecordOffset) -> bool {
        offset.0 < self.0
    }

    /// How many offsets lie between this position and `end`; never negative.
    ///
    /// Transaction markers and compacted records count too, so this is an upper bound of records.
    #[must_use]
    pub const fn lag_to(self, end: NextOffset) -> u64 {
        if end.0 > self.0 { (end.0 - self.0).unsigned_abs() } else { 0 }
    }
}

/// The number of a partition's owner. Grows by one with every claim (promise P2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(i64);

/// The number of transactions that have touched a partition's rows. Grows by one with every one of them (promise P2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(i64);

macro_rules! counter {
    ($name:ident) => {
        impl $name {
            /// The value of a position row that nobody has touched.
            pub const ZERO: Self = Self(0);

            /// The number as the store keeps it.
            #[must_use]
            pub const fn new(number: i64) -> Self {
                Self(number)
            }

            /// The plain number, for the store.
            #[must_use]
            pub const fn get(self) -> i64 {
                self.0
            }

            /// The number after this one.
            #[must_use]
            pub const fn successor(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

counter!(Epoch);
counter!(Revision);

impl fmt::Display for RecordOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for NextOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a transaction compares before it may touch a partition's rows, and what it then holds (promise P2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fence {
    /// The next offset to read.
    pub position: NextOffset,
    /// The owner's number.
    pub epoch: Epoch,
    /// The number of transactions so far.
    pub revision: Revision,
}

impl Fence {
    /// The fence after a transaction that moved the partition to `position`.
    #[must_use]
    pub const fn advanced_to(self, position: NextOffset) -> Self {
        Self { position, epoch: self.epoch, revision: self.revision.successor() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_past_the_records_before_it_only() {
        let position = RecordOffset::new(41).next();
        assert!(position.is_past(RecordOffset::new(41)));
        assert!(!position.is_past(RecordOffset::new(42)));
    }

    #[test]
    fn before_a_position_stands_the_record_that_it_is_next_to() {
        assert_eq!(NextOffset::ZERO.before(), None);
        assert_eq!(NextOffset::new(42).before(), Some(RecordOffset::new(41)));
    }

    #[test]
    fn lag_is_never_negative() {
        assert_eq!(NextOffset::new(9).lag_to(NextOffset::new(12)), 3);
        assert_eq!(NextOffset::new(12).lag_to(NextOffset::new(9)), 0);
    }

    #[test]
    fn advancing_keeps_the_epoch_and_counts_the_revision() {
        let fence = Fence { position: NextOffset::new(5), epoch: Epoch::new(3), revision: Revision::new(7) };
        let after = fence.advanced_to(NextOffset::new(9));
        assert_eq!((after.position.get(), after.epoch.get(), after.revision.get()), (9, 3, 8));
    }
}
