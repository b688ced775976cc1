//! Durations and sizes as people write them.

use std::time::Duration;

/// How a duration is written, for messages.
pub(super) const DURATION_FORM: &str = "write a whole number and a unit: 250ms, 10s, 2m, 1h";
/// How a size is written, for messages.
pub(super) const SIZE_FORM: &str = "write a whole number of bytes, or with a unit: 64MiB, 500kB, 1GiB";

/// `250ms`, `10s`, `2m`, `1h`; `None` where the text is none, or more than 64 bits of milliseconds.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = split(text)?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    number.checked_mul(millis).map(Duration::from_millis)
}

/// `8MiB`, `64MB`, `1048576`: bytes. Decimal units count thousands, binary ones (`KiB`) 1,024.
pub(super) fn size(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    let bytes = match unit {
        "" | "B" => 1,
        "kB" | "KB" => 1_000,
        "KiB" => 1 << 10,
        "MB" => 1_000_000,
        "MiB" => 1 << 20,
        "GB" => 1_000_000_000,
        "GiB" => 1 << 30,
        _ => return None,
    };
    number.checked_mul(bytes)
}

/// Digits, then perhaps a blank, then a unit.
fn split(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit.strip_prefix(' ').unwrap_or(unit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_whole_number_and_a_unit() {
        for (text, millis) in
            [("250ms", 250), ("10s", 10_000), ("2 m", 120_000), ("1h", 3_600_000), ("0s", 0)]
        {
            assert_eq!(duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in
            ["10", "", "s", "1.5s", "-1s", "1 d", "1S", "99999999999999999999s", "18446744073709551615h"]
        {
            assert_eq!(duration(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_know_decimal_and_binary_units() {
        for (text, bytes) in [
            ("1048576", 1_048_576),
            ("8MiB", 8_388_608),
            ("64 MB", 64_000_000),
            ("500kB", 500_000),
            ("1GiB", 1_073_741_824),
            ("7B", 7),
        ] {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for text in ["8mib", "8M", "", "MiB", "1.5MiB", "-1", "18446744073709551615GiB"] {
            assert_eq!(size(text), None, "{text}");
        }
    }
}
