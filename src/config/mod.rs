//! `projector.yaml`: load, substitute, validate.
//!
//! [`load::load`] finds the file, reads it as a [`yaml`] tree, puts the values of variables and secret files into its
//! scalars ([`substitute`]) and checks every section into [`settings`]. All mistakes are reported at once, each with its
//! place and, where it is known, what to write instead. A value that came from a variable or a file is never quoted.

mod agreement;
mod kafka;
pub mod load;
mod mistake;
mod properties;
mod reader;
mod registry;
pub mod settings;
mod store;
pub mod substitute;
mod units;
pub mod yaml;

pub use load::load;
pub use properties::{ClientLibrary, Refusal};
