//! The spelling of field names in a message.
//!
//! Names mean the same in any case (RFC 9110, 5.1), but there are services and clients that look
//! for one spelling. So a name goes on as it came, and a name without a spelling in `Title-Case`,
//! as people write it.

/// Room for the names of a usual head.
const ROOM: usize = 160;
const NAMES: usize = 16;

/// The spellings of one message, line by line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spelling {
    /// Only those that `Title-Case` does not give back, one behind the other: many clients write
    /// all names in lower case, and one allocation has to do for all of them.
    text: Vec<u8>,
    others: Vec<Other>,
}

/// A spelling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Other {
    /// Its end in the text. It begins where the one before ends.
    end: usize,
    /// Of which line of that name, counted from 0.
    nth: usize,
}

impl Spelling {
    /// Remembers how a name came that has one line.
    pub fn note(&mut self, name: &[u8]) {
        self.note_line(name, 0);
    }

    /// Remembers how a name came on the line of that name with this number, counted from 0.
    pub fn note_line(&mut self, name: &[u8], nth: usize) {
        if is_title(name) || self.find(name, nth).is_some() {
            return;
        }
        if self.others.is_empty() {
            self.text.reserve(ROOM);
            self.others.reserve(NAMES);
        }
        self.text.extend_from_slice(name);
        let end = self.text.len();
        self.others.push(Other { end, nth });
    }

    /// True if `Title-Case` gives all names back.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.others.is_empty()
    }

    /// Writes a name, given in lower case.
    pub fn write(&self, name: &str, out: &mut Vec<u8>) {
        self.write_line(name, 0, out);
    }

    /// Writes a name, given in lower case, for its line with this number, counted from 0.
    pub fn write_line(&self, name: &str, nth: usize, out: &mut Vec<u8>) {
        match self.find(name.as_bytes(), nth) {
            Some(spelled) => out.extend_from_slice(spelled),
            None => title(name, out),
        }
    }

    fn find(&self, name: &[u8], nth: usize) -> Option<&[u8]> {
        let mut start = 0;
        for other in &self.others {
            let spelled = &self.text[start..other.end];
            if other.nth == nth && spelled.eq_ignore_ascii_case(name) {
                return Some(spelled);
            }
            start = other.end;
        }
        None
    }
}

fn is_title(name: &[u8]) -> bool {
    let mut first = true;
    name.iter().all(|byte| {
        let as_is = if first {
            !byte.is_ascii_lowercase()
        } else {
            !byte.is_ascii_uppercase()
        };
        first = *byte == b'-';
        as_is
    })
}

fn title(name: &str, out: &mut Vec<u8>) {
    let mut first = true;
    out.extend(name.bytes().map(|byte| {
        let written = if first {
            byte.to_ascii_uppercase()
        } else {
            byte
        };
        first = byte == b'-';
        written
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(spelling: &Spelling, name: &str) -> String {
        let mut out = Vec::new();
        spelling.write(name, &mut out);
        String::from_utf8(out).expect("ASCII")
    }

    #[test]
    fn names_go_on_as_they_came() {
        let mut spelling = Spelling::default();
        for name in [
            "SOAPAction",
            "x-api-key",
            "Content-Type",
            "ETag",
            "X-2fa-Code",
        ] {
            spelling.note(name.as_bytes());
        }
        assert_eq!(spelling.others.len(), 3);
        assert_eq!(written(&spelling, "soapaction"), "SOAPAction");
        assert_eq!(written(&spelling, "x-api-key"), "x-api-key");
        assert_eq!(written(&spelling, "content-type"), "Content-Type");
        assert_eq!(written(&spelling, "etag"), "ETag");
        assert_eq!(written(&spelling, "x-2fa-code"), "X-2fa-Code");
    }

    #[test]
    fn each_line_of_a_name_has_its_own_spelling() {
        let mut spelling = Spelling::default();
        for (nth, name) in ["X-A", "x-a", "X-A", "X-a"].into_iter().enumerate() {
            spelling.note_line(name.as_bytes(), nth);
        }
        let mut out = Vec::new();
        for nth in 0..5 {
            spelling.write_line("x-a", nth, &mut out);
        }
        assert_eq!(out, b"X-Ax-aX-AX-aX-A");
    }

    #[test]
    fn names_without_a_spelling_are_written_as_people_do() {
        let spelling = Spelling::default();
        assert_eq!(written(&spelling, "x-fencing-token"), "X-Fencing-Token");
        assert_eq!(written(&spelling, "te"), "Te");
    }
}
