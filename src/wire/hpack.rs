//! HPACK (RFC 7541), as far as needed to know the kinds of fields in a header block. Fields are
//! counted and measured, and the first bytes of names are checked. Values are not kept.
//!
//! The dynamic table has to be followed from a connection's first block on, since later blocks
//! refer to it. It holds sizes and kinds of fields in place of the fields.

use std::collections::VecDeque;

use super::huffman::Huffman;

/// The size of a table entry besides its text (RFC 7541, 4.1).
const OVERHEAD: usize = 32;
/// The size of the dynamic table that a peer may use by default (RFC 9113, 6.5.2).
const TABLE: usize = 4096;
/// A longer integer is no valid index or length.
const MOST_SHIFT: u32 = 28;

/// The block is not HPACK, or refers to a missing entry. Later blocks cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedHpack;

/// The properties of the fields of a block so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    pub count: usize,
    /// As `SETTINGS_MAX_HEADER_LIST_SIZE` counts (RFC 9113, 6.5.2).
    pub bytes: usize,
    /// A name begins with a colon.
    pub pseudo: bool,
    /// `:status` is 1xx.
    pub interim: bool,
}

/// The kind of a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Name {
    #[default]
    Field,
    Pseudo,
    Status,
}

/// One field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct HpackEntry {
    name: Name,
    name_bytes: usize,
    value_bytes: usize,
    /// The first sign of the value.
    first: u8,
}

