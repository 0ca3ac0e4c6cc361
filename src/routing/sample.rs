//! The way back: from a key to a request that has it.
//!
//! The key is taken apart at its separators, put together to a request, and rendered again. So what
//! a path, a filter or a source refuses is decided where requests are judged, and nowhere else.

use super::key::Source;
use super::normal::{percent_encoded, raw_path};
use super::path::CheckedPath;
use super::template::{KeyPart, KeyTemplate};

/// The parts of a key and their texts: one, or a list of path segments.
type Texts<'a> = [(&'a KeyPart, Vec<String>)];

impl KeyTemplate {
    /// The path of a request that has this key, if there is one. `reach`: a path may be requested,
    /// and leads to this template's route.
    ///
    /// The filters `lower` and `int` leave several spellings, of which another route may take some
    /// for literals. Only the normal form is tried: a key that needs another one counts as one that
    /// no request has.
    pub fn sample(&self, key: &str, reach: impl Fn(&CheckedPath) -> bool) -> Option<String> {
        let texts = self.texts_of(key)?;
        let mut lookup = |source: &Source| {
            let same = texts.iter().filter(|(part, _)| part.source == *source);
            let text = same.min_by_key(|(part, _)| part.loss());
            let text = text.and_then(|(_, texts)| texts.first());
            Ok(text.map(|text| match source {
                // The white space around a field's value is not part of it.
                Source::Header(_) => text.trim_matches([' ', '\t']).to_owned(),
                _ => text.clone(),
            }))
        };
        [false, true].into_iter().find_map(|slash| {
            let raw_path = self.path_of(&texts, slash)?;
            let path = CheckedPath::parse(&raw_path).ok()?;
            let again = reach(&path).then(|| self.render(&path, &mut lookup).ok())?;
            (again?.as_str() == key).then_some(raw_path)
        })
    }

    /// A path of which the parts have these texts. Of several parts with one source, it has the
    /// text of the one whose filters leave the most of it.
    fn path_of(&self, texts: &Texts<'_>, slash: bool) -> Option<String> {
        let captured = |name: &str, from: usize, to: usize| {
            let all = texts.iter().filter_map(|(part, texts)| match &part.source {
                Source::Path(known) if known == name => Some((part, &texts[..])),
                Source::WholePath => Some((part, texts.get(from..to.min(texts.len()))?)),
                _ => None,
            });
            let best = all.min_by_key(|(part, _)| part.loss());
            best.map(|(_, texts)| texts.to_vec())
        };
        let mut names = self.pattern.names();
        let mut segments = Vec::new();
        for at in 0..self.pattern.segments() {
            if let Some(literal) = self.pattern.literal(at) {
                segments.push(literal.to_owned());
            } else {
                let any = || vec!["x".to_owned()];
                segments.extend(captured(names.next()?, at, at + 1).unwrap_or_else(any));
            }
        }
        if let Some(rest) = names.next() {
            segments.extend(captured(rest, segments.len(), usize::MAX).unwrap_or_default());
        }
        let takes = self.pattern.takes(segments.len(), slash);
        takes.then(|| raw_path(segments.iter().map(|text| percent_encoded(text)), slash))
    }

    /// The parts of a key, from the left. `None` if the key does not have this template's literals,
    /// or is not escaped as a key is.
    fn texts_of(&self, key: &str) -> Option<Vec<(&KeyPart, Vec<String>)>> {
        let mut left = key.strip_prefix(&*self.head)?;
        let mut parts = Vec::new();
        for (i, part) in self.parts.iter().enumerate() {
            let end = if i + 1 == self.parts.len() {
                left.len().checked_sub(part.tail.len())?
            } else {
                let ends = |c| self.escaped.ends(c, part.list);
                left.find(ends)?.checked_sub(part.tail.find(ends)?)?
            };
            let text = left.get(..end)?;
            left = left[end..].strip_prefix(&*part.tail)?;
            let texts = match (text, &part.source) {
                ("", Source::WholePath) => Vec::new(),
                _ if part.list => text.split('/').collect(),
                _ => vec![text],
            };
            let texts: Option<_> = texts.iter().map(|text| self.escaped.undo(text)).collect();
            parts.push((part, texts?));
        }
        left.is_empty().then_some(parts)
    }
}
