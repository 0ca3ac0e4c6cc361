//! Warns of keys that requests of two routes share.
//!
//! A template escapes its own separators, and knows nothing of another one's: `{name}` and
//! `order:{id}` can yield the same key. This does not decide whether two templates can. It shows
//! a few keys of each route to all other templates. A request of each route proves a finding.

use std::collections::BTreeSet;

use crate::config::judging::Mode;
use crate::config::route::RouteSettings;
use crate::config::route_table::SamplePaths;
use crate::config::yaml::{Report, shown};
use crate::routing::{CheckedPath, KeyTemplate, Router, Source};

/// Warns of every two fenced routes that share a key, if their templates, their token formats, or
/// the bounds of their tokens differ. Routes with the same template are meant to share it.
pub(in crate::config) fn warn(routes: &[(String, &RouteSettings)], report: &mut Report) {
    let patterns = routes.iter().map(|(_, route)| &route.path);
    let paths = SamplePaths::new(patterns.clone());
    let (finder, _) = Router::new(patterns);
    // True if a path leads to this route and is allowed there.
    let reach = |at: usize, path: &CheckedPath| {
        finder.find(path) == Some(at) && path.oddity_not_in(routes[at].1.allow).is_none()
    };
    let fenced = || {
        let routes = routes.iter().map(|(_, route)| route).enumerate();
        let fenced = routes.filter(|(_, route)| route.mode != Mode::Bypass);
        fenced.filter_map(|(at, route)| Some((at, route, route.key.as_ref()?)))
    };
    let mut told = BTreeSet::new();
    for (first, one, template) in fenced() {
        for path in paths.of([Some(&one.path), None]) {
            // A number, which all filters take.
            let mut value = |_: &Source| Ok(Some("7".to_owned()));
            if !reach(first, &path.path) {
                continue;
            }
            let Ok(key) = template.render(&path.path, &mut value) else {
                continue;
            };
            for (second, other, twin) in fenced().filter(|(second, ..)| *second != first) {
                let faults = faults((one, template), (other, twin));
                let pair = (first.min(second), first.max(second));
                if faults.is_empty() || told.contains(&pair) {
                    continue;
                }
                let Some(twin) = twin.sample(key.as_str(), |path| reach(second, path)) else {
                    continue;
                };
                told.insert(pair);
                let both = format!(
                    "{} {} (route {}) and {} {} (route {}) have the same key, {}",
                    method(one),
                    path.raw,
                    one.path,
                    method(other),
                    twin,
                    other.path,
                    shown(key.as_str()),
                );
                for (fault, hint) in faults {
                    let at = format!("{}.resource", routes[pair.1].0);
                    report.warn(at, format!("{both}{fault}"), hint);
                }
            }
        }
    }
}

/// The differences of two routes that matter if they share a key, each with a hint.
fn faults(
    (one, template): (&RouteSettings, &KeyTemplate),
    (other, twin): (&RouteSettings, &KeyTemplate),
) -> Vec<(&'static str, &'static str)> {
    let mut faults = Vec::new();
    if one.token.format != other.token.format {
        faults.push((
            ", and their tokens are read in different formats",
            "a claim of such a key is refused by X-Fencing-Resource: claim by X-Fencing-Target",
        ));
    } else if one.token.bounds() != other.token.bounds() {
        faults.push((
            ", and `token.max_jump` or `token.max` of these routes differ: a token that one refuses \
             raises the mark by the other",
            "give both the same bounds, the narrower ones",
        ));
    }
    if !are_meant(template, twin) {
        faults.push((
            ": if these are two things, one can lock the other out",
            "begin each template with a word of its own, such as \"file:{name}\"",
        ));
    }
    faults
}

/// Returns true if these templates are meant to share keys: they have the same literals,
/// or one of them spells out what `{path}` is in the other.
fn are_meant(one: &KeyTemplate, other: &KeyTemplate) -> bool {
    let is_path = |template: &KeyTemplate| {
        let whole = template.parts().next() == Some(&Source::WholePath);
        whole && template.literals().next() == Some("/")
    };
    let spells = |template: &KeyTemplate| template.as_str().starts_with('/');
    one.literals().eq(other.literals())
        || (is_path(one) && spells(other))
        || (is_path(other) && spells(one))
}

/// A method that the route allows.
fn method(route: &RouteSettings) -> &str {
    let put = route.methods.get("PUT").or(route.methods.first());
    put.map_or("PUT", String::as_str)
}
