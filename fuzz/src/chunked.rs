//! Chunked bodies: the end that is found is the one that any reader finds, and pieces decide
//! nothing.

use bytes::BytesMut;
use fencepost::http1::content::{ContentReader, Framing};

use crate::message::in_pieces;
use crate::request::LIMITS;
use crate::{Seen, Verdict, hold, target};

target!("chunked", &real);

/// The function under test: in these pieces, how many bytes belong to the body, if it is whole.
pub type End = dyn Fn(&[&[u8]]) -> Result<Option<usize>, String>;

/// Where the proxy finds the end.
pub fn real(pieces: &[&[u8]]) -> Result<Option<usize>, String> {
    let mut content = ContentReader::of_request(Framing::Chunked);
    let mut buf = BytesMut::new();
    let mut come = 0;
    for piece in pieces {
        buf.extend_from_slice(piece);
        come += piece.len();
        let mut take = || content.take(&mut buf, &LIMITS);
        while take().map_err(|error| error.to_string())?.is_some() {}
        if content.is_end() {
            return Ok(Some(come - buf.len()));
        }
    }
    Ok(None)
}

pub fn check_of(end: &End, data: &[u8]) -> Verdict {
    let whole = in_pieces(end, data)?;
    let length = match whole {
        Ok(Some(length)) => length,
        Ok(None) => return Ok(Seen::Refused),
        Err(message) => {
            hold!(!message.is_empty(), "a refusal without a word");
            return Ok(Seen::Refused);
        }
    };
    let mut payload = None;
    for reader in READERS {
        match reader.read(data) {
            Some((end, content)) => {
                hold!(end == length, "{} bytes, and to {reader:?} {end}", length);
                let first = payload.get_or_insert_with(|| content.clone());
                hold!(*first == content, "{reader:?} has another content");
            }
            None => {
                return Err(format!(
                    "it ends at {length}, and to {reader:?} it does not"
                ));
            }
        }
    }
    // Nothing behind it changes anything, and nothing less is the whole of it.
    let longer = [&data[..length], b"X"].concat();
    hold!(
        end(&[&longer]) == Ok(Some(length)),
        "a byte behind it changes it"
    );
    hold!(
        end(&[&data[..length - 1]]) == Ok(None),
        "its last byte is not needed"
    );
    Ok(Seen::Accepted)
}

/// A way in which servers read chunks.
#[derive(Clone, Copy, Debug)]
struct Reader {
    /// A line ends at LF, whatever stands before it; else at the first CR, whatever follows.
    by_lf: bool,
    /// The size ends at the first sign that is no digit (strtol); else at `;` or white space.
    digits: bool,
    /// Two bytes are skipped behind a chunk's data; else up to the end of the line.
    blindly: bool,
}

const READERS: [Reader; 4] = [
    Reader {
        by_lf: true,
        digits: true,
        blindly: false,
    },
    Reader {
        by_lf: false,
        digits: false,
        blindly: true,
    },
    Reader {
        by_lf: true,
        digits: false,
        blindly: true,
    },
    Reader {
        by_lf: false,
        digits: true,
        blindly: false,
    },
];

impl Reader {
    /// Where the body ends, and its content.
    fn read(self, data: &[u8]) -> Option<(usize, Vec<u8>)> {
        let mut content = Vec::new();
        let mut at = 0;
        loop {
            let (line, next) = self.line(data, at)?;
            let size = self.size(line)?;
            at = next;
            if size == 0 {
                break;
            }
            let end = at.checked_add(size)?;
            content.extend_from_slice(data.get(at..end)?);
            at = if self.blindly {
                end + 2
            } else {
                self.line(data, end)?.1
            };
        }
        loop {
            let (line, next) = self.line(data, at)?;
            at = next;
            if line.is_empty() {
                return Some((at, content));
            }
        }
    }

    fn line(self, data: &[u8], at: usize) -> Option<(&[u8], usize)> {
        let rest = data.get(at..)?;
        if self.by_lf {
            let end = rest.iter().position(|b| *b == b'\n')?;
            let line = &rest[..end];
            Some((line.strip_suffix(b"\r").unwrap_or(line), at + end + 1))
        } else {
            let end = rest.iter().position(|b| *b == b'\r')?;
            rest.get(end + 1)?;
            Some((&rest[..end], at + end + 2))
        }
    }

    fn size(self, line: &[u8]) -> Option<usize> {
        let stop = |b: &u8| {
            if self.digits {
                !b.is_ascii_hexdigit()
            } else {
                matches!(b, b';' | b' ' | b'\t')
            }
        };
        let end = line.iter().position(stop).unwrap_or(line.len());
        usize::from_str_radix(std::str::from_utf8(&line[..end]).ok()?, 16).ok()
    }
}