/// A representation (RFC 7541, 6) whose integer is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HpackFieldKind {
    Indexed,
    Literal { indexed: bool },
    TableSize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HpackPart {
    Name,
    Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HpackState {
    /// Between fields.
    Between,
    Integer(HpackFieldKind, u64, u32),
    /// Before the length of a string.
    String(HpackPart),
    Length(HpackPart, bool, u64, u32),
    /// In a string, with this many bytes left.
    Text(HpackPart, bool, u64),
}

/// Follows the header blocks of one direction of a connection.
#[derive(Clone, Debug)]
pub struct Hpack {
    table: VecDeque<HpackEntry>,
    size: usize,
    most: usize,
    state: HpackState,
    huffman: Huffman,
    /// The field that is being read, whether it goes into the table, and the first signs of its
    /// name.
    entry: HpackEntry,
    indexed: bool,
    start: [u8; STATUS.len()],
    fields: Fields,
}

const STATUS: &[u8] = b":status";

impl Default for Hpack {
    fn default() -> Self {
        Self {
            table: VecDeque::new(),
            size: 0,
            most: TABLE,
            state: HpackState::Between,
            huffman: Huffman::default(),
            entry: HpackEntry::default(),
            indexed: false,
            start: [0; STATUS.len()],
            fields: Fields::default(),
        }
    }
}

impl Hpack {
    /// Takes a piece of a block.
    pub fn read(&mut self, piece: &[u8]) -> Result<(), MalformedHpack> {
        piece.iter().try_for_each(|byte| self.step(*byte))
    }

    /// Ends the block. Returns the properties of its fields.
    pub fn end(&mut self) -> Result<Fields, MalformedHpack> {
        let fields = std::mem::take(&mut self.fields);
        match self.state {
            HpackState::Between => Ok(fields),
            _ => Err(MalformedHpack),
        }
    }

    fn step(&mut self, byte: u8) -> Result<(), MalformedHpack> {
        match self.state {
            HpackState::Between => {
                let (kind, bits) = match byte {
                    0x80.. => (HpackFieldKind::Indexed, 7),
                    0x40.. => (HpackFieldKind::Literal { indexed: true }, 6),
                    0x20.. => (HpackFieldKind::TableSize, 5),
                    _ => (HpackFieldKind::Literal { indexed: false }, 4),
                };
                match prefix(byte, bits) {
                    Ok(value) => self.represented(kind, value),
                    Err(value) => {
                        self.state = HpackState::Integer(kind, value, 0);
                        Ok(())
                    }
                }
            }
            HpackState::Integer(kind, value, shift) => match integer(value, byte, shift)? {
                Ok(value) => self.represented(kind, value),
                Err(value) => {
                    self.state = HpackState::Integer(kind, value, shift + 7);
                    Ok(())
                }
            },
            HpackState::String(part) => {
                let coded = byte & 0x80 != 0;
                match prefix(byte, 7) {
                    Ok(length) => self.begin(part, coded, length),
                    Err(length) => {
                        self.state = HpackState::Length(part, coded, length, 0);
                        Ok(())
                    }
                }
            }
            HpackState::Length(part, coded, length, shift) => match integer(length, byte, shift)? {
                Ok(length) => self.begin(part, coded, length),
                Err(length) => {
                    self.state = HpackState::Length(part, coded, length, shift + 7);
                    Ok(())
                }
            },
            HpackState::Text(part, coded, left) => {
                if coded {
                    let mut huffman = self.huffman;
                    let read = huffman.read(byte, |sign| self.sign(part, sign));
                    read.map_err(|_| MalformedHpack)?;
                    self.huffman = huffman;
                } else {
                    self.sign(part, byte);
                }
                self.text(part, coded, left - 1)
            }
        }
    }

    /// The integer of a representation is known.
    fn represented(&mut self, kind: HpackFieldKind, value: u64) -> Result<(), MalformedHpack> {
        let number = usize::try_from(value).map_err(|_| MalformedHpack)?;
        self.state = HpackState::Between;
        match kind {
            HpackFieldKind::Indexed => {
                self.entry = self.at(number)?;
                self.count();
            }
            HpackFieldKind::Literal { indexed } => {
                self.indexed = indexed;
                self.start = [0; STATUS.len()];
                self.entry = match number {
                    0 => HpackEntry::default(),
                    _ => HpackEntry {
                        value_bytes: 0,
                        first: 0,
                        ..self.at(number)?
                    },
                };
                let part = if number == 0 {
                    HpackPart::Name
                } else {
                    HpackPart::Value
                };
                self.state = HpackState::String(part);
            }
            HpackFieldKind::TableSize if number > TABLE => return Err(MalformedHpack),
            HpackFieldKind::TableSize => {
                self.most = number;
                self.evict(0);
            }
        }
        Ok(())
    }

    fn begin(&mut self, part: HpackPart, coded: bool, length: u64) -> Result<(), MalformedHpack> {
        self.huffman = Huffman::default();
        self.text(part, coded, length)
    }

    /// Continues a string with this many bytes left.
    fn text(&mut self, part: HpackPart, coded: bool, left: u64) -> Result<(), MalformedHpack> {
        if left > 0 {
            self.state = HpackState::Text(part, coded, left);
            return Ok(());
        }
        if coded {
            self.huffman.end().map_err(|_| MalformedHpack)?;
        }
        match part {
            HpackPart::Name => {
                self.entry.name = match self.start {
                    _ if self.start[0] != b':' => Name::Field,
                    _ if self.start == *STATUS && self.entry.name_bytes == STATUS.len() => {
                        Name::Status
                    }
                    _ => Name::Pseudo,
                };
                self.state = HpackState::String(HpackPart::Value);
            }
            HpackPart::Value => {
                self.state = HpackState::Between;
                if self.indexed {
                    self.insert();
                }
                self.count();
            }
        }
        Ok(())
    }

    /// One sign of a name or a value.
    fn sign(&mut self, part: HpackPart, sign: u8) {
        match part {
            HpackPart::Name => {
                if let Some(place) = self.start.get_mut(self.entry.name_bytes) {
                    *place = sign;
                }
                self.entry.name_bytes += 1;
            }
            HpackPart::Value => {
                if self.entry.value_bytes == 0 {
                    self.entry.first = sign;
                }
                self.entry.value_bytes += 1;
            }
        }
    }

    /// The field is whole.
    fn count(&mut self) {
        let (fields, entry) = (&mut self.fields, &self.entry);
        fields.count += 1;
        fields.bytes = fields.bytes.saturating_add(entry.size());
        fields.pseudo |= entry.name != Name::Field;
        fields.interim |= entry.name == Name::Status && entry.first == b'1';
    }

    /// RFC 7541, 2.3.3: the static table, and the dynamic one behind it.
    fn at(&self, index: usize) -> Result<HpackEntry, MalformedHpack> {
        let index = index.checked_sub(1).ok_or(MalformedHpack)?;
        if let Some((name, value)) = STATIC.get(index) {
            return Ok(HpackEntry::of(name, value));
        }
        let entry = self.table.get(index - STATIC.len());
        entry.copied().ok_or(MalformedHpack)
    }

    fn insert(&mut self) {
        let size = self.entry.size();
        self.evict(size);
        // An entry larger than the table empties it (RFC 7541, 4.4).
        if size <= self.most {
            self.size += size;
            self.table.push_front(self.entry);
        }
    }

    /// Makes room for this many bytes.
    fn evict(&mut self, room: usize) {
        while self.size + room > self.most
            && let Some(entry) = self.table.pop_back()
        {
            self.size -= entry.size();
        }
    }
}

impl HpackEntry {
    fn of(name: &str, value: &str) -> Self {
        let kind = match name.as_bytes() {
            STATUS => Name::Status,
            [b':', ..] => Name::Pseudo,
            _ => Name::Field,
        };
        Self {
            name: kind,
            name_bytes: name.len(),
            value_bytes: value.len(),
            first: value.bytes().next().unwrap_or(0),
        }
    }

    const fn size(&self) -> usize {
        self.name_bytes + self.value_bytes + OVERHEAD
    }
}

/// An integer in the low bits of a byte (RFC 7541, 5.1). `Err`: it continues in the next byte.
fn prefix(byte: u8, bits: u32) -> Result<u64, u64> {
    let mask = (1_u64 << bits) - 1;
    let value = u64::from(byte) & mask;
    if value < mask { Ok(value) } else { Err(value) }
}

/// The next byte of a longer integer. The inner `Err`: it continues.
fn integer(value: u64, byte: u8, shift: u32) -> Result<Result<u64, u64>, MalformedHpack> {
    if shift > MOST_SHIFT {
        return Err(MalformedHpack);
    }
    let value = value + (u64::from(byte & 0x7f) << shift);
    Ok(if byte & 0x80 == 0 {
        Ok(value)
    } else {
        Err(value)
    })
}

/// RFC 7541, appendix A.
#[rustfmt::skip]
const STATIC: [(&str, &str); 61] = [
    (":authority", ""), (":method", "GET"), (":method", "POST"), (":path", "/"),
    (":path", "/index.html"), (":scheme", "http"), (":scheme", "https"), (":status", "200"),
    (":status", "204"), (":status", "206"), (":status", "304"), (":status", "400"),
    (":status", "404"), (":status", "500"), ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"), ("accept-language", ""), ("accept-ranges", ""),
    ("accept", ""), ("access-control-allow-origin", ""), ("age", ""), ("allow", ""),
    ("authorization", ""), ("cache-control", ""), ("content-disposition", ""),
    ("content-encoding", ""), ("content-language", ""), ("content-length", ""),
    ("content-location", ""), ("content-range", ""), ("content-type", ""), ("cookie", ""),
    ("date", ""), ("etag", ""), ("expect", ""), ("expires", ""), ("from", ""), ("host", ""),
    ("if-match", ""), ("if-modified-since", ""), ("if-none-match", ""), ("if-range", ""),
    ("if-unmodified-since", ""), ("last-modified", ""), ("link", ""), ("location", ""),
    ("max-forwards", ""), ("proxy-authenticate", ""), ("proxy-authorization", ""), ("range", ""),
    ("referer", ""), ("refresh", ""), ("retry-after", ""), ("server", ""), ("set-cookie", ""),
    ("strict-transport-security", ""), ("transfer-encoding", ""), ("user-agent", ""), ("vary", ""),
    ("via", ""), ("www-authenticate", ""),
];

#[cfg(test)]
mod tests;
