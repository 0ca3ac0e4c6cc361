//! [`Skeleton`]: the keys that a template makes of all paths of one form, to compare templates.

use std::collections::BTreeSet;

use super::KeyTemplate;
use super::part::Filter;
use crate::routing::escape::Escaped;
use crate::routing::key::Source;

/// The origin of a part of a key, independent of its name in the pattern.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The segment of the path, counted from 0.
    Segment(usize),
    /// Not in the path.
    Elsewhere(Source),
}

/// The keys that a template makes of the paths of one form.
#[derive(Clone, Debug)]
pub struct Skeleton {
    pieces: Vec<Piece>,
    /// The signs that are escaped in parts; `None` if there is no part.
    escaped: Option<Escaped>,
    /// The filters that refuse some texts.
    narrow: BTreeSet<(Origin, Filter)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    /// A part, and the filters that change its text.
    Part(Origin, Vec<Filter>),
}

impl KeyTemplate {
    /// The keys of paths that have `length` segments and match the template's pattern. `known` is
    /// the text of an origin that has the same one in all requests. `None`: no request has a key.
    #[must_use]
    pub fn skeleton(
        &self,
        length: usize,
        known: impl Fn(&Origin) -> Option<String>,
    ) -> Option<Skeleton> {
        let mut skeleton = Skeleton {
            pieces: Vec::new(),
            escaped: None,
            narrow: BTreeSet::new(),
        };
        skeleton.push(&self.head);
        for part in &self.parts {
            let segments = |range| Iterator::map(range, Origin::Segment).collect();
            let origins: Vec<Origin> = match &part.source {
                Source::WholePath => segments(0..length),
                Source::Path(name) => match self.pattern.position(name) {
                    Some(at) => segments(at..at + 1),
                    None => segments(self.pattern.segments()..length),
                },
                source => vec![Origin::Elsewhere(source.clone())],
            };
            if part.source == Source::WholePath {
                skeleton.push("/");
            } else if origins.is_empty() {
                return None;
            }
            for (index, origin) in origins.into_iter().enumerate() {
                if index > 0 {
                    skeleton.push("/");
                }
                if let Some(text) = known(&origin) {
                    let mut escaped = String::new();
                    self.escaped.push(&mut escaped, &part.normal(&text).ok()?);
                    skeleton.push(&escaped);
                    continue;
                }
                let (changing, narrow): (Vec<Filter>, Vec<Filter>) =
                    (part.filters.iter()).partition(|filter| **filter != Filter::Plain);
                let numbers = changing.iter().filter(|filter| **filter == Filter::Int);
                let narrow = narrow.iter().chain(numbers);
                let narrow = narrow.map(|filter| (origin.clone(), *filter));
                skeleton.narrow.extend(narrow);
                skeleton.escaped = Some(self.escaped.clone());
                skeleton.pieces.push(Piece::Part(origin, changing));
            }
            skeleton.push(&part.tail);
        }
        Some(skeleton)
    }
}

impl Skeleton {
    fn push(&mut self, text: &str) {
        match self.pieces.last_mut() {
            Some(Piece::Text(last)) => last.push_str(text),
            _ if text.is_empty() => {}
            _ => self.pieces.push(Piece::Text(text.to_owned())),
        }
    }

    /// True if every request that has a key by both has the same one. False if that is not certain.
    #[must_use]
    pub fn makes_the_keys_of(&self, other: &Self) -> bool {
        self.pieces == other.pieces && self.escaped == other.escaped
    }

    /// True if a text may have a key by `other` and none by this.
    #[must_use]
    pub fn is_narrower_than(&self, other: &Self) -> bool {
        !self.narrow.is_subset(&other.narrow)
    }
}
