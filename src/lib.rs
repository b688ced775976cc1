//! projector: Kafka events applied to read stores, exactly once and in order.
//!
//! # The flow
//!
//! ```text
//! Kafka ─ consume ─ decode ─ map ─ validate ─ judge ─ fold ─┬─ apply: rows + dead letters + positions, one transaction ─ commit offset
//!                                                           └─ publish dead letters to their topic, after the transaction
//! ```
//!
//! # Promises
//!
//! - **P0** A version's content is a function of the log up to its positions, the decisions on dead letters, and the
//!   erasure ledger.
//! - **P1** Rows and position change in one transaction of the read store. The store's position is the truth; the group's
//!   committed offset follows it and never leads.
//! - **P2** Every transaction that touches a partition's rows compares and sets that partition's position, epoch and
//!   revision. A loser rolls back; an unknown COMMIT is decided by reading the position row.
//! - **P3** The changes of an aggregate whose events lie in one partition are applied in partition order, and a batch's
//!   result equals applying its records one by one.
//! - **P4** A fault of infrastructure cannot become a dead letter; a fault of one record cannot stop another partition.
//! - **P5** A dead letter keeps key, value and headers byte for byte, and is durable in the transaction that lets the
//!   position pass it.
//! - **P6** No silent loss: an expired offset or a truncated, recreated or shrunken log quarantines the partition.
//! - **P7** A projection is a pure function from an event to row changes.
//! - **P8** Readers never see a half-built or empty view in place of one that is not ready.
//! - **P9** Everything is bounded, for the process as a whole.
//! - **P10** No payload, key or secret in logs, metrics, error headers or status by default.
//!
//! # Layout
//!
//! The list follows the data; imports go to lower layers only.
//!
//! | Layer | Modules |
//! |---|---|
//! | 7 | `main`, [`app`] |
//! | 6 | [`cli`], [`http`], [`demo`] |
//! | 5 | [`status`], [`versions`] |
//! | 4 | [`pipeline`] |
//! | 3 | [`source`], [`decode`], [`store`], [`dead_letter`] |
//! | 2 | [`fold`] |
//! | 1 | [`projection`] |
//! | 0 | [`record`], [`position`], [`fault`], [`config`], [`telemetry`] |

pub mod app;
pub mod cli;
pub mod config;
pub mod count;
pub mod dead_letter;
pub mod decode;
pub mod demo;
pub mod fault;
pub mod fold;
pub mod http;
pub mod pipeline;
pub mod position;
pub mod projection;
pub mod record;
pub mod source;
pub mod status;
pub mod store;
pub mod telemetry;
pub mod versions;
