//! [`Sample`]: a request that a template makes a certain key of.
//!
//! The key is taken apart at its separators, put together to a request, and rendered again. So what
//! a path, a filter or a source refuses is decided where requests are judged, and nowhere else.

use std::collections::HashMap;

use super::escape::percent_encoded;
use super::key::Source;
use super::path::CheckedPath;
use super::route::Captures;
use super::template::KeyTemplate;
use super::template::part::KeyPart;

/// One path and the values of everything else that a key can be made of.
#[derive(Clone, Debug)]
pub struct Sample {
    pub raw_path: String,
    pub path: CheckedPath,
    /// Of the parts that are not in the path.
    pub values: HashMap<Source, String>,
}

/// The parts of a key and their texts: one, or a list of path segments.
type Texts<'a> = [(&'a KeyPart, Vec<String>)];

impl KeyTemplate {
    /// A request that has this key, if there is one. `reach`: the captures of a path that may be
    /// requested and leads to this template's route.
    ///
    /// The filters `lower` and `int` leave several spellings, of which another route may take some
    /// for literals. Of these, two are tried.
    #[must_use]
    pub fn sample(
        &self,
        key: &str,
        reach: impl Fn(&CheckedPath) -> Option<Captures>,
    ) -> Option<Sample> {
        let texts = self.texts_of(key)?;
        let forms = [(false, false), (false, true), (true, false), (true, true)];
        forms.into_iter().find_map(|(respelled, slash)| {
            let sample = self.put_together(&texts, respelled, slash)?;
            let captures = reach(&sample.path)?;
            let mut value = |source: &Source| Ok(sample.values.get(source).cloned());
            let again = self.render(&captures, &sample.path, &mut value);
            again
                .is_ok_and(|again| again.as_str() == key)
                .then_some(sample)
        })
    }

    /// A request of which the parts have these texts.
    fn put_together(&self, texts: &Texts<'_>, respelled: bool, slash: bool) -> Option<Sample> {
        let spelled = |(part, texts): &(&KeyPart, Vec<String>)| {
            let texts = texts.iter();
            let texts = texts.map(|text| {
                if respelled {
                    part.respelled(text)
                } else {
                    text.clone()
                }
            });
            (part.losses(), texts.collect::<Vec<_>>())
        };
        // Of several parts with one source, the one whose filters leave the most of it.
        let of = |source: &Source| {
            let parts = texts.iter().filter(|(part, _)| part.source == *source);
            parts.map(spelled).min_by_key(|(losses, _)| *losses)
        };
        let whole = of(&Source::WholePath);
        let captured = |name: &str, from: usize, to: Option<usize>| {
            let of_path = whole.as_ref().and_then(|(losses, texts)| {
                let texts = texts.get(from..to.unwrap_or(texts.len()))?;
                Some((*losses, texts.to_vec()))
            });
            let own = of(&Source::Path(name.to_owned()));
            let best = own
                .into_iter()
                .chain(of_path)
                .min_by_key(|(losses, _)| *losses);
            best.map(|(_, texts)| texts)
        };
        let pattern = &self.pattern;
        let mut names = pattern.names();
        let mut segments = Vec::new();
        for at in 0..pattern.segments() {
            if let Some(literal) = pattern.literal(at) {
                segments.push(literal.to_owned());
                continue;
            }
            let any = || vec![if respelled { "y" } else { "x" }.to_owned()];
            segments.extend(captured(names.next()?, at, Some(at + 1)).unwrap_or_else(any));
        }
        if let Some(rest) = names.next() {
            segments.extend(captured(rest, pattern.segments(), None).unwrap_or_default());
        }
        if !pattern.takes(segments.len(), slash) {
            return None;
        }
        let mut raw_path: String = segments
            .iter()
            .flat_map(|text| ["/".to_owned(), percent_encoded(text)])
            .collect();
        if slash || raw_path.is_empty() {
            raw_path.push('/');
        }
        let elsewhere = texts.iter().map(|(part, _)| &part.source);
        let elsewhere =
            elsewhere.filter(|source| !matches!(source, Source::Path(_) | Source::WholePath));
        let values = elsewhere.filter_map(|source| {
            let mut value = of(source)?.1.pop()?;
            if let Source::Header(_) = source {
                // The white space around a field's value is not part of it.
                value = value.trim_matches([' ', '\t']).to_owned();
            }
            Some((source.clone(), value))
        });
        Some(Sample {
            path: CheckedPath::parse(&raw_path).ok()?,
            values: values.collect(),
            raw_path,
        })
    }
}
