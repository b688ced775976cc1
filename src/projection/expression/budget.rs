//! Bounds on what one evaluation may cost (promise P9).

use super::Failure;

/// The longest text of an expression, in bytes.
pub(super) const MAX_TEXT: usize = 2_000;
/// The deepest nesting of an expression.
pub(super) const MAX_DEPTH: usize = 64;
/// Steps that one evaluation may take; a step is a node of the expression, an item of a list, or 64 bytes of text.
const MAX_STEPS: usize = 5_000_000;
/// Bytes of texts and lists that one evaluation may make.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// What is left of the bounds.
#[derive(Debug)]
pub(super) struct Budget {
    steps: usize,
    bytes: usize,
}

impl Budget {
    pub(super) const fn new() -> Self {
        Self { steps: MAX_STEPS, bytes: MAX_BYTES }
    }

    /// Pays for work.
    pub(super) fn steps(&mut self, count: usize) -> Result<(), Failure> {
        self.steps = self.steps.checked_sub(count).ok_or_else(|| {
            Failure::expression(format!("the expression needs more than {MAX_STEPS} steps for this record"))
        })?;
        Ok(())
    }

    /// Pays for reading a text of `length` bytes.
    pub(super) fn text(&mut self, length: usize) -> Result<(), Failure> {
        self.steps(1 + length / 64)
    }

    /// Pays for making something of `length` bytes, before it is made.
    pub(super) fn bytes(&mut self, length: usize) -> Result<(), Failure> {
        self.bytes = self.bytes.checked_sub(length).ok_or_else(|| {
            Failure::expression(format!("the expression makes more than {MAX_BYTES} bytes for this record"))
        })?;
        Ok(())
    }
}
