//! HTTP/2 frames on their way to the library. The library accepts malformed trailers: it silently
//! drops pseudo-header fields (RFC 9113, 8.1) and fields over its limit.
//!
//! Here such trailers are a stream error, which the library is made to raise. To the library,
//! trailers without `END_STREAM` are an error (RFC 9113, 8.1), so this flag is cleared. The header
//! block stays unchanged, and with it the state of HPACK at both ends. Only the frames of trailers
//! are held back, until they are whole.

use std::collections::HashSet;

use super::hpack::{Fields, Hpack};

/// A frame's header (RFC 9113, 4.1).
const HEADER: usize = 9;
/// The positions of its type and flags.
const KIND: usize = 3;
const FLAGS: usize = 4;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const PUSH_PROMISE: u8 = 5;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;

/// The length of a client's preface (RFC 9113, 3.4).
const PREFACE: usize = 24;

/// The sender of the frames.
#[derive(Clone, Debug)]
enum Side {
    /// A client, and the highest stream so far: heads open streams in rising order.
    Client(u32),
    /// A server, and the streams whose response has begun with a final status.
    Server(HashSet<u32>),
}

/// The current frame.
#[derive(Clone, Copy, Debug, Default)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    /// The length of the payload, and how much of it has not come.
    length: usize,
    left: usize,
    /// Bytes at the start of HEADERS that are not the block's: the length of the padding, and the
    /// priority; of them, those that have not come.
    before: usize,
    padded: bool,
    /// Bytes at the end that are padding.
    padding: usize,
}

impl Frame {
    const fn is_block(&self) -> bool {
        matches!(self.kind, HEADERS | CONTINUATION)
    }
}

/// The current header block, in one frame or several.
#[derive(Clone, Copy, Debug)]
struct Block {
    stream: u32,
    trailers: bool,
    ends_stream: bool,
}

/// Follows the frames of one direction of a connection.
#[derive(Clone, Debug)]
pub struct Frames {
    side: Side,
    hpack: Hpack,
    /// The size of trailers from which the library drops fields.
    most: usize,
    /// The current frame is wrong, or refers to what is not there. Nothing passes behind it: the
    /// library finds the same, and ends the connection.
    lost: bool,
    /// How many bytes of the preface have not come.
    preface: usize,
    header: [u8; HEADER],
    /// How much of the header has come. If all, the payload follows.
    got: usize,
    frame: Frame,
    block: Option<Block>,
    /// This many of the bytes that were read are held back.
    held: usize,
}

impl Frames {
    /// For a client, from its preface on. `most`: the library's `SETTINGS_MAX_HEADER_LIST_SIZE`.
    #[must_use]
    pub fn of_client(most: usize) -> Self {
        Self::new(Side::Client(0), PREFACE, most)
    }

    /// For a server, from its first frame on.
    #[must_use]
    pub fn of_server(most: usize) -> Self {
        Self::new(Side::Server(HashSet::new()), 0, most)
    }

    fn new(side: Side, preface: usize, most: usize) -> Self {
        Self {
            side,
            hpack: Hpack::default(),
            most,
            lost: false,
            preface,
            header: [0; HEADER],
            got: 0,
            frame: Frame::default(),
            block: None,
            held: 0,
        }
    }

