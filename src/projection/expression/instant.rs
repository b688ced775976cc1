//! Timestamps and durations in expressions, in microseconds.

use jiff::civil::{Date, DateTime};
use jiff::{SignedDuration, Timestamp};

use super::function::Function;
use super::{Failure, with_article};
use crate::projection::Value;

/// `timestamp(x)`: of a text in RFC 3339.
pub(super) fn timestamp(value: &Value) -> Result<Value, Failure> {
    match value {
        Value::TimestampTz(_) => Ok(value.clone()),
        Value::Text(text) => {
            let parsed: Timestamp = text.parse().map_err(|_| {
                Failure::expression("`timestamp` of a text that is not like 2030-01-31T12:00:00Z")
            })?;
            if parsed.subsec_nanosecond() % 1_000 != 0 {
                return Err(Failure::expression(
                    "`timestamp` of a text with more than six digits of a second",
                ));
            }
            Ok(Value::TimestampTz(parsed.as_microsecond()))
        }
        Value::Int(_) => Err(Failure::expression(
            "`timestamp` of an integer; write timestampFromSeconds, timestampFromMillis or timestampFromMicros",
        )),
        other => Err(Failure::expression(format!("`timestamp` needs text, not {}", with_article(other)))),
    }
}

/// A timestamp of `micros` microseconds for each unit since 1970.
pub(super) fn from_units(value: &Value, micros: i64) -> Result<Value, Failure> {
    let Value::Int(number) = value else {
        let detail = format!("a timestamp is made of an integer, not {}", with_article(value));
        return Err(Failure::expression(detail));
    };
    number
        .checked_mul(micros)
        .map(Value::TimestampTz)
        .ok_or_else(|| Failure::expression("a timestamp outside of the range of 64 bits"))
}

/// `duration("1h30m")`, in microseconds.
pub(super) fn duration(text: &str) -> Result<i64, Failure> {
    let refused = || Failure::expression("`duration` of a text that is not like 1h30m or 250ms");
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    if rest.is_empty() || rest.len() > 64 {
        return Err(refused());
    }
    let mut total: i64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(refused)?;
        let count: i64 = rest[..digits].parse().map_err(|_| refused())?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let micros: i64 = match &rest[..letters] {
            "d" => 86_400_000_000,
            "h" => 3_600_000_000,
            "m" => 60_000_000,
            "s" => 1_000_000,
            "ms" => 1_000,
            "us" => 1,
            _ => return Err(refused()),
        };
        rest = &rest[letters..];
        total = count.checked_mul(micros).and_then(|part| total.checked_add(part)).ok_or_else(refused)?;
    }
    Ok(if negative { -total } else { total })
}

/// `getHours` and the like of a duration: the whole duration in that unit.
pub(super) fn part_of_duration(function: Function, micros: i64) -> Result<i64, Failure> {
    Ok(match function {
        Function::Hours => micros / 3_600_000_000,
        Function::Minutes => micros / 60_000_000,
        Function::Seconds => micros / 1_000_000,
        Function::Milliseconds => micros / 1_000,
        _ => {
            return Err(Failure::expression(
                "a duration has only getHours, getMinutes, getSeconds and getMilliseconds",
            ));
        }
    })
}

/// `getFullYear` and the like of a time, in UTC; months and days of the year count from 0, as CEL has it.
pub(super) fn part_of_time(function: Function, value: &Value) -> Result<i64, Failure> {
    let Some(time) = civil(value) else {
        let detail = format!("a part of a time is asked of {}", with_article(value));
        return Err(Failure::expression(detail));
    };
    Ok(match function {
        Function::Year => time.year().into(),
        Function::Month => i64::from(time.month()) - 1,
        Function::DayOfMonth => i64::from(time.day()) - 1,
        Function::DayOfYear => i64::from(time.day_of_year()) - 1,
        Function::DayOfWeek => time.weekday().to_sunday_zero_offset().into(),
        Function::Hours => time.hour().into(),
        Function::Minutes => time.minute().into(),
        Function::Seconds => time.second().into(),
        Function::Milliseconds => time.millisecond().into(),
        _ => return Err(Failure::expression("not a part of a time")),
    })
}

/// Date and time of a value that has a date, in UTC.
pub(super) fn civil(value: &Value) -> Option<DateTime> {
    let epoch = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);
    match value {
        Value::TimestampTz(micros) | Value::Timestamp(micros) => {
            epoch.checked_add(SignedDuration::from_micros(*micros)).ok()
        }
        Value::Date(days) => date(*days).map(|date| date.at(0, 0, 0, 0)),
        _ => None,
    }
}

/// The date of a number of days since 1970.
pub(super) fn date(days: i32) -> Option<Date> {
    let epoch = Date::constant(1970, 1, 1);
    epoch.checked_add(SignedDuration::from_hours(i64::from(days) * 24)).ok()
}
