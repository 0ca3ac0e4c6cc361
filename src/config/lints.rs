//! Warnings about routes that are valid and may leave a hole: a spelling beside an enforced route
//! that a wider route lets through, a thing that goes with another one, a key that names no thing,
//! a path with a slash at its end, a capture that is none, a key that requests of two routes share,
//! and claims beside routes that every client may use.
//!
//! A template escapes its own separators, and knows nothing of another one's: `{name}` and
//! `order:{id}` can yield the same key. [`shared_keys`] does not decide whether two templates can.
//! It shows a few keys of each route to all other templates. A request of each route proves a
//! finding.

use std::collections::BTreeSet;

use super::clients::ClaimSettings;
use super::judging::Mode;
use super::route::RouteSettings;
use super::sample_paths::SamplePaths;
use super::yaml::{Report, shown};
use crate::routing::{CheckedPath, KeyTemplate, Pattern, Router, Source};

/// Warns of routes that are valid and may leave a hole.
pub(super) fn routes(routes: &[(String, &RouteSettings)], report: &mut Report) {
    // Conflicts have been reported.
    let (paths, _) = Router::new(routes.iter().map(|(_, route)| &route.path));
    let all = routes.iter();
    let enforced = || all.clone().filter(|(_, route)| route.mode == Mode::Enforce);
    for (index, (at, wide)) in routes.iter().enumerate() {
        let takes = |path: &str| found(&paths, path) == Some(index);
        let how = match wide.mode {
            Mode::Enforce => None,
            Mode::Observe => Some("only observes"),
            Mode::Bypass => Some("lets through without a check"),
        };
        let is_told =
            how.is_some_and(|how| around(at, (how, "enforces that"), takes, enforced(), report));
        if wide.require_client.is_empty() {
            let guarded = all
                .clone()
                .filter(|(_, route)| !route.require_client.is_empty());
            let how = ("accepts from every client", "does not");
            around(at, how, takes, guarded, report);
        }
        if !is_told {
            parent(at, wide, takes, enforced(), report);
        }
    }
    for (at, route) in routes {
        placeholder(at, route, report);
        one_key(at, route, report);
        slash_at_the_end(at, route, routes, report);
    }
}

fn found(paths: &Router, path: &str) -> Option<usize> {
    paths.find(&CheckedPath::parse(path).ok()?)
}

/// Warns of a route that lets more through than others, and gets spellings of their paths. Returns
/// true if there are any.
fn around<'a>(
    at: &str,
    (how, others_do): (&str, &str),
    takes: impl Fn(&str) -> bool,
    others: impl Iterator<Item = &'a (String, &'a RouteSettings)>,
    report: &mut Report,
) -> bool {
    let mut any = false;
    for (_, route) in others {
        let example = route.path.example();
        let spellings: Vec<String> = spellings(&route.path)
            .into_iter()
            .filter(|spelling| takes(spelling))
            .map(|spelling| format!("`{spelling}`"))
            .collect();
        if spellings.is_empty() {
            continue;
        }
        any = true;
        report.warn(
            format!("{at}.path"),
            format!(
                "this route {how} {}, which the upstream may take for `{example}`, and {} \
                 {others_do}",
                spellings.join(" and "),
                route.path
            ),
            "leave this route out (`unmatched` then lets only safe methods pass), or list \
             narrower paths, unless the upstream answers these spellings with 404; `fencepost \
             explain` shows which route a request gets",
        );
    }
    any
}

/// Warns of a route whose DELETE can remove what another one enforces under another key: many
/// servers remove all that is below a path (RFC 4918, 9.6.1). COPY and MOVE replace it.
fn parent<'a>(
    at: &str,
    above: &RouteSettings,
    takes: impl Fn(&str) -> bool,
    mut enforced: impl Iterator<Item = &'a (String, &'a RouteSettings)>,
    report: &mut Report,
) {
    let method = ["DELETE", "MOVE", "COPY"]
        .into_iter()
        .find(|method| above.mode == Mode::Bypass || above.methods.contains(*method));
    let Some(method) = method else { return };
    let below = enforced.find_map(|(_, route)| {
        let path = below(&route.path);
        let ends = path.match_indices('/').skip(1);
        let parents = ends.flat_map(|(end, _)| [&path[..=end], &path[..end]]);
        let parent = parents.filter(|parent| takes(parent)).last()?.to_owned();
        (above.path != route.path && !same_key(above, route)).then_some((parent, path, route))
    });
    if let Some((parent, path, route)) = below {
        report.warn(
            format!("{at}.methods"),
            format!(
                "{method} of `{parent}` can take away what is below it, such as `{path}`, which {} \
                 fences by a key of its own",
                route.path
            ),
            "give both one key, or leave the method out, unless the upstream keeps what is below",
        );
    }
}

/// A path of this pattern, with a segment in its `{*rest}`.
fn below(pattern: &Pattern) -> String {
    let example = pattern.example();
    if pattern.takes(pattern.segments() + 1, false) {
        format!("{}/x", example.trim_end_matches('/'))
    } else {
        example
    }
}