    /// True if nothing more will pass.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.lost && self.got == 0
    }

    /// Takes bytes: those that the last call did not release, and new ones. Returns how many of
    /// them may be handed on. A flag among them may have been cleared.
    pub fn feed(&mut self, bytes: &mut [u8]) -> usize {
        let mut at = self.held;
        // The position of the first byte that is held back.
        let mut from = (self.held > 0).then_some(0);
        while at < bytes.len() && !self.is_over() {
            if self.preface > 0 {
                let taken = self.preface.min(bytes.len() - at);
                self.preface -= taken;
                at += taken;
                continue;
            }
            if self.got < HEADER {
                if self.got == 0 && self.block.is_none() {
                    from = Some(at);
                }
                self.header[self.got] = bytes[at];
                self.got += 1;
                at += 1;
                if self.got < HEADER {
                    continue;
                }
                self.begin();
                if self.lost || !self.block.is_some_and(|block| block.trailers) {
                    from = None;
                }
            } else {
                let taken = self.frame.left.min(bytes.len() - at);
                self.payload(&bytes[at..at + taken]);
                at += taken;
            }
            let mut malformed = false;
            if self.frame.left == 0 && self.got == HEADER {
                self.got = 0;
                if let Some(fields) = self.end() {
                    malformed = fields;
                    from = from.filter(|_| malformed);
                }
            }
            let Some(start) = from else { continue };
            // Holds back no more than trailers may have.
            if malformed || at - start > self.most {
                bytes[start + FLAGS] &= !END_STREAM;
            } else if !self.lost {
                continue;
            }
            from = None;
            if let Some(block) = &mut self.block {
                block.trailers = false;
            }
        }
        let released = from.unwrap_or(at);
        self.held = at - released;
        released
    }

    /// The other side has reset a stream, so no more of it is expected.
    pub fn reset(&mut self, stream: u32) {
        if let Side::Server(answered) = &mut self.side {
            answered.remove(&stream);
        }
    }

    /// The header of a frame has come.
    fn begin(&mut self) {
        let (kind, flags) = (self.header[KIND], self.header[FLAGS]);
        let (length, stream) = (length(&self.header), stream(&self.header));
        let has = |flag| kind == HEADERS && flags & flag != 0;
        let padded = has(PADDED);
        let before = usize::from(padded) + if has(PRIORITY) { 5 } else { 0 };
        self.frame = Frame {
            kind,
            flags,
            stream,
            length,
            left: length,
            before,
            padded,
            padding: 0,
        };
        let follows = kind == CONTINUATION;
        let same = self.block.is_none_or(|block| block.stream == stream);
        if self.block.is_some() != follows || !same || before > length || kind == PUSH_PROMISE {
            self.lost = true;
            return;
        }
        if kind == HEADERS {
            let trailers = match &self.side {
                Side::Client(highest) => stream <= *highest,
                Side::Server(answered) => answered.contains(&stream),
            };
            self.block = Some(Block {
                stream,
                trailers,
                ends_stream: flags & END_STREAM != 0,
            });
        }
    }

    /// A piece of the frame's payload.
    fn payload(&mut self, piece: &[u8]) {
        let frame = &mut self.frame;
        let first = frame.padded && frame.left == frame.length;
        let padding = piece.first().map_or(0, |length| usize::from(*length));
        if first && padding + frame.before > frame.length {
            self.lost = true;
        } else if first {
            frame.padding = padding;
        }
        let before = frame.before.min(piece.len());
        frame.before -= before;
        frame.left -= piece.len();
        // Padding follows the block.
        let behind = frame
            .padding
            .saturating_sub(frame.left)
            .min(piece.len() - before);
        let block = &piece[before..piece.len() - behind];
        if !self.lost && frame.is_block() && self.hpack.read(block).is_err() {
            self.lost = true;
        }
    }

    /// The frame has come whole. If a block ends with it, returns whether it has malformed
    /// trailers.
    fn end(&mut self) -> Option<bool> {
        let Frame {
            kind,
            flags,
            stream,
            ..
        } = self.frame;
        if let (DATA | RST_STREAM, Side::Server(answered)) = (kind, &mut self.side)
            && (kind == RST_STREAM || flags & END_STREAM != 0)
        {
            answered.remove(&stream);
        }
        if self.lost || !self.frame.is_block() || flags & END_HEADERS == 0 {
            return None;
        }
        let block = self.block.take()?;
        let Ok(fields) = self.hpack.end() else {
            self.lost = true;
            return None;
        };
        let malformed = block.trailers && (fields.pseudo || fields.bytes >= self.most);
        self.ended(block, fields);
        Some(malformed)
    }

    fn ended(&mut self, block: Block, fields: Fields) {
        match &mut self.side {
            Side::Client(highest) => *highest = block.stream.max(*highest),
            Side::Server(answered) if block.ends_stream => {
                answered.remove(&block.stream);
            }
            Side::Server(answered) => {
                if !fields.interim {
                    answered.insert(block.stream);
                }
            }
        }
    }
}

/// The length of the payload.
fn length(header: &[u8; HEADER]) -> usize {
    let bytes = header[..KIND].iter();
    bytes.fold(0, |length, byte| length << 8 | usize::from(*byte))
}

/// The stream's number, without the bit that is reserved.
fn stream(header: &[u8; HEADER]) -> u32 {
    let bytes = header[FLAGS + 1..].iter();
    bytes.fold(0, |number, byte| number << 8 | u32::from(*byte)) & 0x7fff_ffff
}

/// Finds the streams that the other direction resets.
#[derive(Clone, Debug, Default)]
pub struct Resets {
    /// Bytes that have come of the preface.
    preface: usize,
    header: [u8; HEADER],
    got: usize,
    left: usize,
}

impl Resets {
    /// Takes what a client has written, from its preface on.
    pub fn feed(&mut self, bytes: &[u8], mut found: impl FnMut(u32)) {
        let mut rest = bytes;
        while let [first, behind @ ..] = rest {
            if self.preface < PREFACE {
                self.preface += 1;
            } else if self.left > 0 {
                let taken = self.left.min(rest.len());
                self.left -= taken;
                rest = &rest[taken..];
                continue;
            } else {
                self.header[self.got] = *first;
                self.got = (self.got + 1) % HEADER;
                if self.got == 0 {
                    self.left = length(&self.header);
                    if self.header[KIND] == RST_STREAM {
                        found(stream(&self.header));
                    }
                }
            }
            rest = behind;
        }
    }
}

#[cfg(test)]
mod tests;
