//! The memory that bodies are held in: `limits.body_memory`, over all requests.
//!
//! Charged is what comes, when it comes: a length that a client only announces takes nothing from the others.
//! Nobody waits for room; who waited would hold what the others need.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::Frame;

use crate::metrics::{Limit, Metrics};

/// Data below this length is copied together: a frame of its own costs more than it holds, and may keep alive
/// the whole buffer that it was read into.
const SMALL: usize = 4 << 10;
/// What small data is copied into.
const BLOCK: usize = 16 << 10;
/// What a line of a trailer costs beside its text.
const PER_FIELD: usize = 64;

/// The budget.
pub(crate) struct Memory {
    free: AtomicUsize,
    pub metrics: Arc<Metrics>,
}

impl Memory {
    pub(crate) fn new(bytes: usize, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            free: AtomicUsize::new(bytes),
            metrics,
        })
    }

    /// A share that holds nothing yet.
    pub(crate) fn share(self: &Arc<Self>) -> Share {
        Share {
            memory: Arc::clone(self),
            bytes: 0,
        }
    }
}

/// What one holder has of the budget.
#[must_use = "it is given back when this is dropped"]
pub(crate) struct Share {
    memory: Arc<Memory>,
    bytes: usize,
}

impl Share {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes so many bytes more; `false`: there is no room, which is counted.
    #[must_use]
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let free = &self.memory.free;
        let taken = free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| {
            free.checked_sub(bytes)
        });
        if taken.is_err() {
            self.memory.metrics.limit(Limit::BodyMemory);
            return false;
        }
        self.bytes += bytes;
        true
    }

    pub(crate) fn give(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.memory.free.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give(self.bytes);
    }
}

/// There is no room for more.
#[derive(Debug)]
pub(crate) struct NoRoom;

/// What is held of a body, in order.
pub(crate) struct Pieces {
    /// Each with what it was charged.
    frames: VecDeque<(Frame<Bytes>, usize)>,
    /// Small data that came last, and what the block was charged.
    block: BytesMut,
    /// Bytes of data.
    length: u64,
    /// `None`: nothing will be held.
    share: Option<Share>,
}