/// True if what is below a path of the first route has that path's key.
fn same_key(above: &RouteSettings, below: &RouteSettings) -> bool {
    let (Some(one), Some(other)) = (&above.key, &below.key) else {
        return false;
    };
    above.mode == Mode::Enforce && one.shape(|_| None) == other.shape(|_| None) && !other.grows()
}

/// Warns of a segment that is a capture in the patterns of other programs, and literal here.
fn placeholder(at: &str, route: &RouteSettings, report: &mut Report) {
    for segment in route.path.as_str().split('/') {
        let wrapped = [('<', '>'), ('[', ']'), ('(', ')')]
            .iter()
            .find_map(|(open, close)| segment.strip_prefix(*open)?.strip_suffix(*close));
        let id = |name: &&str| name.to_ascii_lowercase().ends_with("id");
        let inside = wrapped
            .or(segment.strip_prefix(':'))
            .or(segment.strip_prefix('$').filter(id));
        let Some(inside) = inside else { continue };
        let name = inside.rsplit([':', '.']).next().unwrap_or(inside);
        let name = name.to_ascii_lowercase();
        let capture = format!("/{{{name}}}");
        let capture = Pattern::parse(&capture).map_or("{id}".to_owned(), |_| format!("{{{name}}}"));
        report.warn(
            format!("{at}.path"),
            format!("`{segment}` is literal text here, and matches no other segment"),
            &format!(
                "`{capture}` takes any one segment, and `{{*rest}}` all that are left; literal text \
                 with this sign can be written with `%{:02X}`",
                segment.as_bytes()[0]
            ),
        );
    }
}

/// The same path with a slash at its end, or without it, and with capital letters.
fn spellings(pattern: &Pattern) -> Vec<String> {
    let example = pattern.example();
    let slash = match example.strip_suffix('/') {
        Some("") => None,
        Some(without) => Some(without.to_owned()),
        None => Some(format!("{example}/")),
    };
    // Of its first literal segment: `/Orders/x`.
    let capital = pattern.literal(0).and_then(|literal| {
        let capital = literal[..1].to_ascii_uppercase() + &literal[1..];
        let rest = example.strip_prefix(&format!("/{literal}"))?;
        (capital != literal).then(|| format!("/{capital}{rest}"))
    });
    slash.into_iter().chain(capital).collect()
}

/// Warns of a key that is the same for all paths of a route that names captures.
fn one_key(at: &str, route: &RouteSettings, report: &mut Report) {
    let Some(key) = route.key.as_ref().filter(|_| route.mode != Mode::Bypass) else {
        return;
    };
    let names = route.path.names().map(|name| format!("{{{name}}}"));
    let names: Vec<String> = names.collect();
    let tells_apart = key.parts().any(|source| *source != Source::Host);
    if !names.is_empty() && !tells_apart {
        report.warn(
            format!("{at}.resource"),
            format!(
                "all paths of {} have one key, `{}`, so a token for one of them makes the holders of \
                 all others stale",
                route.path,
                key.as_str()
            ),
            &format!("name what it is about, such as {}, unless one lock guards them all", names.join(", ")),
        );
    }
}

/// Warns of a path that only matches with its slash.
fn slash_at_the_end(
    at: &str,
    route: &RouteSettings,
    routes: &[(String, &RouteSettings)],
    report: &mut Report,
) {
    let path = route.path.as_str();
    let Some(without) = path.strip_suffix('/').filter(|path| !path.is_empty()) else {
        return;
    };
    let mut others = routes.iter().map(|(_, other)| other.path.as_str());
    if others.all(|other| other != without) {
        report.warn(
            format!("{at}.path"),
            format!("it ends in a slash, and `{without}` is another path, which it does not match"),
            "remove the slash, or give both a route",
        );
    }
}

/// Warns of routes by which every client raises marks, where only some clients may claim.
pub(super) fn ways_around_claims(
    claim: &ClaimSettings,
    routes: &[RouteSettings],
    report: &mut Report,
) {
    let limits = [
        ("claim.require_client", !claim.require_client.is_empty()),
        ("claim.addresses", claim.addresses.is_some()),
        ("claim.token_file", claim.tokens.is_some()),
    ];
    let Some((at, _)) = limits.into_iter().find(|(_, given)| *given) else {
        return;
    };
    let is_open =
        |route: &&RouteSettings| route.mode == Mode::Enforce && route.require_client.is_empty();
    if let Some(open) = routes.iter().find(is_open) {
        report.warn(
            at,
            format!(
                "requests with a token raise marks as claims do, and the route {} accepts them \
                 from every client",
                open.path
            ),
            "give the route a require_client, or restrict who can reach the port",
        );
    }
}

/// Warns of every two fenced routes that share a key, if their templates, their token formats, or
/// the bounds of their tokens differ. Routes with the same template are meant to share it.
pub(super) fn shared_keys(routes: &[(String, &RouteSettings)], report: &mut Report) {
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
