//! [`Survey`]: the writes that a log or a document shows, by the forms of their paths, and what was
//! left out. Its memory is bounded, whatever the log has.
//!
//! A form is a path whose words are percent-encoded, with a sign in place of each identifier:
//! `/orders/<number>/items/<name>`. No word has such a sign.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use crate::routing::{Allow, CheckedPath, DEFAULT_METHODS, SAFE_METHODS, percent_encoded, plain};

/// The signs of identifiers, each with the filters of a key that is made of them: they refuse what
/// an upstream may read as another text of this form. Later ones take all texts of earlier ones.
pub(super) const KINDS: [(&str, &str); 4] = [
    ("<number>", "|int"),
    ("<hex>", "|lower|plain"),
    ("<name>", "|plain"),
    ("<text>", ""),
];

/// The most forms with a method that are kept.
const FORMS: usize = 10_000;
/// The most segments of a path that are looked at, and the most bytes of a word of the API.
const SEGMENTS: usize = 12;
const WORD: usize = 64;
/// More different words than this in one place are names of things, not words of the API.
const WORDS: usize = 20;

const READS: &str = "safe methods, which are not fenced";
const METHODS: &str =
    "requests with other methods, which a route takes if its `methods` lists them";
const FAILED: &str = "writes that were answered with 400, 404, 405 or 501: nothing is there";
const TWO_READINGS: &str = "writes with a path that has two readings: fencepost refuses them";
const TOO_MANY: &str = "writes to more, or longer, paths than are kept in memory";

#[derive(Debug, Default)]
pub(super) struct Survey {
    pub requests: u64,
    /// The number of writes by form and method.
    pub writes: BTreeMap<(String, String), u64>,
    /// The reasons, each with the number of requests or lines, and the place of the first.
    pub left_out: BTreeMap<&'static str, (u64, String)>,
    is_full: bool,
}

impl Survey {
    /// Counts a request. `status`: of its answer. `place`: where it is written.
    pub(super) fn add(
        &mut self,
        method: &str,
        target: &str,
        status: Option<u16>,
        place: impl Display,
    ) {
        self.requests += 1;
        if SAFE_METHODS.contains(&method) {
            return self.leave(READS, place);
        } else if !DEFAULT_METHODS.contains(&method) {
            return self.leave(METHODS, place);
        } else if let Some(400 | 404 | 405 | 501) = status {
            return self.leave(FAILED, place);
        }
        let path = CheckedPath::parse(path_of(target));
        let path = path.and_then(|path| match path.oddity_not_in(Allow::default()) {
            Some(oddity) => Err(oddity),
            None => Ok(path),
        });
        let path = match path {
            Ok(path) => path,
            Err(reason) => return self.leave(TWO_READINGS, format_args!("{place}, {reason}")),
        };
        let mut form = String::new();
        for text in path.segments_from(0).take(SEGMENTS) {
            let sign = identifier(text, &form);
            form = form + "/" + &sign.map_or_else(|| percent_encoded(text), str::to_owned);
        }
        let is_cut = path.segment(SEGMENTS).is_some();
        if path.trailing_slash() && !is_cut || form.is_empty() {
            form.push('/');
        }
        let shape = (form, method.to_owned());
        if let Some(count) = self.writes.get_mut(&shape) {
            *count += 1;
        } else if self.is_full || is_cut && !shape.0.contains('<') {
            self.leave(TOO_MANY, place);
        } else {
            self.writes.insert(shape, 1);
            if self.writes.len() > FORMS {
                self.merge_names();
                self.is_full = self.writes.len() > FORMS / 2;
            }
        }
    }

    pub(super) fn leave(&mut self, reason: &'static str, place: impl Display) {
        let left_out = self.left_out.entry(reason);
        left_out.or_insert_with(|| (0, place.to_string())).0 += 1;
    }

    /// Puts a sign in the place of words where many different ones stand.
    pub(super) fn merge_names(&mut self) {
        for depth in 0..SEGMENTS {
            let mut words: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
            for (form, method) in self.writes.keys() {
                // A word that gets nothing but POST may be an action.
                if let Some((parent, word, rest)) = name_at(form, depth)
                    && (method != "POST" || rest.len() > 1)
                {
                    words.entry(parent).or_default().insert(word);
                }
            }
            words.retain(|_, words| words.len() > WORDS);
            let parents: BTreeSet<_> = words.into_keys().map(str::to_owned).collect();
            for ((mut form, method), count) in std::mem::take(&mut self.writes) {
                if let Some((parent, word, rest)) = name_at(&form, depth)
                    && parents.contains(parent)
                {
                    let sign = plain(word).map_or("<text>", |()| "<name>");
                    form = format!("{parent}/{sign}{rest}");
                }
                *self.writes.entry((form, method)).or_default() += count;
            }
        }
    }
}

/// A word of a form, with what is in front of it and behind it. `None`: there is none, or an
/// identifier follows it.
fn name_at(form: &str, depth: usize) -> Option<(&str, &str, &str)> {
    let mut slashes = form.match_indices('/').map(|(at, _)| at);
    let start = slashes.nth(depth)?;
    let end = slashes.next().unwrap_or(form.len());
    let (word, rest) = (&form[start + 1..end], &form[end..]);
    let is_name = !word.is_empty() && !word.starts_with('<') && !rest.starts_with("/<");
    is_name.then(|| (&form[..start], word, rest))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit())
}

/// True if a segment behind this form is a version: `v1`, `/api/2`.
fn is_version(segment: &str, form: &str) -> bool {
    let number = segment.strip_prefix('v');
    number.is_some_and(|number| number.split('.').all(is_number))
        || form.ends_with("/api") && is_number(segment) && segment.len() < 3
}

/// The sign for a segment behind this form that looks like an identifier. `None`: it looks like a
/// word of the API.
pub(super) fn identifier(segment: &str, form: &str) -> Option<&'static str> {
    let digits = segment.bytes().filter(u8::is_ascii_digit).count();
    let last = segment.rsplit_once(['-', '_']).map_or("", |(_, last)| last);
    let is_odd = segment.contains(['@', ' ', '&', '=']) || segment.len() > WORD;
    if is_version(segment, form) {
        return None;
    }
    Some(match segment {
        _ if is_number(segment) => "<number>",
        _ if digits < 3 && !is_number(last) && !is_odd => return None,
        _ if plain(segment).is_err() => "<text>",
        _ if uuid::Uuid::try_parse(segment).is_ok() => "<hex>",
        _ if segment.len() > 7 && segment.bytes().all(|c| c.is_ascii_hexdigit()) => "<hex>",
        _ => "<name>",
    })
}

/// The path of a target or a URL, without its query.
pub(super) fn path_of(target: &str) -> &str {
    let path = match target.split_once("://") {
        Some((scheme, rest)) if !scheme.contains('/') => {
            rest.find('/').map_or("/", |at| &rest[at..])
        }
        _ => target,
    };
    path.split('?').next().unwrap_or_default()
}
