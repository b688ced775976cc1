//! Versions of a projection: registered, promoted, retired (section 9 of the design).

pub mod retire;

pub use retire::{RetireError, Retirement, retire};
