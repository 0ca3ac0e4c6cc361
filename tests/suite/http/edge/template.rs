//! The notation of `tests/edge` (its README says it for readers): text in which one character is
//! one byte, and a few names in braces stand for more.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

/// The head of a fenced write that nothing is wrong with, without its empty line.
const PUT: &str = "PUT /orders/{id} HTTP/1.1\r\nHost: app.test\r\nX-Fencing-Token: 7\r\n";
/// As [`PUT`], for a read that passes unfenced.
const GET: &str = "GET /orders/{id} HTTP/1.1\r\nHost: app.test\r\n";

/// Puts in what the names in braces stand for: `{id}`, `{put}`, `{get}` and `{70000*text}`.
pub fn expand(text: &str, id: &str) -> String {
    let mut text = text.replace("{put}", PUT).replace("{get}", GET);
    let mut from = 0;
    while let Some(at) = text[from..].find('{').map(|at| from + at) {
        from = at + 1;
        let Some(end) = text[at..].find('}').map(|end| at + end) else {
            break;
        };
        let repeated = text[at + 1..end]
            .split_once('*')
            .and_then(|(count, piece)| {
                let count = count.parse::<usize>().ok()?;
                Some(piece.repeat(count))
            });
        if let Some(repeated) = repeated {
            text.replace_range(at..=end, &repeated);
            from = at + repeated.len();
        }
    }
    text.replace("{id}", id)
}

/// The bytes of a text: one character, one byte.
///
/// # Panics
/// If a character has no byte of its number.
pub fn bytes(text: &str) -> Vec<u8> {
    let byte = |sign| u8::try_from(sign).unwrap_or_else(|_| panic!("{sign:?} is not one byte"));
    text.chars().map(byte).collect()
}

/// The bytes of a set such as `01-20 7f`.
///
/// # Panics
/// If it is not one.
pub fn byte_set(text: &str) -> Vec<u8> {
    let byte = |digits: &str| u8::from_str_radix(digits, 16).expect("two hexadecimal digits");
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        byte(first)..=byte(last)
    };
    text.split_whitespace().flat_map(range).collect()
}

/// One thing, or a list of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Listed<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> Default for Listed<T> {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl<T> Listed<T> {
    pub fn list(self) -> Vec<T> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}

/// A case of a file, with what its group says laid under it.
pub struct CaseEntry {
    /// File, name and basis.
    pub name: String,
    /// Its name on the wire. All are of one length, so that none is part of another.
    pub id: String,
    pub table: toml::Table,
}

/// The cases of a file. `short`: what a case says that is no table, or the values of `{x}` where
/// its group says that.
///
/// # Panics
/// If it has no groups with cases, or one without a basis.
pub fn entries(file: &str, table: &toml::Table, short: &str) -> Vec<CaseEntry> {
    let groups = table["group"].as_array().expect("[[group]]");
    let mut entries = Vec::new();
    for group in groups {
        let mut shared = group.as_table().expect("a table").clone();
        let named = shared.remove("case").expect("[group.case]");
        for (name, said) in named.as_table().expect("a table") {
            let mut table = shared.clone();
            if let toml::Value::Table(said) = said {
                table.extend(said.clone());
            } else {
                let short = if table.contains_key(short) {
                    "x"
                } else {
                    short
                };
                table.insert(short.into(), said.clone());
            }
            let basis = table.remove("basis").unwrap_or_else(|| "none".into());
            let basis = basis.as_str().unwrap_or_default();
            let known = basis.starts_with("RFC ") || basis.starts_with("policy: ");
            assert!(known, "{file}/{name}: {basis:?}");
            let values = table.remove("x").map(|x| x.try_into().expect("texts"));
            for value in values.map_or_else(|| vec![String::new()], Listed::list) {
                let mut table = table.clone();
                table.iter_mut().for_each(|(_, said)| put_in(said, &value));
                let name = format!("{file}/{name} {value:?} ({basis})");
                let id = format!("k{:04}", entries.len());
                entries.push(CaseEntry { name, id, table });
            }
        }
    }
    entries
}

/// Puts a value in place of each `{x}`.
fn put_in(said: &mut toml::Value, value: &str) {
    match said {
        toml::Value::String(text) => *text = text.replace("{x}", value),
        toml::Value::Array(all) => all.iter_mut().for_each(|one| put_in(one, value)),
        _ => {}
    }
}

/// Every TOML file of a directory, by its name.
///
/// # Panics
/// If one cannot be read.
pub fn files(dir: &str) -> BTreeMap<String, toml::Table> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join(dir);
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("it stays").path();
        if path.extension().is_some_and(|end| end == "toml") {
            let text = std::fs::read_to_string(&path).expect("it can be read");
            let table = toml::from_str(&text);
            let table = table.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            files.insert(name.into_owned(), table);
        }
    }
    files
}
