//! The Confluent frame: a zero byte, the schema's id in four bytes (big-endian), then the value.

use bytes::Bytes;

use super::SchemaId;
use super::flaw::Flaw;
use crate::count::counted;
use crate::fault::Reason;
use crate::projection::ValueFormat;

/// Bytes of the frame before the value.
const FRAME: usize = 5;

/// Splits a framed value into the schema's id and the bytes behind the frame.
pub(super) fn split(value: &Bytes) -> Result<(SchemaId, Bytes), Flaw> {
    let id = id_of(value).ok_or_else(|| bad_frame(value))?;
    Ok((id, value.slice(FRAME..)))
}

/// The id in the frame of a value, for dead letters; `None` where the format has no frame, or the bytes are not framed.
#[must_use]
pub fn schema_id(format: &ValueFormat, value: &[u8]) -> Option<SchemaId> {
    match format {
        ValueFormat::AvroConfluent { .. } => id_of(value),
        ValueFormat::Json | ValueFormat::AvroPlain { .. } => None,
    }
}

fn id_of(value: &[u8]) -> Option<SchemaId> {
    match value {
        [0, a, b, c, d, ..] => Some(SchemaId(u32::from_be_bytes([*a, *b, *c, *d]))),
        _ => None,
    }
}

/// The first byte and the length tell what a value is instead (`{` is JSON); they are all that is shown of it.
fn bad_frame(value: &[u8]) -> Flaw {
    let found = match value.first() {
        None => "it is empty, which is not the same as null".to_owned(),
        Some(0) => format!("it has {}", counted(value.len(), "byte")),
        Some(first) => format!("its first byte is {first:#04x} and it has {}", counted(value.len(), "byte")),
    };
    let detail = format!(
        "not in the Confluent frame (a zero byte and a schema id of four bytes): {found}; \
         if the producer writes no frame, declare `framing: none`"
    );
    Flaw::new(Reason::BadFraming, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::projection::SchemaOrigin;

    #[test]
    fn a_frame_is_split_into_id_and_value() {
        let (id, body) = split(&Bytes::from_static(&[0, 0, 0, 1, 2, 9, 8])).unwrap();
        assert_eq!((id, body), (SchemaId(258), Bytes::from_static(&[9, 8])));
        let (id, body) = split(&Bytes::from_static(&[0, 255, 255, 255, 255])).unwrap();
        assert_eq!((id, body.len()), (SchemaId(u32::MAX), 0));
    }

    #[test]
    fn what_is_not_framed_is_refused_with_first_byte_and_length() {
        for (bytes, shown) in [
            (&b"{\"id\":1}"[..], "first byte is 0x7b and it has 8 bytes"),
            (&[0, 0, 0, 0], "it has 4 bytes"),
            (&[], "it is empty"),
            (&[2, 0, 0, 0, 0, 0], "first byte is 0x02 and it has 6 bytes"),
        ] {
            let fault = split(&Bytes::copy_from_slice(bytes)).unwrap_err().of("value");
            assert_eq!(fault.reason, Reason::BadFraming);
            assert!(fault.detail.contains(shown), "{}", fault.detail);
        }
    }

    #[test]
    fn a_dead_letter_gets_the_id_of_a_framed_value_only() {
        let framed = [0, 0, 0, 0, 7, 1];
        let confluent = ValueFormat::AvroConfluent { schemas: SchemaOrigin::Registry };
        assert_eq!(schema_id(&confluent, &framed), Some(SchemaId(7)));
        assert_eq!(schema_id(&confluent, &framed[..4]), None);
        assert_eq!(schema_id(&confluent, b"{....."), None);
        assert_eq!(schema_id(&ValueFormat::Json, &framed), None);
    }
}
