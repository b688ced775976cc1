//! Status: what is known of partitions, versions and views, judged by one set of rules.
//!
//! The rules are pure functions over what the store gives ([`PartitionStatus`](crate::store::PartitionStatus)); the SQL view
//! `projector_view_status` follows the same ones, by the database's clock:
//!
//! - **lag** is readable end minus position, never negative; an upper bound of records, since transaction markers and
//!   compacted records count;
//! - **age** is that of the oldest event that is not applied; 0 when caught up, unknown where that event has no time;
//! - an observation older than 10 s, a partition that nobody observes, or one whose end is not known, makes the views
//!   `unavailable`;
//! - a quarantined partition makes them `quarantined`; a version that is not live yet, or whose age is above its limit, is
//!   `catching_up`; all else is `ready`.

pub mod lag;
pub mod report;
pub mod rules;
pub mod source;

pub use report::{Catalogue, ProjectionReport, Reports, VersionReport, ViewReport};
pub use source::{CachedStatus, Snapshot, StatusError, StatusSource};
