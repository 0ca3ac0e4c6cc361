//! HPACK's Huffman code (RFC 7541, 5.2), bit by bit.
//!
//! The code is canonical: the codes of one length are consecutive numbers in the order of their
//! symbols. So the lengths say all of it.

/// The length of each symbol's code, in bits (RFC 7541, appendix B). The last one is the end of the
/// string, which is never sent whole.
#[rustfmt::skip]
const LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30,
    28, 28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5,
    7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22,
    22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23,
    22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22,
    21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26,
    26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20,
    24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27,
    27, 28, 27, 27, 27, 27, 27, 26, 30,
];

const SYMBOLS: usize = 257;
const END: u16 = 256;
const LONGEST: usize = 30;

/// The code that follows from [`LENGTHS`].
struct Code {
    /// The first code of each length.
    first: [u32; LONGEST + 1],
    /// How many codes have each length.
    count: [u32; LONGEST + 1],
    /// The start of the symbols of each length in `symbols`.
    start: [usize; LONGEST + 1],
    /// By length, then by number.
    symbols: [u16; SYMBOLS],
}

static CODE: Code = Code::new();

impl Code {
    #[expect(clippy::cast_possible_truncation, reason = "257 symbols")]
    const fn new() -> Self {
        let mut code = Self {
            first: [0; LONGEST + 1],
            count: [0; LONGEST + 1],
            start: [0; LONGEST + 1],
            symbols: [0; SYMBOLS],
        };
        let (mut next, mut filled, mut length) = (0_u32, 0, 1);
        while length <= LONGEST {
            next <<= 1;
            code.first[length] = next;
            code.start[length] = filled;
            let mut symbol = 0;
            while symbol < SYMBOLS {
                if LENGTHS[symbol] as usize == length {
                    code.symbols[filled] = symbol as u16;
                    filled += 1;
                    next += 1;
                    code.count[length] += 1;
                }
                symbol += 1;
            }
            length += 1;
        }
        code
    }
}

/// The bits of a symbol that has not come whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Huffman {
    bits: u32,
    length: usize,
}

/// The code of the end of the string, or of none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MalformedHuffman;

impl Huffman {
    /// Takes the next byte, and gives out the symbols that end in it.
    pub(super) fn read(
        &mut self,
        byte: u8,
        mut symbol: impl FnMut(u8),
    ) -> Result<(), MalformedHuffman> {
        for at in (0..8).rev() {
            self.bits = self.bits << 1 | u32::from(byte >> at & 1);
            self.length += 1;
            if self.length > LONGEST {
                return Err(MalformedHuffman);
            }
            let number = self.bits.wrapping_sub(CODE.first[self.length]);
            if self.bits < CODE.first[self.length] || number >= CODE.count[self.length] {
                continue;
            }
            // At most 256.
            let place = CODE.start[self.length] + number as usize;
            match CODE.symbols[place] {
                END => return Err(MalformedHuffman),
                found => symbol(u8::try_from(found).map_err(|_| MalformedHuffman)?),
            }
            *self = Self::default();
        }
        Ok(())
    }

    /// The string ends here: less than a byte is left, all ones.
    pub(super) fn end(self) -> Result<(), MalformedHuffman> {
        let padding = self.length < 8 && self.bits == (1 << self.length) - 1;
        padding.then_some(()).ok_or(MalformedHuffman)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(bytes: &[u8]) -> Result<Vec<u8>, MalformedHuffman> {
        let (mut huffman, mut text) = (Huffman::default(), Vec::new());
        for byte in bytes {
            huffman.read(*byte, |symbol| text.push(symbol))?;
        }
        huffman.end().map(|()| text)
    }

    /// RFC 7541, appendix C.4 and C.6.
    #[test]
    fn the_examples_of_the_standard() {
        for (coded, text) in [
            (&b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff"[..], "www.example.com"),
            (b"\xa8\xeb\x10\x64\x9c\xbf", "no-cache"),
            (b"\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f", "custom-key"),
            (b"\x64\x02", "302"),
            (b"\xae\xc3\x77\x1a\x4b", "private"),
            (b"\x64\x0e\xff", "307"),
            (
                b"\x94\xe7\x82\x1d\xd7\xf2\xe6\xc7\xb3\x35\xdf\xdf\xcd\x5b\x39\x60\xd5\xaf\x27\x08\x7f\
                  \x36\x72\xc1\xab\x27\x0f\xb5\x29\x1f\x95\x87\x31\x60\x65\xc0\x03\xed\x4e\xe5\xb1\x06\
                  \x3d\x50\x07",
                "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
            ),
            (b"", ""),
        ] {
            assert_eq!(decoded(coded).as_deref(), Ok(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn what_is_no_string_is_refused() {
        // A whole byte of padding, padding of zeros, and the end's own code.
        for coded in [
            &b"\xff"[..],
            b"\x64\x02\x00",
            b"\x64\x02\xff",
            b"\xff\xff\xff\xff",
        ] {
            assert_eq!(decoded(coded), Err(MalformedHuffman), "{coded:?}");
        }
    }

    /// Every code is the next one of its length, and all codes together leave none over.
    #[test]
    fn the_code_is_complete() {
        let shares = LENGTHS
            .iter()
            .map(|length| 1_u64 << (LONGEST - usize::from(*length)));
        assert_eq!(shares.sum::<u64>(), 1 << LONGEST);
    }
}
