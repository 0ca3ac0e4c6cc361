//! HPACK: a header block has the fields that another decoder finds in it, and pieces decide
//! nothing.

use fencepost::wire::hpack::{Fields, Hpack};
use loona_hpack::Decoder;
use loona_hpack::decoder::DecoderError;

use crate::{Seen, Target, Verdict, hold};

pub const TARGET: Target = Target {
    name: "hpack",
    check,
    dictionary: include_str!("../dictionaries/hpack.dict"),
};

/// The cost of a table entry besides its text (RFC 7541, 4.1).
const OVERHEAD: usize = 32;
/// The table that a peer may use (RFC 9113, 6.5.2).
const TABLE: usize = 4096;

/// The function under test: the fields of each block of a connection, in these pieces, up to the
/// first that is malformed.
pub type Run = dyn Fn(&[Vec<&[u8]>]) -> Vec<Option<Fields>>;

fn check(data: &[u8]) -> Verdict {
    check_of(&real, data)
}

/// The proxy's findings.
#[must_use]
pub fn real(blocks: &[Vec<&[u8]>]) -> Vec<Option<Fields>> {
    let mut hpack = Hpack::default();
    let mut found = Vec::new();
    for pieces in blocks {
        let read = pieces.iter().try_for_each(|piece| hpack.read(piece));
        let fields = read.and_then(|()| hpack.end()).ok();
        found.push(fields);
        if fields.is_none() {
            break;
        }
    }
    found
}

/// The blocks in an input: each behind a byte with its length.
pub(crate) fn blocks(data: &[u8]) -> Vec<&[u8]> {
    let mut blocks = Vec::new();
    let mut rest = data;
    while let [length, behind @ ..] = rest {
        let (block, next) = behind.split_at(usize::from(*length).min(behind.len()));
        blocks.push(block);
        rest = next;
    }
    blocks
}

/// Another decoder, with the table that this connection has.
pub(crate) fn decoder() -> Decoder<'static> {
    let mut decoder = Decoder::new();
    decoder.set_max_allowed_table_size(TABLE);
    decoder
}

/// The fields of a block by that decoder.
pub(crate) fn fields(decoder: &mut Decoder<'_>, block: &[u8]) -> Option<Fields> {
    let mut fields = Fields::default();
    let read = decoder.decode_with_cb(block, |name, value| {
        fields.count += 1;
        fields.bytes += name.len() + value.len() + OVERHEAD;
        fields.pseudo |= name.starts_with(b":");
        fields.interim |= *name == *b":status" && value.starts_with(b"1");
    });
    match read {
        // It has read all, and wants a field behind a change of the table's size.
        Ok(()) | Err(DecoderError::SizeUpdateAtEnd) => Some(fields),
        Err(_) => None,
    }
}

pub fn check_of(run: &Run, data: &[u8]) -> Verdict {
    let blocks = blocks(data);
    let whole: Vec<Vec<&[u8]>> = blocks.iter().map(|block| vec![*block]).collect();
    let single: Vec<Vec<&[u8]>> = blocks
        .iter()
        .map(|block| block.chunks(1).collect())
        .collect();
    let found = run(&whole);
    let again = run(&single);
    hold!(
        found == again,
        "at once {found:?}, and byte by byte {again:?}"
    );
    let mut decoder = decoder();
    for (at, block) in blocks.iter().enumerate() {
        let ours = found.get(at).copied().flatten();
        let theirs = fields(&mut decoder, block);
        hold!(
            ours == theirs,
            "block {at} has {ours:?}, and by another decoder {theirs:?}"
        );
        if ours.is_none() {
            return Ok(Seen::Refused);
        }
    }
    Ok(Seen::Accepted)
}
