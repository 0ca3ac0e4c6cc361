//! Members of a JSON body: what is taken is what every reader finds, whether the first or the last
//! of two members counts, and whether letter case does.
//!
//! The first line of an input names the members (`a.b,c`), the rest is the body.

use fencepost::proxy::jsonkey::members;

use crate::{Seen, Verdict, hold, target};

target!("json", &real);

/// The function under test.
pub type Members = dyn Fn(&[u8], &[&[String]]) -> Result<Vec<Option<String>>, String>;

/// The proxy's own reading.
pub fn real(body: &[u8], wanted: &[&[String]]) -> Result<Vec<Option<String>>, String> {
    members(body, wanted)
}

pub fn check_of(members: &Members, data: &[u8]) -> Verdict {
    let Some(end) = data.iter().position(|b| *b == b'\n') else {
        return Ok(Seen::Refused);
    };
    let Ok(names) = std::str::from_utf8(&data[..end]) else {
        return Ok(Seen::Refused);
    };
    let paths: Vec<Vec<String>> = names
        .split(',')
        .take(4)
        .map(|path| path.split('.').map(str::to_owned).collect())
        .collect();
    // A template has no empty names.
    if paths.iter().flatten().any(String::is_empty) {
        return Ok(Seen::Refused);
    }
    let wanted: Vec<&[String]> = paths.iter().map(Vec::as_slice).collect();
    let body = &data[end + 1..];
    let read = std::str::from_utf8(body)
        .map_err(|_| Unread::NotJson)
        .and_then(Doc::read);
    let found = match members(body, &wanted) {
        Ok(found) => found,
        Err(message) => {
            hold!(!message.is_empty(), "a refusal without a word");
            if let Ok(doc) = &read {
                hold!(
                    doc.gives_cause(&paths) || body.windows(2).any(|pair| pair == b"\\u"),
                    "{} is refused: {message}",
                    body.escape_ascii()
                );
            }
            return Ok(Seen::Refused);
        }
    };
    let doc = match read {
        Ok(doc) => doc,
        // Nothing to compare with.
        Err(Unread::TooDeep) => return Ok(Seen::Accepted),
        Err(Unread::NotJson) => {
            return Err(format!("{} is no JSON, and taken", body.escape_ascii()));
        }
    };
    hold!(
        found.len() == paths.len(),
        "{names} gives {} members",
        found.len()
    );
    for (path, value) in paths.iter().zip(&found) {
        for (last, case) in [(false, true), (true, true), (false, false), (true, false)] {
            let seen = doc.look_up(path, last, case).map(Doc::text);
            hold!(
                seen == value.clone().map(Some),
                "{}: {path:?} is {value:?}, and to a reader of the {} member{} it is {seen:?}",
                body.escape_ascii(),
                if last { "last" } else { "first" },
                if case { "" } else { " in any case" }
            );
        }
    }
    let any = found.iter().any(Option::is_some);
    Ok(if any { Seen::Accepted } else { Seen::Refused })
}

/// A document with everything that was written in it.
#[derive(Debug)]
enum Doc {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    List(Vec<Doc>),
    Map(Vec<(String, Doc)>),
}

#[derive(Clone, Copy, Debug)]
enum Unread {
    NotJson,
    TooDeep,
}

impl Doc {
    fn read(text: &str) -> Result<Self, Unread> {
        let mut reader = Reader { left: text };
        let doc = reader.value(64)?;
        reader.space();
        if reader.left.is_empty() {
            Ok(doc)
        } else {
            Err(Unread::NotJson)
        }
    }

    fn look_up(&self, path: &[String], last: bool, case: bool) -> Option<&Self> {
        let Some((name, path)) = path.split_first() else {
            return Some(self);
        };
        let Self::Map(members) = self else {
            return None;
        };
        let same = |(known, _): &&(String, Doc)| {
            known == name || !case && known.to_lowercase() == name.to_lowercase()
        };
        let mut matching = members.iter().filter(same);
        let found = if last {
            matching.next_back()
        } else {
            matching.next()
        };
        found?.1.look_up(path, last, case)
    }

    /// The text in a key; `None` for what names nothing.
    fn text(&self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text.clone()),
            Self::Bool(truth) => Some(truth.to_string()),
            Self::Number(digits) => {
                // Beyond it, readers with binary floats take two numbers for one.
                let safe = (1 << 53) - 1;
                let whole = digits.parse::<i64>().ok();
                let whole = whole.filter(|whole| (-safe..=safe).contains(whole));
                whole
                    .map(|whole| whole.to_string())
                    .filter(|whole| whole == digits)
            }
            Self::Null | Self::List(_) | Self::Map(_) => None,
        }
    }

    /// Returns whether it may be refused.
    fn gives_cause(&self, paths: &[Vec<String>]) -> bool {
        let unusable = |path: &Vec<String>| {
            let found = self.look_up(path, true, true);
            found.is_some_and(|doc| doc.text().is_none())
        };
        // A name in capitals may have a twin in lower case.
        let capital = paths.iter().flatten().any(|name| folded(name) != *name);
        !matches!(self, Self::Map(_)) || capital || self.has_twins() || paths.iter().any(unusable)
    }

    /// Returns whether a reader may take two members of one map, or a member and the wanted name,
    /// for one.
    fn has_twins(&self) -> bool {
        match self {
            Self::Map(members) => {
                let odd = |(i, (name, inner)): (usize, &(String, Doc))| {
                    let twin = members[..i]
                        .iter()
                        .any(|(other, _)| folded(other) == folded(name));
                    twin || folded(name) != *name || inner.has_twins()
                };
                members.iter().enumerate().any(odd)
            }
            Self::List(items) => items.iter().any(Self::has_twins),
            Self::Null | Self::Bool(_) | Self::Number(_) | Self::Text(_) => false,
        }
    }
}

