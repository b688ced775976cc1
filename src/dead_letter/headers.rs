//! The headers of a record as one blob, so that a store keeps them exactly: order, repetition, null values, any bytes.
//!
//! The form: the number of headers (4 bytes, big-endian, as all numbers); then for each the length of its name (4), the
//! name in UTF-8, the length of its value (4, signed; -1 is Kafka's null), the value. Nothing follows the last one.

use bytes::Bytes;
use bytestring::ByteString;

use crate::record::Header;

/// The bytes that a header takes at least: both lengths.
const SMALLEST: usize = 8;

/// Why a blob is not one that [`encode`] made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeadersError {
    /// It ends before what its lengths promise.
    #[error("the headers end too early, after {length} bytes")]
    Truncated {
        /// The blob's length in bytes.
        length: usize,
    },
    /// Bytes follow the last header.
    #[error("{count} bytes follow the last header")]
    TrailingBytes {
        /// How many.
        count: usize,
    },
    /// A name is not UTF-8.
    #[error("the name of header {index} is not valid UTF-8")]
    InvalidName {
        /// The header's number, from 0.
        index: usize,
    },
    /// The length of a value is negative and not -1.
    #[error("the value of header {index} has an impossible length")]
    InvalidLength {
        /// The header's number, from 0.
        index: usize,
    },
}

/// Headers as one blob.
///
/// # Panics
/// A name or value of 2 GiB or more: Kafka's protocol cannot carry one.
#[must_use]
pub fn encode(headers: &[Header]) -> Vec<u8> {
    let size = headers
        .iter()
        .map(|header| SMALLEST + header.name.len() + header.value.as_ref().map_or(0, Bytes::len))
        .sum::<usize>();
    let mut blob = Vec::with_capacity(4 + size);
    blob.extend(length(headers.len()).to_be_bytes());
    for header in headers {
        blob.extend(length(header.name.len()).to_be_bytes());
        blob.extend(header.name.as_bytes());
        match &header.value {
            Some(value) => {
                blob.extend(length(value.len()).to_be_bytes());
                blob.extend(value);
            }
            None => blob.extend((-1_i32).to_be_bytes()),
        }
    }
    blob
}

fn length(length: usize) -> i32 {
    i32::try_from(length).expect("Kafka's protocol bounds a record below 2 GiB")
}

/// The headers of a blob that [`encode`] made. Allocates no more than a small multiple of the blob, whatever it holds.
///
/// # Errors
/// The blob is not one: it is too short or too long, or a name is not UTF-8.
pub fn decode(blob: &[u8]) -> Result<Vec<Header>, HeadersError> {
    let mut rest = blob;
    let truncated = HeadersError::Truncated { length: blob.len() };
    let count = u32::from_be_bytes(take_array(&mut rest).ok_or(truncated)?) as usize;
    if count > rest.len() / SMALLEST {
        return Err(truncated);
    }
    let mut headers = Vec::with_capacity(count);
    for index in 0..count {
        let name_length = u32::from_be_bytes(take_array(&mut rest).ok_or(truncated)?) as usize;
        let name = take(&mut rest, name_length).ok_or(truncated)?;
        let name = std::str::from_utf8(name).map_err(|_| HeadersError::InvalidName { index })?;
        let value = match i32::from_be_bytes(take_array(&mut rest).ok_or(truncated)?) {
            -1 => None,
            value_length => {
                let value_length =
                    usize::try_from(value_length).map_err(|_| HeadersError::InvalidLength { index })?;
                Some(Bytes::copy_from_slice(take(&mut rest, value_length).ok_or(truncated)?))
            }
        };
        headers.push(Header { name: ByteString::from(name), value });
    }
    if rest.is_empty() { Ok(headers) } else { Err(HeadersError::TrailingBytes { count: rest.len() }) }
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(count)?;
    *rest = left;
    Some(taken)
}

fn take_array(rest: &mut &[u8]) -> Option<[u8; 4]> {
    let (taken, left) = rest.split_first_chunk::<4>()?;
    *rest = left;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers() -> impl Strategy<Value = Vec<Header>> {
        let value = prop::option::of(prop::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from));
        let header = (".{0,6}", value).prop_map(|(name, value)| Header { name: name.into(), value });
        prop::collection::vec(header, 0..8)
    }

    #[test]
    fn the_form_is_the_documented_one() {
        let headers = [
            Header { name: "a".into(), value: Some(Bytes::from_static(&[0, 255])) },
            Header { name: "".into(), value: None },
            Header { name: "a".into(), value: Some(Bytes::new()) },
        ];
        let blob = [
            &[0, 0, 0, 3][..],
            &[0, 0, 0, 1, b'a', 0, 0, 0, 2, 0, 255],
            &[0, 0, 0, 0, 255, 255, 255, 255],
            &[0, 0, 0, 1, b'a', 0, 0, 0, 0],
        ]
        .concat();
        assert_eq!(encode(&headers), blob);
        assert_eq!(decode(&blob), Ok(headers.to_vec()));
    }

    #[test]
    fn a_blob_that_promises_more_than_it_holds_is_refused_before_allocating() {
        for blob in [
            &[255, 255, 255, 255, 0, 0, 0, 0][..],
            &[0, 0, 0, 1, 127, 255, 255, 255, 0, 0, 0, 0],
            &[0, 0, 0, 1, 0, 0, 0, 0, 127, 255, 255, 255],
            &[0, 0],
            &[],
        ] {
            assert_eq!(decode(blob), Err(HeadersError::Truncated { length: blob.len() }), "{blob:?}");
        }
    }

    #[test]
    fn impossible_lengths_bad_names_and_trailing_bytes_are_refused() {
        let length = [0, 0, 0, 1, 0, 0, 0, 0, 255, 255, 255, 254];
        assert_eq!(decode(&length), Err(HeadersError::InvalidLength { index: 0 }));
        let name = [0, 0, 0, 1, 0, 0, 0, 1, 255, 0, 0, 0, 0];
        assert_eq!(decode(&name), Err(HeadersError::InvalidName { index: 0 }));
        assert_eq!(decode(&[0, 0, 0, 0, 9]), Err(HeadersError::TrailingBytes { count: 1 }));
    }

    proptest! {
        #[test]
        fn headers_come_back_as_they_were(headers in headers()) {
            prop_assert_eq!(decode(&encode(&headers)), Ok(headers));
        }

        #[test]
        fn any_bytes_are_decoded_or_refused_and_what_is_decoded_is_what_was_encoded(
            blob in prop::collection::vec(prop_oneof![Just(0_u8), Just(1), any::<u8>()], 0..40)
        ) {
            if let Ok(headers) = decode(&blob) {
                prop_assert_eq!(encode(&headers), blob);
            }
        }

        #[test]
        fn a_cut_blob_is_refused(headers in headers(), cut in any::<prop::sample::Index>()) {
            let blob = encode(&headers);
            prop_assert!(decode(&blob[..cut.index(blob.len())]).is_err());
        }
    }
}
