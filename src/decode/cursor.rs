//! Reading the primitives of Avro's binary encoding, each checked against the bytes that are left.

use bytes::Bytes;
use bytestring::ByteString;

use super::flaw::Flaw;
use crate::fault::Reason;

/// A position in the bytes of one value.
#[derive(Debug)]
pub(super) struct Cursor<'a> {
    bytes: &'a Bytes,
    position: usize,
}

impl<'a> Cursor<'a> {
    pub(super) const fn new(bytes: &'a Bytes) -> Self {
        Self { bytes, position: 0 }
    }

    pub(super) const fn position(&self) -> usize {
        self.position
    }

    pub(super) fn remaining(&self) -> usize {
        self.bytes.len() - self.position
    }

    /// Steps over `length` bytes and gives where they begin.
    pub(super) fn skip(&mut self, length: usize) -> Result<usize, Flaw> {
        if length > self.remaining() {
            return Err(self.invalid("the bytes end in the middle of a value"));
        }
        let start = self.position;
        self.position += length;
        Ok(start)
    }

    /// The next `length` bytes, sharing the record's memory.
    pub(super) fn take(&mut self, length: usize) -> Result<Bytes, Flaw> {
        let start = self.skip(length)?;
        Ok(self.bytes.slice(start..self.position))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Flaw> {
        let start = self.skip(N)?;
        let mut array = [0; N];
        array.copy_from_slice(&self.bytes[start..self.position]);
        Ok(array)
    }

    pub(super) fn float(&mut self) -> Result<f32, Flaw> {
        self.array().map(f32::from_le_bytes)
    }

    pub(super) fn double(&mut self) -> Result<f64, Flaw> {
        self.array().map(f64::from_le_bytes)
    }

    pub(super) fn uuid(&mut self) -> Result<[u8; 16], Flaw> {
        self.array()
    }

    pub(super) fn duration(&mut self) -> Result<[u8; 12], Flaw> {
        self.array()
    }

    pub(super) fn boolean(&mut self) -> Result<bool, Flaw> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [_] => Err(self.invalid("a boolean is neither 0 nor 1")),
        }
    }

    /// A `long`: zigzag, at most ten bytes.
    pub(super) fn long(&mut self) -> Result<i64, Flaw> {
        let mut zigzag: u64 = 0;
        for (index, &byte) in self.bytes[self.position..].iter().take(10).enumerate() {
            if index == 9 && byte > 1 {
                break;
            }
            zigzag |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                self.position += index + 1;
                return Ok((zigzag >> 1).cast_signed() ^ -(zigzag & 1).cast_signed());
            }
        }
        Err(self.invalid(if self.remaining() < 10 {
            "the bytes end in the middle of a number"
        } else {
            "a number has more than 64 bits"
        }))
    }

    pub(super) fn int(&mut self) -> Result<i32, Flaw> {
        let number = self.long()?;
        i32::try_from(number).map_err(|_| self.invalid("an int has more than 32 bits"))
    }

    /// A length in bytes, within what is left.
    pub(super) fn length(&mut self) -> Result<usize, Flaw> {
        match usize::try_from(self.long()?) {
            Ok(length) if length <= self.remaining() => Ok(length),
            Ok(_) => Err(self.invalid("a length is larger than the bytes that are left")),
            Err(_) => Err(self.invalid("a length is negative")),
        }
    }

    /// Text with its length before it.
    pub(super) fn text(&mut self) -> Result<ByteString, Flaw> {
        let length = self.length()?;
        let start = self.position;
        ByteString::try_from(self.take(length)?).map_err(|_| {
            Flaw::new(Reason::InvalidUtf8, format!("the text that begins at byte {start} is not valid UTF-8"))
        })
    }

    /// Bytes with their length before them.
    pub(super) fn bytes(&mut self) -> Result<Bytes, Flaw> {
        let length = self.length()?;
        self.take(length)
    }

    /// The bytes are not valid Avro of their schema; positions count from behind the frame.
    pub(super) fn invalid(&self, what: &str) -> Flaw {
        Flaw::new(
            Reason::InvalidAvro,
            format!("not valid Avro of its schema at byte {}: {what}", self.position),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long(bytes: &[u8]) -> Result<i64, Reason> {
        Cursor::new(&Bytes::copy_from_slice(bytes)).long().map_err(|flaw| flaw.reason())
    }

    #[test]
    fn longs_reach_both_ends_and_nothing_wraps() {
        assert_eq!(long(&[0]), Ok(0));
        assert_eq!(long(&[1]), Ok(-1));
        assert_eq!(long(&[0x80, 0x01]), Ok(64));
        let max = [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        let min = [0xff; 9].iter().copied().chain([0x01]).collect::<Vec<_>>();
        assert_eq!(long(&max), Ok(i64::MAX));
        assert_eq!(long(&min), Ok(i64::MIN));
        for bad in [
            &[0xff; 10][..],
            &[0xff; 30],
            &[0x80; 9],
            &[],
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02],
        ] {
            assert_eq!(long(bad), Err(Reason::InvalidAvro), "{bad:?}");
        }
    }

    #[test]
    fn an_int_keeps_to_32_bits_and_a_length_to_the_bytes_that_are_left() {
        let too_big = Bytes::from_static(&[0x80, 0x80, 0x80, 0x80, 0x10]);
        assert_eq!(Cursor::new(&too_big).long().unwrap(), 1 << 31);
        assert_eq!(Cursor::new(&too_big).int().unwrap_err().reason(), Reason::InvalidAvro);
        for bytes in [&[4, 1][..], &[1], &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]] {
            let bytes = Bytes::copy_from_slice(bytes);
            assert_eq!(Cursor::new(&bytes).bytes().unwrap_err().reason(), Reason::InvalidAvro);
        }
    }
}
