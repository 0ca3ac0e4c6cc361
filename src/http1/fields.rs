//! [`Fields`]: the fields of a message as they came, without those that were removed and with those
//! that were added.
//!
//! A message is edited as the bytes that came and the places of its lines in them. So a field goes on
//! in the spelling and order in which it came.

use std::ops::Range;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::head::{HeadLimits, MessageError, field_line, is_in_value};
use super::names::{CONNECTION, title};

/// Room for what is usually added to a head.
const ADDED_LINES: usize = 8;
const ADDED_BYTES: usize = 384;

/// See the module's documentation. Names are compared without case, and given in lower case.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    /// The head that came, and behind it the lines that were added.
    text: Vec<u8>,
    lines: Vec<Line>,
    /// A bit for each [`mark`] of a name that may be here.
    names: u64,
}

/// The place of a line in [`Fields::text`].
#[derive(Clone, Debug)]
struct Line {
    name: Range<usize>,
    value: Range<usize>,
    /// Of its name.
    mark: u8,
}

impl Fields {
    /// No fields yet of this head, which has this number of lines.
    pub(super) fn of(head: &[u8], lines: usize) -> Self {
        let mut text = Vec::with_capacity(head.len() + ADDED_BYTES);
        text.extend_from_slice(head);
        Self {
            text,
            lines: Vec::with_capacity(lines + ADDED_LINES),
            names: 0,
        }
    }

    /// Reads the lines of this head from `begin` up to its empty line, which is its end, strictly.
    pub(super) fn read(
        head: &[u8],
        mut begin: usize,
        lines: usize,
        limits: &HeadLimits,
    ) -> Result<Self, MessageError> {
        let mut fields = Self::of(head, lines);
        while head[begin..] != b"\r\n"[..] {
            if fields.lines.len() == limits.fields {
                return Err(MessageError::Fields(limits.fields));
            }
            let (name, value, next) = field_line(head, begin)?;
            fields.push(name, value);
            begin = next;
        }
        Ok(fields)
    }

    /// Adds the line with these parts of the text.
    pub(super) fn push(&mut self, name: Range<usize>, value: Range<usize>) {
        let mark = mark(&self.text[name.clone()]);
        self.names |= 1 << mark;
        self.lines.push(Line { name, value, mark });
    }

    fn name(&self, line: &Line) -> &[u8] {
        &self.text[line.name.clone()]
    }

    fn value(&self, line: &Line) -> &[u8] {
        &self.text[line.value.clone()]
    }

    fn with_name<'a>(&'a self, name: &'a str) -> impl DoubleEndedIterator<Item = &'a Line> {
        let mark = mark(name.as_bytes());
        let some = self.names >> mark & 1 != 0;
        let lines = if some { &self.lines[..] } else { &[] };
        let is = |line: &Line| is_name(self.name(line), name);
        lines
            .iter()
            .filter(move |line| line.mark == mark && is(line))
    }

    /// The value of the first line of a name.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let line = self.with_name(name).next();
        line.map(|line| self.value(line))
    }

    /// The values of all lines of a name.
    pub fn get_all<'a>(&'a self, name: &'a str) -> impl DoubleEndedIterator<Item = &'a [u8]> {
        self.with_name(name).map(|line| self.value(line))
    }

    pub fn contains(&self, name: &str) -> bool {
        self.with_name(name).next().is_some()
    }

    /// Each line: its name as it is spelled, and its value.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let lines = self.lines.iter();
        lines.map(|line| (self.name(line), self.value(line)))
    }

    /// Adds a line behind all others. Its name is written in `Title-Case`, as people do.
    pub fn append(&mut self, name: &str, value: impl AsRef<[u8]>) {
        let begin = self.text.len();
        title(name, &mut self.text);
        self.append_value(begin, value.as_ref());
    }

    /// The same with the name as it is.
    pub fn append_as(&mut self, name: &[u8], value: &[u8]) {
        let begin = self.text.len();
        self.text.extend_from_slice(name);
        self.append_value(begin, value);
    }

    fn append_value(&mut self, begin: usize, value: &[u8]) {
        let name = begin..self.text.len();
        self.text.extend_from_slice(b": ");
        let begin = self.text.len();
        // A control byte becomes a blank, so a value never adds a line.
        let plain = |byte: &u8| if is_in_value(*byte) { *byte } else { b' ' };
        self.text.extend(value.iter().map(plain));
        self.push(name, begin..self.text.len());
        self.text.extend_from_slice(b"\r\n");
    }

    /// Replaces all lines of a name by one, in the place of the first.
    pub fn insert(&mut self, name: &str, value: impl AsRef<[u8]>) {
        let is = |line: &Line| is_name(self.name(line), name);
        let first = self.lines.iter().position(is);
        self.remove(name);
        self.append(name, value);
        if let Some(first) = first {
            self.lines[first..].rotate_right(1);
        }
    }

    /// Removes all lines of a name.
    pub fn remove(&mut self, name: &str) {
        if self.names >> mark(name.as_bytes()) & 1 != 0 {
            self.remove_where(|known| is_name(known, name));
        }
    }

    /// Removes the lines whose name is unwanted.
    pub fn remove_where(&mut self, unwanted: impl Fn(&[u8]) -> bool) {
        let text = &self.text;
        self.lines
            .retain(|line| !unwanted(&text[line.name.clone()]));
    }

    /// Joins the members of a list to one line, with one more behind them.
    pub fn join(&mut self, name: &str, member: &str) {
        let lines = self.get_all(name).filter(|line| !line.is_empty());
        let lines: Vec<&[u8]> = lines.collect();
        if lines.is_empty() {
            self.remove(name);
            return self.append(name, member);
        }
        let line = [&lines.join(&b", "[..]), &b", "[..], member.as_bytes()].concat();
        self.insert(name, line);
    }

    /// For a library that writes them. A line that it cannot hold is left out.
    pub fn to_map(&self) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in self.iter() {
            let (name, value) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value));
            if let (Ok(name), Ok(value)) = (name, value) {
                let _ = map.try_append(name, value);
            }
        }
        map
    }

    /// Writes the lines.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        for (name, value) in self.iter() {
            write(name, value, out);
        }
    }
}

