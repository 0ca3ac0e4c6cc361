//! The memory that bodies are held in: `limits.body_memory`, over all requests.
//!
//! Data is charged as it arrives: a length that a client only announces takes nothing from the
//! others. Never blocks: a waiting request would keep the memory that others wait for.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Bytes, BytesMut};

use crate::metrics::{Limit, Metrics};

/// Data below this length is copied together: a frame of its own costs more than it holds, and may
/// keep alive the whole buffer that it was read into.
const SMALL: usize = 4 << 10;
/// The block that small data is copied into.
const BLOCK: usize = 16 << 10;

/// The budget.
pub(crate) struct BodyMemory {
    free: AtomicUsize,
    pub metrics: Arc<Metrics>,
}

impl BodyMemory {
    pub(crate) fn new(bytes: usize, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            free: AtomicUsize::new(bytes),
            metrics,
        })
    }

    /// A share that holds nothing yet.
    pub(crate) fn share(self: &Arc<Self>) -> MemoryShare {
        MemoryShare {
            memory: Arc::clone(self),
            bytes: 0,
        }
    }
}

/// One holder's share of the budget.
#[must_use = "it is given back when this is dropped"]
pub(crate) struct MemoryShare {
    memory: Arc<BodyMemory>,
    bytes: usize,
}

impl MemoryShare {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes `bytes` more; `false`: there is no room, which is counted.
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

impl Drop for MemoryShare {
    fn drop(&mut self) {
        self.give(self.bytes);
    }
}

/// There is no room for more.
#[derive(Debug)]
pub(crate) struct NoRoom;

/// The pieces of a body that are held, in order.
pub(crate) struct BufferedBody {
    /// Each with what it was charged.
    pieces: VecDeque<(Bytes, usize)>,
    /// Small data that came last, and what the block was charged.
    block: BytesMut,
    /// Bytes of data.
    length: u64,
    /// `None`: this holds nothing.
    share: Option<MemoryShare>,
}

impl BufferedBody {
    pub(crate) fn new(share: Option<MemoryShare>) -> Self {
        Self {
            pieces: VecDeque::new(),
            block: BytesMut::new(),
            length: 0,
            share,
        }
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    fn charge(&mut self, bytes: usize) -> Result<(), NoRoom> {
        let charged = self.share.as_mut().is_some_and(|share| share.grow(bytes));
        if charged { Ok(()) } else { Err(NoRoom) }
    }

    /// Takes data in, or drops it if there is no room.
    pub(crate) fn push(&mut self, data: Bytes) -> Result<(), NoRoom> {
        let length = data.len();
        let first = self.pieces.is_empty() && self.block.is_empty();
        if first || length >= SMALL {
            self.charge(length)?;
            self.seal();
            self.length += length as u64;
            self.pieces.push_back((data, length));
            return Ok(());
        }
        if self.block.capacity() - self.block.len() < length {
            self.charge(BLOCK)?;
            self.seal();
            self.block = BytesMut::with_capacity(BLOCK);
        }
        self.length += length as u64;
        self.block.extend_from_slice(&data);
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
        self.pieces.push_back((data, charged));
    }

    /// The next piece, no longer charged. To be used on what is sealed.
    pub(crate) fn pop(&mut self) -> Option<Bytes> {
        let (data, charged) = self.pieces.pop_front()?;
        if let Some(share) = &mut self.share {
            share.give(charged);
        }
        Some(data)
    }

    /// The pieces. To be used on what is sealed.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &Bytes> {
        self.pieces.iter().map(|(data, _)| data)
    }

    /// All data in one piece. To be used on what is sealed.
    pub(crate) fn joined(&self) -> Result<WholeBody, NoRoom> {
        let mut share = self.share.as_ref().map(|share| share.memory.share());
        if self.pieces.len() <= 1 {
            let data = self.pieces().next().cloned().unwrap_or_default();
            return Ok(WholeBody { data, _share: None });
        }
        let length = usize::try_from(self.length).map_err(|_| NoRoom)?;
        if !share.as_mut().is_some_and(|share| share.grow(length)) {
            return Err(NoRoom);
        }
        let mut data = BytesMut::with_capacity(length);
        for piece in self.pieces() {
            data.extend_from_slice(piece);
        }
        let data = data.freeze();
        Ok(WholeBody {
            data,
            _share: share,
        })
    }
}

/// A body in one piece. Where that is a copy, it is charged as long as this lives.
#[derive(Default)]
pub(crate) struct WholeBody {
    pub data: Bytes,
    _share: Option<MemoryShare>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(bytes: usize) -> Arc<BodyMemory> {
        BodyMemory::new(bytes, Arc::new(Metrics::new(&[])))
    }

    fn free(memory: &BodyMemory) -> usize {
        memory.free.load(Ordering::Relaxed)
    }

    fn data(length: usize) -> Bytes {
        vec![b'x'; length].into()
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
        let mut pieces = BufferedBody::new(Some(memory.share()));
        for _ in 0..100_000 {
            pieces.push(data(1)).expect("room");
        }
        pieces.seal();
        assert!(pieces.pieces.len() < 10, "{} pieces", pieces.pieces.len());
        assert_eq!(pieces.pieces().map(Bytes::len).sum::<usize>(), 100_000);
        assert!((1 << 20) - free(&memory) < 100_000 + 2 * BLOCK);
        while pieces.pop().is_some() {}
        assert_eq!(free(&memory), 1 << 20);
    }

    #[test]
    fn pieces_keep_their_order() {
        let memory = memory(1 << 20);
        let mut pieces = BufferedBody::new(Some(memory.share()));
        let mut all = Vec::new();
        for (at, length) in [10, 20, 5000, 30, 40, 4096, 1, 16_000, 900, 900]
            .into_iter()
            .enumerate()
        {
            let piece = vec![b'a' + u8::try_from(at).expect("few"); length];
            all.extend_from_slice(&piece);
            pieces.push(piece.into()).expect("room");
        }
        pieces.seal();
        assert_eq!(pieces.length(), all.len() as u64);
        let mut popped = Vec::new();
        while let Some(data) = pieces.pop() {
            popped.extend_from_slice(&data);
        }
        assert_eq!(popped, all);
    }

    #[test]
    fn a_copy_in_one_piece_is_charged() {
        let memory = memory(250);
        let mut pieces = BufferedBody::new(Some(memory.share()));
        for _ in 0..2 {
            pieces.pieces.push_back((data(50), 50));
            pieces.length += 50;
            pieces.charge(50).expect("room");
        }
        let mut other = memory.share();
        assert!(other.grow(51));
        assert!(pieces.joined().is_err(), "no room for 100 more");
        other.give(1);
        let joined = pieces.joined().expect("room");
        assert_eq!(joined.data, data(100));
        assert_eq!(free(&memory), 0);
        drop(joined);
        assert_eq!(free(&memory), 100);
        drop(pieces);
        assert_eq!(free(&memory), 200);
    }

    #[test]
    fn what_finds_no_room_is_told() {
        let memory = memory(100);
        let mut pieces = BufferedBody::new(Some(memory.share()));
        pieces.push(data(90)).expect("room");
        assert!(pieces.push(data(20)).is_err());
        drop(pieces);
        assert_eq!(free(&memory), 100);
    }
}
