//! Keys that requests of two routes share.
//!
//! A template escapes its own separators, and knows nothing of another one's: `{name}` and
//! `order:{id}` can yield the same key. This does not decide whether two templates can. It shows
//! each route's sample keys to all other templates. A request of each route proves a finding.

use std::collections::{BTreeSet, HashMap};

use super::compare::key;
use super::samples::{Sample, SampleStyle, Sampler};
use super::{RouteTable, Rule};
use crate::config::settings::Mode;
use crate::routing::{CheckedPath, KeyTemplate, ResourceKey, Router, Source, percent_encoded};

/// A key that two routes yield.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::config) struct SharedKey {
    pub key: ResourceKey,
    /// Indices of the routes, and a request of each.
    pub routes: [usize; 2],
    pub requests: [String; 2],
    /// Their templates differ in more than in where the parts come from.
    pub templates_differ: bool,
    pub formats_differ: bool,
    /// The bounds of their tokens differ.
    pub bounds_differ: bool,
}

impl RouteTable {
    /// One key for every two fenced routes that share one, if their templates, their token formats,
    /// or the bounds of their tokens differ. Routes with the same template are meant to share it.
    /// Bounds are not part of a table, so `bounds_differ` compares those of two routes.
    pub(in crate::config) fn shared_keys(
        &self,
        bounds_differ: impl Fn(usize, usize) -> bool,
    ) -> Vec<SharedKey> {
        let patterns = self.routes.iter().map(|rule| rule.pattern.clone());
        let Ok(router) = Router::new(patterns.collect()) else {
            return Vec::new();
        };
        let sampler = Sampler::new([self, self]);
        let mut told = BTreeSet::new();
        let mut shared = Vec::new();
        for (at, rule, _) in self.fenced() {
            let pair = [Some(rule), None];
            for form in sampler.forms(pair) {
                let sample = sampler.sample(pair, form, SampleStyle::Plain);
                for one in sample
                    .iter()
                    .flat_map(|sample| self.sharing(&router, at, sample, &bounds_differ))
                {
                    let [first, second] = one.routes;
                    if told.insert([first.min(second), first.max(second)]) {
                        shared.push(one);
                    }
                }
            }
        }
        shared
    }

    /// The other routes with which the first one shares the key of this sample.
    fn sharing(
        &self,
        router: &Router,
        first: usize,
        sample: &Sample,
        bounds_differ: &impl Fn(usize, usize) -> bool,
    ) -> Vec<SharedKey> {
        let (Some(rule), Some(key)) = (self.routes.get(first), self.yields(router, first, sample))
        else {
            return Vec::new();
        };
        let others = self.fenced().filter(|(second, ..)| *second != first);
        let shared = others.filter_map(|(second, other, template)| {
            let own = rule.key.as_ref()?;
            let templates_differ = !meant(own, template);
            let formats_differ = rule.token_format != other.token_format;
            let bounds_differ = bounds_differ(first, second);
            if !templates_differ && !formats_differ && !bounds_differ {
                return None;
            }
            let twin = other.sample_of(key.as_str())?;
            let same = self.yields(router, second, &twin).as_ref() == Some(&key);
            same.then(|| SharedKey {
                key: key.clone(),
                routes: [first, second],
                requests: [rule.shown(sample), other.shown(&twin)],
                templates_differ,
                formats_differ,
                bounds_differ,
            })
        });
        shared.collect()
    }

    fn fenced(&self) -> impl Iterator<Item = (usize, &Rule, &KeyTemplate)> {
        let routes = self.routes.iter().enumerate();
        let fenced = routes.filter(|(_, rule)| rule.mode != Mode::Bypass);
        fenced.filter_map(|(at, rule)| Some((at, rule, rule.key.as_ref()?)))
    }

    /// The key of a request, if this route matches it.
    fn yields(&self, router: &Router, at: usize, sample: &Sample) -> Option<ResourceKey> {
        let (found, captures) = router.find(&sample.path)?;
        let rule = self.routes.get(found).filter(|_| found == at)?;
        let refused = sample.path.oddity_not_in(rule.allow).is_some();
        key(rule, &captures, sample).filter(|_| !refused)
    }
}

/// Returns true if these templates are meant to share keys: they have the same literals,
/// or one of them spells out what `{path}` is in the other.
fn meant(one: &KeyTemplate, other: &KeyTemplate) -> bool {
    let is_path = |template: &KeyTemplate| {
        let whole = template.parts().next() == Some(&Source::WholePath);
        whole && template.literals().next() == Some("")
    };
    let spells = |template: &KeyTemplate| template.as_str().starts_with('/');
    one.literals().eq(other.literals())
        || (is_path(one) && spells(other))
        || (is_path(other) && spells(one))
}

impl Rule {
    /// A request of this route that should have this key.
    fn sample_of(&self, key: &str) -> Option<Sample> {
        let mut segments: Option<Vec<String>> = None;
        let mut captured: HashMap<&str, Vec<String>> = HashMap::new();
        let mut values = HashMap::new();
        for (source, mut texts) in self.key.as_ref()?.values_of(key)? {
            match source {
                Source::WholePath => segments = Some(texts),
                Source::Path(name) => {
                    captured.insert(name, texts);
                }
                source => {
                    values.insert(source.clone(), texts.pop()?);
                }
            }
        }
        let mut names = self.pattern.names();
        let segments = segments.unwrap_or_else(|| {
            let steps = (0..self.pattern.segments()).map(|at| {
                if let Some(text) = self.pattern.literal(at) {
                    return vec![text.to_owned()];
                }
                let known = names.next().and_then(|name| captured.remove(name));
                known.unwrap_or_else(|| vec!["x".to_owned()])
            });
            let mut segments: Vec<String> = steps.flatten().collect();
            let rest = names.next().and_then(|name| captured.remove(name));
            segments.extend(rest.unwrap_or_default());
            segments
        });
        let mut raw_path = String::new();
        for text in &segments {
            raw_path.extend(["/", &percent_encoded(text)]);
        }
        if raw_path.is_empty() || !self.pattern.takes(segments.len(), false) {
            raw_path.push('/');
        }
        Some(Sample {
            path: CheckedPath::parse(&raw_path).ok()?,
            raw_path,
            values,
        })
    }

    /// The request, with a method that the route allows.
    fn shown(&self, sample: &Sample) -> String {
        let listed = self.methods.as_ref().and_then(BTreeSet::first);
        sample.request(listed.map_or("PUT", String::as_str), None)
    }
}
