//! Dates and times as ISO 8601 and RFC 3339 text, strictly, over the range of PostgreSQL.
//!
//! Read: `2026-05-01`, `12:30`, `12:30:05.25`, both joined by `T` or a blank, with `Z`, `+02`, `+02:00` or `+0200` where a
//! zone is wanted. Years outside 0001 to 9999 take a sign and six digits. Anything finer than microseconds is refused,
//! as are leap seconds and 24:00, which no column keeps as they are.

use std::fmt::Write as _;

/// Days of PostgreSQL's `date`: from 4714-11-24 BC (year -4713 here) to 5874897-12-31.
pub(super) const DATES: std::ops::RangeInclusive<i32> = -2_440_588..=2_145_042_905;
/// Microseconds of PostgreSQL's `timestamp` and `timestamptz` from below: 4714-11-24 BC. Above, 64 bits end first.
pub(super) const FIRST_TIMESTAMP: i64 = -210_866_803_200_000_000;
/// Microseconds of one day.
pub(super) const DAY: i64 = 86_400_000_000;

/// What is wrong with a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Misread {
    /// It is not of the form.
    Form,
    /// It has digits finer than microseconds that are not 0.
    TooFine,
    /// It names a zone, and none is wanted.
    Zone,
    /// It names no zone, and one is wanted.
    NoZone,
    /// It is outside what a column holds.
    Range,
}

/// Days since 1970-01-01 of a day in the proleptic Gregorian calendar. The day must exist.
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March, so that the leap day is the last of its year.
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Year, month and day of days since 1970-01-01.
fn civil_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

/// The text of a date.
pub(super) fn date_text(days: i32) -> String {
    let mut text = String::with_capacity(10);
    write_date(&mut text, i64::from(days));
    text
}

/// The text of a time of day: at most six digits after the point, none where they are all 0.
pub(super) fn time_text(micros: i64) -> String {
    let mut text = String::with_capacity(15);
    write_time(&mut text, micros);
    text
}

/// The text of a time without zone.
pub(super) fn timestamp_text(micros: i64) -> String {
    let mut text = String::with_capacity(27);
    write_date(&mut text, micros.div_euclid(DAY));
    text.push('T');
    write_time(&mut text, micros.rem_euclid(DAY));
    text
}

/// The text of a point in time, in UTC.
pub(super) fn timestamptz_text(micros: i64) -> String {
    let mut text = timestamp_text(micros);
    text.push('Z');
    text
}

// Writing to a String cannot fail.
fn write_date(text: &mut String, days: i64) {
    let (year, month, day) = civil_of(days);
    let _ = if (1..=9999).contains(&year) {
        write!(text, "{year:04}-{month:02}-{day:02}")
    } else {
        write!(text, "{year:+07}-{month:02}-{day:02}")
    };
}

fn write_time(text: &mut String, micros: i64) {
    let (seconds, fraction) = (micros / 1_000_000, micros % 1_000_000);
    let _ = write!(text, "{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    if fraction != 0 {
        let digits = format!("{fraction:06}");
        let _ = write!(text, ".{}", digits.trim_end_matches('0'));
    }
}

/// Days since 1970-01-01.
pub(super) fn parse_date(text: &str) -> Result<i32, Misread> {
    let mut rest = text.as_bytes();
    let days = read_date(&mut rest)?;
    if !rest.is_empty() {
        return Err(Misread::Form);
    }
    i32::try_from(days).ok().filter(|days| DATES.contains(days)).ok_or(Misread::Range)
}

/// Microseconds since midnight.
pub(super) fn parse_time(text: &str) -> Result<i64, Misread> {
    let mut rest = text.as_bytes();
    let micros = read_time(&mut rest)?;
    match read_zone(rest)? {
        None => Ok(micros),
        Some(_) => Err(Misread::Zone),
    }
}

/// Microseconds since 1970-01-01 of a time without zone.
pub(super) fn parse_timestamp(text: &str) -> Result<i64, Misread> {
    match read_date_time(text)? {
        (micros, None) => in_range(micros),
        (_, Some(_)) => Err(Misread::Zone),
    }
}

/// Microseconds since 1970-01-01 UTC of a time with a zone.
pub(super) fn parse_timestamptz(text: &str) -> Result<i64, Misread> {
    match read_date_time(text)? {
        (micros, Some(offset)) => in_range(micros - i128::from(offset) * 1_000_000),
        (_, None) => Err(Misread::NoZone),
    }
}