fn folded(name: &str) -> String {
    name.to_lowercase().to_uppercase().to_lowercase()
}

/// RFC 8259, as it is written; except for lone surrogates, which many readers let through.
struct Reader<'a> {
    left: &'a str,
}

impl Reader<'_> {
    fn space(&mut self) {
        self.left = self.left.trim_start_matches([' ', '\t', '\n', '\r']);
    }

    fn eat(&mut self, sign: char) -> bool {
        let rest = self.left.strip_prefix(sign);
        self.left = rest.unwrap_or(self.left);
        rest.is_some()
    }

    fn want(&mut self, sign: char) -> Result<(), Unread> {
        if self.eat(sign) {
            Ok(())
        } else {
            Err(Unread::NotJson)
        }
    }

    fn value(&mut self, depth: usize) -> Result<Doc, Unread> {
        let depth = depth.checked_sub(1).ok_or(Unread::TooDeep)?;
        self.space();
        for (word, doc) in [
            ("null", Doc::Null),
            ("true", Doc::Bool(true)),
            ("false", Doc::Bool(false)),
        ] {
            if let Some(rest) = self.left.strip_prefix(word) {
                self.left = rest;
                return Ok(doc);
            }
        }
        match self.left.chars().next() {
            Some('"') => self.text().map(Doc::Text),
            Some('[') => self.list(depth),
            Some('{') => self.map(depth),
            _ => self.number(),
        }
    }

    fn list(&mut self, depth: usize) -> Result<Doc, Unread> {
        self.want('[')?;
        let mut items = Vec::new();
        self.space();
        if self.eat(']') {
            return Ok(Doc::List(items));
        }
        loop {
            items.push(self.value(depth)?);
            self.space();
            if self.eat(']') {
                return Ok(Doc::List(items));
            }
            self.want(',')?;
        }
    }

    fn map(&mut self, depth: usize) -> Result<Doc, Unread> {
        self.want('{')?;
        let mut members = Vec::new();
        self.space();
        if self.eat('}') {
            return Ok(Doc::Map(members));
        }
        loop {
            self.space();
            let name = self.text()?;
            self.space();
            self.want(':')?;
            members.push((name, self.value(depth)?));
            self.space();
            if self.eat('}') {
                return Ok(Doc::Map(members));
            }
            self.want(',')?;
        }
    }

    fn number(&mut self) -> Result<Doc, Unread> {
        let whole = self.left;
        self.eat('-');
        let integer = self.digits();
        let mut good = !integer.is_empty() && (integer == "0" || !integer.starts_with('0'));
        if self.eat('.') {
            good &= !self.digits().is_empty();
        }
        if self.eat('e') || self.eat('E') {
            let _ = self.eat('+') || self.eat('-');
            good &= !self.digits().is_empty();
        }
        let text = &whole[..whole.len() - self.left.len()];
        if good {
            Ok(Doc::Number(text.to_owned()))
        } else {
            Err(Unread::NotJson)
        }
    }

    fn digits(&mut self) -> String {
        let rest = self.left.trim_start_matches(|c: char| c.is_ascii_digit());
        let digits = &self.left[..self.left.len() - rest.len()];
        self.left = rest;
        digits.to_owned()
    }

    fn text(&mut self) -> Result<String, Unread> {
        self.want('"')?;
        let mut units: Vec<u16> = Vec::new();
        loop {
            let sign = self.left.chars().next().ok_or(Unread::NotJson)?;
            self.left = &self.left[sign.len_utf8()..];
            match sign {
                '"' => return Ok(String::from_utf16_lossy(&units)),
                '\\' => units.push(self.escape()?),
                '\0'..='\u{1f}' => return Err(Unread::NotJson),
                sign => units.extend_from_slice(sign.encode_utf16(&mut [0; 2])),
            }
        }
    }

    fn escape(&mut self) -> Result<u16, Unread> {
        let sign = self.left.chars().next().ok_or(Unread::NotJson)?;
        self.left = &self.left[sign.len_utf8()..];
        let plain = match sign {
            '"' | '\\' | '/' => sign,
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => {
                let digits = self.left.get(..4).ok_or(Unread::NotJson)?;
                self.left = &self.left[4..];
                let good = digits.bytes().all(|b| b.is_ascii_hexdigit());
                let unit = u16::from_str_radix(digits, 16).ok().filter(|_| good);
                return unit.ok_or(Unread::NotJson);
            }
            _ => return Err(Unread::NotJson),
        };
        u16::try_from(u32::from(plain)).map_err(|_| Unread::NotJson)
    }
}
