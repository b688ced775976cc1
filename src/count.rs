//! Counts as people read them.

use std::fmt::Display;

/// A number with its noun in the right form: `1 partition`, `2 partitions`, `0 indexes`.
#[must_use]
pub fn counted<N: Copy + Display + PartialEq + From<u8>>(number: N, noun: &str) -> String {
    let ending = match (number == N::from(1), noun.ends_with('x')) {
        (true, _) => "",
        (false, true) => "es",
        (false, false) => "s",
    };
    format!("{number} {noun}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_one_and_all_else_is_many() {
        assert_eq!(counted(1_usize, "partition"), "1 partition");
        assert_eq!(counted(0_i64, "dead letter"), "0 dead letters");
        assert_eq!(counted(2_u64, "index"), "2 indexes");
    }
}