fn in_range(micros: i128) -> Result<i64, Misread> {
    i64::try_from(micros).ok().filter(|micros| *micros >= FIRST_TIMESTAMP).ok_or(Misread::Range)
}

fn read_date_time(text: &str) -> Result<(i128, Option<i64>), Misread> {
    let mut rest = text.as_bytes();
    let days = read_date(&mut rest)?;
    let (b'T' | b't' | b' ', after) = rest.split_first().ok_or(Misread::Form)? else {
        return Err(Misread::Form);
    };
    rest = after;
    let micros = read_time(&mut rest)?;
    Ok((i128::from(days) * i128::from(DAY) + i128::from(micros), read_zone(rest)?))
}

fn read_date(rest: &mut &[u8]) -> Result<i64, Misread> {
    let year = match rest.first() {
        Some(b'+') => signed_year(rest)?,
        Some(b'-') => -signed_year(rest)?,
        _ => number(rest, 4)?,
    };
    expect(rest, b'-')?;
    let month = number(rest, 2)?;
    expect(rest, b'-')?;
    let day = number(rest, 2)?;
    if !(1..=12).contains(&month) || !(1..=days_in_month(year, month)).contains(&day) {
        return Err(Misread::Form);
    }
    Ok(days_of(year, month, day))
}

/// A year of six or seven digits behind a sign.
fn signed_year(rest: &mut &[u8]) -> Result<i64, Misread> {
    *rest = &rest[1..];
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if (6..=7).contains(&digits) { number(rest, digits) } else { Err(Misread::Form) }
}

fn read_time(rest: &mut &[u8]) -> Result<i64, Misread> {
    let hour = number(rest, 2)?;
    expect(rest, b':')?;
    let minute = number(rest, 2)?;
    let mut micros = 0;
    let mut second = 0;
    if rest.first() == Some(&b':') {
        *rest = &rest[1..];
        second = number(rest, 2)?;
        if rest.first() == Some(&b'.') {
            *rest = &rest[1..];
            micros = read_fraction(rest)?;
        }
    }
    if hour > 23 || minute > 59 || second > 59 {
        return Err(Misread::Form);
    }
    Ok(((hour * 60 + minute) * 60 + second) * 1_000_000 + micros)
}

