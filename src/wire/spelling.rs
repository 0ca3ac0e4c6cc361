//! How the names of a message's fields were spelled.
//!
//! Names mean the same in any case (RFC 9110, 5.1), but there are services and clients that look for one
//! spelling. So a name goes on as it came, and a name without a spelling in `Title-Case`, as people write it.

/// The spellings of one message. A name that came twice has its first one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spelling {
    /// Only those that `Title-Case` does not give back.
    others: Vec<Box<[u8]>>,
}

impl Spelling {
    /// Remembers how a name came.
    pub fn note(&mut self, name: &[u8]) {
        let title = is_title(name);
        if !title && self.find(name).is_none() {
            self.others.push(name.into());
        }
    }

    /// Writes a name, given in lower case.
    pub fn write(&self, name: &str, out: &mut Vec<u8>) {
        match self.find(name.as_bytes()) {
            Some(spelled) => out.extend_from_slice(spelled),
            None => title(name, out),
        }
    }

    fn find(&self, name: &[u8]) -> Option<&[u8]> {
        let mut others = self.others.iter().map(|other| &**other);
        others.find(|other| other.eq_ignore_ascii_case(name))
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
    fn names_without_a_spelling_are_written_as_people_do() {
        let spelling = Spelling::default();
        assert_eq!(written(&spelling, "x-fencing-token"), "X-Fencing-Token");
        assert_eq!(written(&spelling, "te"), "Te");
    }
}
