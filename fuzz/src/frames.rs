//! HTTP/2 frames: everything passes as it came, except for the flag that malformed trailers lose;
//! no reader behind finds trailers with a pseudo-header field that end their stream; pieces decide
//! nothing.

use std::collections::BTreeSet;

use fencepost::wire::frames::Frames;

use crate::{Seen, Target, Verdict, hold, hpack};

pub const TARGET: Target = Target {
    name: "frames",
    check,
    dictionary: include_str!("../dictionaries/frames.dict"),
};

/// The longest list of fields in trailers.
const MOST: usize = 300;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADER: usize = 9;
const FLAGS: usize = 4;
const END_STREAM: u8 = 1;

/// The function under test: what passes of a client's or a server's connection in these pieces.
pub type Run = dyn Fn(bool, &[&[u8]]) -> Vec<u8>;

fn check(data: &[u8]) -> Verdict {
    check_of(&real, data)
}

/// The frames that the proxy hands on to the library.
#[must_use]
pub fn real(client: bool, pieces: &[&[u8]]) -> Vec<u8> {
    let mut frames = if client {
        Frames::of_client(MOST)
    } else {
        Frames::of_server(MOST)
    };
    let mut waiting = Vec::new();
    let mut passed = Vec::new();
    for piece in pieces {
        waiting.extend_from_slice(piece);
        let released = frames.feed(&mut waiting);
        passed.extend(waiting.drain(..released));
    }
    passed
}

pub fn check_of(run: &Run, data: &[u8]) -> Verdict {
    let Some((side, frames)) = data.split_first() else {
        return Ok(Seen::Refused);
    };
    let client = side % 2 == 0;
    let preface = if client { PREFACE } else { b"" };
    let bytes = [preface, frames].concat();
    let passed = run(client, &[&bytes]);
    let singles: Vec<&[u8]> = bytes.chunks(1).collect();
    let thirds: Vec<&[u8]> = bytes.chunks(bytes.len() / 3 + 1).collect();
    for pieces in [&singles, &thirds] {
        let again = run(client, pieces);
        let count = pieces.len();
        let readable = unended(client, &again)?;
        // Of a block that no reader can read, the flag says nothing.
        let same =
            |(one, other): (&u8, &u8)| one == other || !readable && one ^ other == END_STREAM;
        hold!(
            passed.iter().zip(&again).all(same),
            "in {count} pieces other bytes pass"
        );
        // Bytes before a frame turned out to be wrong may have gone on.
        hold!(again.len() >= passed.len(), "in {count} pieces less passes");
    }
    hold!(passed.len() <= bytes.len(), "more passes than came");
    let ended = unended(client, &passed)?;
    let mut changed = passed.iter().zip(&bytes).enumerate();
    let changed = changed.try_fold(BTreeSet::new(), |mut places, (at, (out, came))| {
        if out != came {
            hold!(*out == came & !END_STREAM, "byte {at} became {out:#x}");
            places.insert(at);
        }
        Ok(places)
    })?;
    let flags: BTreeSet<usize> = heads(&passed[preface.len().min(passed.len())..])
        .map(|head| head.at + FLAGS + preface.len())
        .collect();
    hold!(changed.is_subset(&flags), "{changed:?} are no flags");
    Ok(if ended && passed.len() == bytes.len() {
        Seen::Accepted
    } else {
        Seen::Refused
    })
}

/// A frame: where it stands, and what it is.
struct Head<'a> {
    at: usize,
    kind: u8,
    flags: u8,
    stream: u32,
    payload: &'a [u8],
    whole: bool,
}

/// A plain reader of frames.
fn heads(bytes: &[u8]) -> impl Iterator<Item = Head<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let head = bytes.get(at..at + HEADER)?;
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let start = at + HEADER;
        let end = (start + length).min(bytes.len());
        let found = Head {
            at,
            kind: head[3],
            flags: head[4],
            stream: u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]),
            payload: &bytes[start..end],
            whole: end == start + length,
        };
        at = start + length;
        Some(found)
    })
}

/// The part of a HEADERS or CONTINUATION frame that is of the block.
fn block_of<'a>(head: &Head<'a>) -> Option<&'a [u8]> {
    let mut payload = head.payload;
    if head.kind == 1 {
        let mut padding = 0;
        if head.flags & 8 != 0 {
            padding = usize::from(*payload.first()?);
            payload = &payload[1..];
        }
        if head.flags & 0x20 != 0 {
            payload = payload.get(5..)?;
        }
        payload = payload.get(..payload.len().checked_sub(padding)?)?;
    }
    Some(payload)
}

/// Reads what has passed as the library does, and sees that no malformed trailers end their stream.
/// Returns whether all of it could be read.
fn unended(client: bool, passed: &[u8]) -> Result<bool, String> {
    let skipped = if client { PREFACE.len() } else { 0 };
    let mut decoder = hpack::decoder();
    let (mut highest, mut answered, mut over) = (0, BTreeSet::new(), BTreeSet::new());
    let mut block: Option<(Vec<u8>, u32, bool)> = None;
    for head in heads(passed.get(skipped..).unwrap_or_default()) {
        if !head.whole {
            return Ok(false);
        }
        let follows = head.kind == 9;
        if block.is_some() != follows
            || block
                .as_ref()
                .is_some_and(|(_, stream, _)| *stream != head.stream)
        {
            return Ok(false);
        }
        match head.kind {
            1 | 9 => {
                let Some(part) = block_of(&head) else {
                    return Ok(false);
                };
                let (text, _, _) = block
                    .get_or_insert_with(|| (Vec::new(), head.stream, head.flags & END_STREAM != 0));
                text.extend_from_slice(part);
            }
            5 => return Ok(false),
            0 | 3 if head.kind == 3 || head.flags & END_STREAM != 0 => {
                over.insert(head.stream);
            }
            _ => {}
        }
        if !matches!(head.kind, 1 | 9) || head.flags & 4 == 0 {
            continue;
        }
        let Some((text, stream, ends)) = block.take() else {
            continue;
        };
        let Some(fields) = hpack::fields(&mut decoder, &text) else {
            return Ok(false);
        };
        let trailers = if client {
            stream <= highest
        } else {
            answered.contains(&stream)
        };
        if over.contains(&stream) {
            continue;
        }
        hold!(
            !(trailers && ends && (fields.pseudo || fields.bytes >= MOST)),
            "trailers of stream {stream} pass and end it, with {fields:?}"
        );
        highest = highest.max(stream);
        if !fields.interim {
            answered.insert(stream);
        }
        // Trailers that do not end their stream are an error of the stream: it is reset.
        if ends || trailers {
            over.insert(stream);
        }
    }
    Ok(true)
}
