//! Keys that requests of two routes share.
//!
//! A template escapes its own separators, and knows nothing of another one's: `{name}` and
//! `order:{id}` can yield the same key. This does not decide whether two templates can. It shows
//! a few keys of each route to all other templates. A request of each route proves a finding.

use std::collections::BTreeSet;

use super::paths::{SamplePath, SamplePaths};
use super::{RouteTable, Rule};
use crate::config::settings::Mode;
use crate::routing::{Captures, CheckedPath, KeyTemplate, ResourceKey, Router, Source};

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
        let paths = SamplePaths::new([self, self]);
        let mut told = BTreeSet::new();
        let mut shared = Vec::new();
        for (at, rule, _) in self.fenced() {
            for path in paths.of([Some(rule), None]) {
                for one in self.sharing(&router, at, &path, &bounds_differ) {
                    let [first, second] = one.routes;
                    if told.insert([first.min(second), first.max(second)]) {
                        shared.push(one);
                    }
                }
            }
        }
        shared
    }

    /// The other routes with which the first one shares a key of this path.
    fn sharing(
        &self,
        router: &Router,
        first: usize,
        sample: &SamplePath,
        bounds_differ: &impl Fn(usize, usize) -> bool,
    ) -> Vec<SharedKey> {
        let rule = &self.routes[first];
        // A number, which all filters take.
        let elsewhere = (sample.literals.len() + 1).to_string();
        let key = self.reach(router, first, &sample.path);
        let key = key.zip(rule.key.as_ref()).and_then(|(captures, template)| {
            let mut value = |_: &Source| Ok(Some(elsewhere.clone()));
            template.render(&captures, &sample.path, &mut value).ok()
        });
        let Some(key) = key else {
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
            let reach = |path: &CheckedPath| self.reach(router, second, path);
            let twin = template.sample(key.as_str(), reach)?;
            Some(SharedKey {
                key: key.clone(),
                routes: [first, second],
                requests: [rule.shown(&sample.raw), other.shown(&twin.raw_path)],
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

    /// The captures of a path, if it leads to this route and is allowed there.
    fn reach(&self, router: &Router, at: usize, path: &CheckedPath) -> Option<Captures> {
        let (found, captures) = router.find(path)?;
        let rule = self.routes.get(found).filter(|_| found == at)?;
        let allowed = path.oddity_not_in(rule.allow).is_none();
        allowed.then_some(captures)
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
    /// The request, with a method that the route allows.
    fn shown(&self, path: &str) -> String {
        let put = self.methods.get("PUT").or(self.methods.first());
        format!("{} {path}", put.map_or("PUT", String::as_str))
    }
}