impl Pieces {
    pub(crate) fn new(share: Option<Share>) -> Self {
        Self {
            frames: VecDeque::new(),
            block: BytesMut::new(),
            length: 0,
            share,
        }
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// The trailers, if they have come.
    pub(crate) fn trailers(&self) -> Option<&HeaderMap> {
        self.frames.back()?.0.trailers_ref()
    }

    fn charge(&mut self, bytes: usize) -> Result<(), NoRoom> {
        let charged = self.share.as_mut().is_some_and(|share| share.grow(bytes));
        if charged { Ok(()) } else { Err(NoRoom) }
    }

    /// Takes a frame in. What finds no room is dropped.
    pub(crate) fn push(&mut self, frame: Frame<Bytes>) -> Result<(), NoRoom> {
        let Some(data) = frame.data_ref() else {
            let fields = frame.trailers_ref().into_iter().flatten();
            let cost = fields.map(|(name, value)| name.as_str().len() + value.len() + PER_FIELD);
            let cost = cost.sum();
            self.charge(cost)?;
            self.seal();
            self.frames.push_back((frame, cost));
            return Ok(());
        };
        let length = data.len();
        let first = self.frames.is_empty() && self.block.is_empty();
        if first || length >= SMALL {
            self.charge(length)?;
            self.seal();
            self.length += length as u64;
            self.frames.push_back((frame, length));
            return Ok(());
        }
        if self.block.capacity() - self.block.len() < length {
            self.charge(BLOCK)?;
            self.seal();
            self.block = BytesMut::with_capacity(BLOCK);
        }
        self.length += length as u64;
        self.block.extend_from_slice(data);
        Ok(())
    }

    /// Ends the block: what follows goes behind it.
    pub(crate) fn seal(&mut self) {
        if self.block.is_empty() {
            return;
        }
        let block = std::mem::take(&mut self.block);
        let length = block.len();
        let (data, charged) = if length > BLOCK / 2 {
            (block.freeze(), BLOCK)
        } else {
            // Small data between large: a block each would cost a multiple of what it holds.
            (Bytes::copy_from_slice(&block), length)
        };
        if let Some(share) = &mut self.share {
            share.give(BLOCK - charged);
        }
        self.frames.push_back((Frame::data(data), charged));
    }

    /// The next frame, no longer charged. To be used on what is sealed.
    pub(crate) fn pop(&mut self) -> Option<Frame<Bytes>> {
        let (frame, charged) = self.frames.pop_front()?;
        if let Some(share) = &mut self.share {
            share.give(charged);
        }
        Some(frame)
    }

    /// All data in one piece. To be used on what is sealed.
    pub(crate) fn joined(&self) -> Bytes {
        let mut data = self.frames.iter().filter_map(|(frame, _)| frame.data_ref());
        match (data.next(), data.next()) {
            (None, _) => Bytes::new(),
            (Some(only), None) => only.clone(),
            _ => {
                let length = usize::try_from(self.length).unwrap_or(0);
                let mut joined = BytesMut::with_capacity(length);
                for (frame, _) in &self.frames {
                    joined.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
                }
                joined.freeze()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(bytes: usize) -> Arc<Memory> {
        Memory::new(bytes, Arc::new(Metrics::new(&[])))
    }

    fn free(memory: &Memory) -> usize {
        memory.free.load(Ordering::Relaxed)
    }

    fn data(length: usize) -> Frame<Bytes> {
        Frame::data(vec![b'x'; length].into())
    }

    #[test]
    fn what_is_taken_comes_back() {
        let memory = memory(100);
        let (mut one, mut other) = (memory.share(), memory.share());
        assert!(one.grow(60));
        assert!(!other.grow(41));
        assert!(other.grow(40));
        one.give(10);
        assert!(other.grow(10));
        drop((one, other));
        assert_eq!(free(&memory), 100);
    }

    #[test]
    fn a_body_of_single_bytes_costs_about_what_it_holds() {
        let memory = memory(1 << 20);
        let mut pieces = Pieces::new(Some(memory.share()));
        for _ in 0..100_000 {
            pieces.push(data(1)).expect("room");
        }
        pieces.seal();
        assert!(pieces.frames.len() < 10, "{} frames", pieces.frames.len());
        assert_eq!(pieces.joined().len(), 100_000);
        assert!((1 << 20) - free(&memory) < 100_000 + 2 * BLOCK);
        while pieces.pop().is_some() {}
        assert_eq!(free(&memory), 1 << 20);
    }

    #[test]
    fn frames_keep_their_order() {
        let memory = memory(1 << 20);
        let mut pieces = Pieces::new(Some(memory.share()));
        let mut all = Vec::new();
        for (at, length) in [10, 20, 5000, 30, 40, 4096, 1, 16_000, 900, 900]
            .into_iter()
            .enumerate()
        {
            let piece = vec![b'a' + u8::try_from(at).expect("few"); length];
            all.extend_from_slice(&piece);
            pieces.push(Frame::data(piece.into())).expect("room");
        }
        pieces.seal();
        assert_eq!(pieces.joined(), all);
        assert_eq!(pieces.length(), all.len() as u64);
        let mut popped = Vec::new();
        while let Some(frame) = pieces.pop() {
            popped.extend_from_slice(frame.data_ref().expect("data"));
        }
        assert_eq!(popped, all);
    }

    #[test]
    fn what_finds_no_room_is_told() {
        let memory = memory(100);
        let mut pieces = Pieces::new(Some(memory.share()));
        pieces.push(data(90)).expect("room");
        assert!(pieces.push(data(20)).is_err());
        drop(pieces);
        assert_eq!(free(&memory), 100);
    }
}
