//! [`TlsRecords`]: where the TLS records end that an upstream sends (RFC 8446, 5.1).
//!
//! The library takes the beginning of a record and shows nothing of it until the rest has come. An
//! idle connection in the middle of a record is about to deliver bytes that answer no request.

/// The type, the version and the length of a record.
const HEAD: usize = 5;

/// The position in a stream of records.
#[derive(Debug, Default)]
pub(super) struct TlsRecords {
    head: [u8; HEAD],
    /// Bytes of `head` that have come.
    in_head: usize,
    /// Bytes of the record's content that have not.
    left: usize,
}

impl TlsRecords {
    /// These bytes have come next.
    pub(super) fn received(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let wanted = if self.left > 0 {
                self.left
            } else {
                HEAD - self.in_head
            };
            let (now, rest) = bytes.split_at(wanted.min(bytes.len()));
            bytes = rest;
            if self.left > 0 {
                self.left -= now.len();
                continue;
            }
            self.head[self.in_head..][..now.len()].copy_from_slice(now);
            self.in_head += now.len();
            if self.in_head == HEAD {
                self.in_head = 0;
                self.left = u16::from_be_bytes([self.head[3], self.head[4]]).into();
            }
        }
    }

    /// Whether a record has begun and not ended.
    pub(super) const fn is_inside(&self) -> bool {
        self.in_head > 0 || self.left > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_ends_with_its_last_byte_however_it_comes() {
        let stream = [
            &[23, 3, 3, 0, 3, 1, 2, 3][..],
            &[22, 3, 3, 0, 0],
            &[23, 3, 3, 1, 0],
        ];
        let stream = [stream.concat(), vec![0; 256]].concat();
        let ends = [0, 8, 13, 18 + 256];
        for size in [1, 2, 3, 7, 300] {
            let mut records = TlsRecords::default();
            let mut passed = 0;
            for piece in stream.chunks(size) {
                records.received(piece);
                passed += piece.len();
                assert_eq!(records.is_inside(), !ends.contains(&passed), "{passed}");
            }
        }
    }
}