/// The fields of a header map, in its order.
impl From<&HeaderMap> for Fields {
    fn from(map: &HeaderMap) -> Self {
        let mut fields = Self::default();
        for (name, value) in map {
            fields.append_as(name.as_str().as_bytes(), value.as_bytes());
        }
        fields
    }
}

fn is_name(known: &[u8], name: &str) -> bool {
    known.eq_ignore_ascii_case(name.as_bytes())
}

/// Writes a line.
fn write(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    for part in [name, b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

/// The same with the name in `Title-Case`.
pub(crate) fn title_line(name: &str, value: &[u8], out: &mut Vec<u8>) {
    title(name, out);
    write(b"", value, out);
}

/// A number below 64 that differs for most names, so that an absent one is usually known without
/// reading the lines, and no other line is compared with one that is there.
fn mark(name: &[u8]) -> u8 {
    let [first, .., last] = name else { return 0 };
    let mixed = name.len() * 7 + usize::from(first | 0x20) * 3 + usize::from(last | 0x20);
    u8::try_from(mixed & 63).unwrap_or_default()
}

/// The members of a list field, over all its lines.
pub fn members<'a>(fields: &'a Fields, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
    let lines = fields.get_all(name);
    lines
        .flat_map(|line| line.split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .filter(|member| !member.is_empty())
}

/// Says if `Connection` has this option.
pub fn connection_has(fields: &Fields, option: &str) -> bool {
    members(fields, CONNECTION).any(|known| known.eq_ignore_ascii_case(option.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Fields {
        /// The value of the first line of a name as text.
        pub(crate) fn get_str(&self, name: &str) -> Option<&str> {
            std::str::from_utf8(self.get(name)?).ok()
        }
    }

    fn of(head: &'static str) -> Fields {
        let limits = HeadLimits {
            bytes: 1000,
            fields: 10,
            target: 0,
        };
        Fields::read(head.as_bytes(), 0, 4, &limits).expect("well-formed")
    }

    fn written(fields: &Fields) -> String {
        let mut out = Vec::new();
        fields.write_to(&mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn lines_go_on_as_they_came() {
        let head = "host: a\r\nX-A: 1\r\nx-a: 2\r\nSOAPAction:\r\nB:  3 \r\n\r\n";
        let mut fields = of(head);
        assert_eq!(
            written(&fields),
            "host: a\r\nX-A: 1\r\nx-a: 2\r\nSOAPAction: \r\nB: 3\r\n"
        );
        assert_eq!(fields.get("x-a"), Some(&b"1"[..]));
        assert_eq!(fields.get_all("x-a").collect::<Vec<_>>(), [b"1", b"2"]);
        assert!(fields.contains("soapaction") && !fields.contains("soapactio"));
        fields.remove("x-a");
        fields.append("x-fencing-token", "42");
        fields.insert("b", "4");
        fields.append_as(b"te", b"trailers");
        assert_eq!(
            written(&fields),
            "host: a\r\nSOAPAction: \r\nB: 4\r\nX-Fencing-Token: 42\r\nte: trailers\r\n"
        );
        assert_eq!(fields.get_str("x-fencing-token"), Some("42"));
    }

    #[test]
    fn members_are_joined_to_one_line() {
        let mut fields = of("Via: 1.1 a\r\nX: y\r\nvia: 1.1 b\r\n\r\n");
        fields.join("via", "1.1 c");
        assert_eq!(written(&fields), "Via: 1.1 a, 1.1 b, 1.1 c\r\nX: y\r\n");
        let mut fields = Fields::default();
        fields.join("via", "1.1 c");
        assert_eq!(written(&fields), "Via: 1.1 c\r\n");
    }
}
