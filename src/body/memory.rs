//! The memory that bodies are held in: `limits.body_memory`, over all requests.
//!
//! Data is charged as it arrives: a length that a client only announces takes nothing from the
//! others. Never blocks: a waiting request would keep the memory that others wait for.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Bytes, BytesMut};

use super::UploadError;
use crate::metrics::{Limit, Metrics};

/// Data below this length is copied together: a frame of its own costs more than it holds, and may
/// keep alive the whole buffer that it was read into.
const SMALL: usize = 4 << 10;
/// The most that is kept together. It is charged until all of it is taken, and moves as one.
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

/// The pieces of a body that are held, in order.
pub(crate) struct BufferedBody {
    pieces: VecDeque<Bytes>,
    /// Charged with the length of the data.
    share: MemoryShare,
}

impl BufferedBody {
    pub(crate) fn new(share: MemoryShare) -> Self {
        Self {
            pieces: VecDeque::new(),
            share,
        }
    }

    /// Bytes of data.
    pub(crate) fn length(&self) -> u64 {
        self.share.bytes as u64
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Takes data in.
    ///
    /// # Errors
    /// There is no room for it.
    pub(crate) fn push(&mut self, data: Bytes) -> Result<(), UploadError> {
        if data.is_empty() {
            return Ok(());
        }
        if !self.share.grow(data.len()) {
            return Err(UploadError::NoRoom);
        }
        match self.pieces.back_mut() {
            Some(last) if data.len() < SMALL && last.len() + data.len() <= BLOCK => {
                // Without a copy, unless it shares its buffer with other data.
                let block = std::mem::take(last).try_into_mut();
                let mut block = block.unwrap_or_else(|shared| BytesMut::from(&*shared));
                block.extend_from_slice(&data);
                *last = block.freeze();
            }
            _ => self.pieces.push_back(data),
        }
        Ok(())
    }

    /// The next piece, no longer charged.
    pub(crate) fn pop(&mut self) -> Option<Bytes> {
        let data = self.pieces.pop_front()?;
        self.share.give(data.len());
        Some(data)
    }

    pub(crate) fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().map(|data| &**data)
    }

    /// All data in one piece. A copy is not charged: each thread makes one at a time.
    pub(crate) fn joined(&self) -> Cow<'_, [u8]> {
        if self.pieces.len() > 1 {
            return Cow::Owned(self.pieces().collect::<Vec<_>>().concat());
        }
        Cow::Borrowed(self.pieces().next().unwrap_or_default())
    }
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
        let mut pieces = BufferedBody::new(memory.share());
        for _ in 0..100_000 {
            pieces.push(data(1)).expect("room");
        }
        assert!(pieces.pieces.len() < 10, "{} pieces", pieces.pieces.len());
        assert!(pieces.pieces.iter().all(|piece| piece.len() <= BLOCK));
        assert_eq!(pieces.joined().len(), 100_000);
        assert_eq!((1 << 20) - free(&memory), 100_000);
        while pieces.pop().is_some() {}
        assert_eq!(free(&memory), 1 << 20);
    }

    #[test]
    fn pieces_keep_their_order() {
        let memory = memory(1 << 20);
        let mut pieces = BufferedBody::new(memory.share());
        let mut all = Vec::new();
        for (at, length) in [10, 20, 5000, 30, 40, 4096, 1, 16_000, 900, 900]
            .into_iter()
            .enumerate()
        {
            let piece = vec![b'a' + u8::try_from(at).expect("few"); length];
            all.extend_from_slice(&piece);
            pieces.push(piece.into()).expect("room");
        }
        assert_eq!(pieces.length(), all.len() as u64);
        assert_eq!(*pieces.joined(), *all);
        let mut popped = Vec::new();
        while let Some(data) = pieces.pop() {
            popped.extend_from_slice(&data);
        }
        assert_eq!(popped, all);
    }

    #[test]
    fn what_finds_no_room_is_told() {
        let memory = memory(100);
        let mut pieces = BufferedBody::new(memory.share());
        pieces.push(data(90)).expect("room");
        assert!(pieces.push(data(20)).is_err());
        drop(pieces);
        assert_eq!(free(&memory), 100);
    }
}