fn read_fraction(rest: &mut &[u8]) -> Result<i64, Misread> {
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits == 0 {
        return Err(Misread::Form);
    }
    let (fraction, after) = rest.split_at(digits);
    *rest = after;
    if fraction.iter().skip(6).any(|digit| *digit != b'0') {
        return Err(Misread::TooFine);
    }
    let padded = fraction.iter().copied().chain(std::iter::repeat(b'0')).take(6);
    Ok(padded.fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0')))
}

/// The offset from UTC in seconds, or nothing; takes all that is left.
fn read_zone(mut rest: &[u8]) -> Result<Option<i64>, Misread> {
    let sign = match rest.first() {
        None => return Ok(None),
        Some(b'Z' | b'z') if rest.len() == 1 => return Ok(Some(0)),
        Some(b'+') => 1,
        Some(b'-') => -1,
        Some(_) => return Err(Misread::Form),
    };
    rest = &rest[1..];
    let hours = number(&mut rest, 2)?;
    if rest.first() == Some(&b':') {
        rest = &rest[1..];
        if rest.is_empty() {
            return Err(Misread::Form);
        }
    }
    let minutes = if rest.is_empty() { 0 } else { number(&mut rest, 2)? };
    if !rest.is_empty() || hours > 23 || minutes > 59 {
        return Err(Misread::Form);
    }
    Ok(Some(sign * (hours * 3600 + minutes * 60)))
}

fn number(rest: &mut &[u8], digits: usize) -> Result<i64, Misread> {
    let (text, after) = rest.split_at_checked(digits).ok_or(Misread::Form)?;
    *rest = after;
    text.iter().try_fold(0, |sum, byte| {
        if byte.is_ascii_digit() { Ok(sum * 10 + i64::from(byte - b'0')) } else { Err(Misread::Form) }
    })
}

fn expect(rest: &mut &[u8], byte: u8) -> Result<(), Misread> {
    match rest.split_first() {
        Some((first, after)) if *first == byte => {
            *rest = after;
            Ok(())
        }
        _ => Err(Misread::Form),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn forms_of_iso_8601_and_rfc_3339_are_read() {
        assert_eq!(parse_date("1970-01-02"), Ok(1));
        assert_eq!(parse_date("2000-02-29"), Ok(11_016));
        assert_eq!(parse_time("12:30"), Ok(45_000_000_000));
        assert_eq!(parse_time("23:59:59.999999000"), Ok(DAY - 1));
        assert_eq!(parse_timestamp("1970-01-01T00:00:01.5"), Ok(1_500_000));
        for zone in ["Z", "z", "+00", "-00:00", "+0000"] {
            assert_eq!(parse_timestamptz(&format!("1970-01-01 00:00:01{zone}")), Ok(1_000_000), "{zone}");
        }
        assert_eq!(parse_timestamptz("1970-01-01T02:00:00+02:00"), Ok(0));
        assert_eq!(parse_timestamptz("1969-12-31T18:30:00-0530"), Ok(0));
    }

    #[test]
    fn what_no_calendar_holds_is_refused() {
        for text in [
            "2026-02-29",
            "2026-13-01",
            "2026-00-10",
            "2026-1-1",
            "20260101",
            "2026-01-01 ",
            "",
            "-026-01-01",
        ] {
            assert_eq!(parse_date(text), Err(Misread::Form), "{text}");
        }
        for text in ["24:00:00", "23:59:60", "12", "12:5", "12:30:", "12:30:05.", "1:00"] {
            assert_eq!(parse_time(text), Err(Misread::Form), "{text}");
        }
        for text in [
            "1970-01-01T00:00:00+",
            "1970-01-01T00:00:00+2",
            "1970-01-01T00:00:00+02:",
            "1970-01-01T00:00:00ZZ",
        ] {
            assert_eq!(parse_timestamptz(text), Err(Misread::Form), "{text}");
        }
    }

    #[test]
    fn zones_and_fractions_are_never_dropped_silently() {
        assert_eq!(parse_timestamp("2026-01-01T00:00:00Z"), Err(Misread::Zone));
        assert_eq!(parse_timestamptz("2026-01-01T00:00:00"), Err(Misread::NoZone));
        assert_eq!(parse_time("12:00:00+01"), Err(Misread::Zone));
        assert_eq!(parse_timestamptz("2026-01-01T00:00:00.1234567Z"), Err(Misread::TooFine));
    }

    #[test]
    fn the_ranges_are_those_of_postgresql() {
        assert_eq!(parse_date("-004713-11-24"), Ok(*DATES.start()));
        assert_eq!(parse_date("-004713-11-23"), Err(Misread::Range));
        assert_eq!(parse_date("+5874897-12-31"), Ok(*DATES.end()));
        assert_eq!(parse_date("+5874898-01-01"), Err(Misread::Range));
        assert_eq!(parse_timestamp("-004713-11-24T00:00"), Ok(FIRST_TIMESTAMP));
        assert_eq!(parse_timestamp("-004713-11-23T23:59:59.999999"), Err(Misread::Range));
        assert_eq!(parse_timestamp("+294247-01-10T04:00:54.775807"), Ok(i64::MAX));
        assert_eq!(parse_timestamp("+294247-01-10T04:00:54.775808"), Err(Misread::Range));
    }

    proptest! {
        #[test]
        fn every_date_comes_back_from_its_text(days in DATES) {
            prop_assert_eq!(parse_date(&date_text(days)), Ok(days));
        }

        #[test]
        fn every_time_comes_back_from_its_text(micros in 0..DAY) {
            prop_assert_eq!(parse_time(&time_text(micros)), Ok(micros));
        }

        #[test]
        fn every_timestamp_comes_back_from_its_text(micros in FIRST_TIMESTAMP..=i64::MAX) {
            prop_assert_eq!(parse_timestamp(&timestamp_text(micros)), Ok(micros));
            prop_assert_eq!(parse_timestamptz(&timestamptz_text(micros)), Ok(micros));
        }

        #[test]
        fn no_text_panics(text in "[-+0-9:TZ. ]{0,30}|.{0,10}") {
            let _ = (parse_date(&text), parse_time(&text), parse_timestamp(&text), parse_timestamptz(&text));
        }

        #[test]
        fn dates_agree_with_the_calendar_library(days in -700_000_i32..2_900_000) {
            let date = jiff::civil::date(1970, 1, 1).checked_add(jiff::Span::new().days(days)).expect("in its range");
            if date.year() >= 1 {
                prop_assert_eq!(date_text(days), date.to_string());
            }
        }
    }
}
