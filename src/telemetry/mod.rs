//! What the program tells about itself: logs, metrics, and whether it is alive and ready.
//!
//! Names, units and labels of metrics stand in [`metrics`] and [`gauges`] and nowhere else; the rest of the program calls
//! typed functions. Nothing here takes a key, a value or a header of a record (promise P10).
//!
//! Counters and histograms go through the `metrics` facade and live as long as the process. Gauges of owned partitions
//! don't: they are kept in a table of their own ([`partition`], [`partition_gone`]) and written out at each scrape, so that
//! the series of a partition that another instance owns now is gone at once and not after some timeout, and an age is
//! that of the moment of the scrape.

pub mod gauges;
pub mod health;
pub mod logs;
pub mod metrics;

pub use gauges::{
    DeadLetterGauges, PartitionGauges, PartitionState, ViewGauges, ViewState, partition, partition_gone,
};
pub use health::{Health, Heartbeat};
pub use metrics::{
    Metrics, Retried, RetryClass, apply_duration, batch_records, dead_letter, event_ignored,
    event_to_visible, fence_lost, records_applied, retry, updates_missed,
};
