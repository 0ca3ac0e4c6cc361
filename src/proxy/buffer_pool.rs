//! Buffers of heads and header maps that a worker keeps from one request for the next.
//!
//! Both are of a size that the allocator gives out slowly: beyond what a thread caches (glibc: 1
//! KiB). Each request needs several of them.

use std::cell::RefCell;

use http::HeaderMap;

/// The number of each kind that a worker keeps.
const MOST_KEPT: usize = 64;
/// A buffer that has grown beyond this is not kept.
const MOST_BYTES: usize = 4 << 10;
/// A map with room for more fields is not kept.
const MOST_FIELDS: usize = 24;
/// The room of a new buffer.
const NEW_BYTES: usize = 2 << 10;

thread_local! {
    static BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    static MAPS: RefCell<Vec<HeaderMap>> = const { RefCell::new(Vec::new()) };
}

/// An empty buffer.
pub(crate) fn buffer() -> Vec<u8> {
    let spare = BUFFERS.with_borrow_mut(Vec::pop);
    spare.unwrap_or_else(|| Vec::with_capacity(NEW_BYTES))
}

/// Keeps a buffer that is used no more.
pub(crate) fn keep_buffer(mut buffer: Vec<u8>) {
    if (1..=MOST_BYTES).contains(&buffer.capacity()) {
        buffer.clear();
        BUFFERS.with_borrow_mut(|kept| {
            if kept.len() < MOST_KEPT {
                kept.push(buffer);
            }
        });
    }
}

/// An empty map; how much room it has is not said.
pub(crate) fn map() -> HeaderMap {
    MAPS.with_borrow_mut(Vec::pop).unwrap_or_default()
}

/// Keeps a map that is used no more.
pub(crate) fn keep_map(mut map: HeaderMap) {
    if (1..=MOST_FIELDS).contains(&map.capacity()) {
        map.clear();
        MAPS.with_borrow_mut(|kept| {
            if kept.len() < MOST_KEPT {
                kept.push(map);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::{COOKIE, HOST};

    use super::*;

    /// Of whatever test has run on this thread before.
    fn forget() {
        BUFFERS.with_borrow_mut(Vec::clear);
        MAPS.with_borrow_mut(Vec::clear);
    }

    #[test]
    fn what_is_kept_comes_back_empty() {
        forget();
        let mut map = map();
        for value in ["a", "b"] {
            map.append(COOKIE, HeaderValue::from_static(value));
        }
        keep_map(map);
        let again = super::map();
        assert!(again.capacity() > 0, "the same one");
        assert_eq!((again.len(), again.get(COOKIE)), (0, None));
        assert_eq!(super::map().capacity(), 0, "no other one");
        keep_buffer(b"secret".to_vec());
        let again = buffer();
        assert_eq!((again.len(), again.capacity()), (0, 6));
        assert_eq!(buffer().capacity(), NEW_BYTES);
    }

    #[test]
    fn neither_large_ones_nor_many_are_kept() {
        forget();
        keep_buffer(Vec::with_capacity(MOST_BYTES + 1));
        keep_map(HeaderMap::with_capacity(MOST_FIELDS + 1));
        assert_eq!(buffer().capacity(), NEW_BYTES);
        assert_eq!(map().capacity(), 0);
        for _ in 0..=MOST_KEPT {
            keep_buffer(vec![1]);
            let mut map = HeaderMap::new();
            map.insert(HOST, HeaderValue::from_static("a"));
            keep_map(map);
        }
        assert_eq!(BUFFERS.with_borrow(Vec::len), MOST_KEPT);
        assert_eq!(MAPS.with_borrow(Vec::len), MOST_KEPT);
    }
}
