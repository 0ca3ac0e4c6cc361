//! Warnings about routes that are valid and may leave a hole: a spelling beside an enforced route
//! that a wider route lets through, a thing that goes with another one, a key that names no thing,
//! a capture that is none, a key that requests of two routes share, and claims beside routes that
//! every client may use.
//!
//! A template escapes its own separators, and knows nothing of another one's: `{name}` and
//! `order:{id}` can yield the same key. [`shared_keys`] does not decide whether two templates can.
//! It shows a few keys of each route to all other templates. A request of each route proves a
//! finding.

use super::clients::ClaimSettings;
use super::judging::Mode;
use super::route::RouteSettings;
use super::yaml::{Report, shown};
use crate::routing::{CheckedPath, KeyTemplate, Pattern, ResourceKey, Router, SamplePaths, Source};

/// Warns of routes that are valid and may leave a hole.
pub(super) fn routes(routes: &[(String, &RouteSettings)], report: &mut Report) {
    // Conflicts have been reported.
    let (paths, _) = Router::new(routes.iter().map(|(_, route)| &route.path));
    for (index, (at, wide)) in routes.iter().enumerate() {
        let takes = |path: &str| {
            let path = CheckedPath::parse(path).ok();
            path.and_then(|path| paths.find(&path)) == Some(index)
        };
        let others = || routes.iter().map(|(_, route)| *route);
        let passed = others().filter(|narrow| around(at, (wide, narrow), takes, report));
        if passed.count() == 0 {
            others().any(|below| parent(at, (wide, below), takes, report));
        }
        placeholder(at, wide, report);
        one_key(at, wide, report);
    }
}

/// Warns of a route that lets more through than another one, and gets spellings of its paths.
/// Returns true if there are any, and it does not enforce.
fn around(
    at: &str,
    (wide, narrow): (&RouteSettings, &RouteSettings),
    takes: impl Fn(&str) -> bool,
    report: &mut Report,
) -> bool {
    let (how, other_does) = match (wide.mode, narrow.mode) {
        (Mode::Observe, Mode::Enforce) => ("only observes", "enforces that"),
        (Mode::Bypass, Mode::Enforce) => ("lets through without a check", "enforces that"),
        _ if wide.require_client.is_empty() && !narrow.require_client.is_empty() => {
            ("accepts from every client", "does not")
        }
        _ => return false,
    };
    let spellings = spellings(&narrow.path).filter(|spelling| takes(spelling));
    let spellings: Vec<String> = spellings.map(|spelling| format!("`{spelling}`")).collect();
    let text = format!(
        "this route {how} {}, which the upstream may take for `{}`, and {} {other_does}\n\
         leave this route out, or list narrower paths, unless the upstream answers these spellings \
         with 404",
        spellings.join(" and "),
        narrow.path.example(),
        narrow.path,
    );
    report.warn_if(!spellings.is_empty(), &format!("{at}.path"), text);
    !spellings.is_empty() && wide.mode != Mode::Enforce
}

/// The same path with a slash at its end, or without it, and with a capital letter.
fn spellings(pattern: &Pattern) -> impl Iterator<Item = String> {
    let example = pattern.example();
    let slash = match example.strip_suffix('/') {
        Some("") => None,
        Some(without) => Some(without.to_owned()),
        None => Some(format!("{example}/")),
    };
    // Of its first literal segment: `/Orders/x`.
    let capital = pattern.literal(0).and_then(|literal| {
        let mut letters = literal.chars();
        let first = letters.next()?.to_ascii_uppercase();
        let capital = format!("{first}{}", letters.as_str());
        let rest = example.strip_prefix(&format!("/{literal}"))?;
        (capital != literal).then(|| format!("/{capital}{rest}"))
    });
    slash.into_iter().chain(capital)
}

/// Warns of a route whose DELETE can remove what another one enforces under another key: many
/// servers remove all that is below a path (RFC 4918, 9.6.1). COPY and MOVE replace it.
fn parent(
    at: &str,
    (above, below): (&RouteSettings, &RouteSettings),
    takes: impl Fn(&str) -> bool,
    report: &mut Report,
) -> bool {
    let removes = |method: &&str| above.mode == Mode::Bypass || above.methods.contains(*method);
    let method = ["DELETE", "MOVE", "COPY"].into_iter().find(removes);
    // With a segment in its `{*rest}`.
    let mut path = below.path.example();
    if below.path.takes(below.path.segments() + 1, false) {
        path = format!("{}/x", path.trim_end_matches('/'));
    }
    let ends = path.match_indices('/').skip(1);
    let parents = ends.flat_map(|(end, _)| [&path[..=end], &path[..end]]);
    let parent = parents.filter(|parent| takes(parent)).last();
    let (Some(method), Some(parent), Mode::Enforce) = (method, parent, below.mode) else {
        return false;
    };
    if above.path == below.path || same_key(above, below) {
        return false;
    }
    let text = format!(
        "{method} of `{parent}` can take away what is below it, such as `{path}`, which {} fences \
         by a key of its own\n\
         give both one key, or leave the method out, unless the upstream keeps what is below",
        below.path,
    );
    report.warn(format!("{at}.methods"), text);
    true
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
        let is_capture = match segment.as_bytes() {
            [b':', ..] | [b'<', .., b'>'] | [b'[', .., b']'] | [b'(', .., b')'] => true,
            [b'$', name @ ..] => name.to_ascii_lowercase().ends_with(b"id"),
            _ => false,
        };
        let text = format!(
            "`{segment}` is literal text here, and matches no other segment\n\
             `{{id}}` takes any one segment, and `{{*rest}}` the rest; write `%3A` for a literal `:`",
        );
        report.warn_if(is_capture, &format!("{at}.path"), text);
    }
}

/// Warns of a key that is the same for all paths of a route that names captures.
fn one_key(at: &str, route: &RouteSettings, report: &mut Report) {
    let Some(key) = route.key.as_ref().filter(|_| route.mode != Mode::Bypass) else {
        return;
    };
    let names = route.path.names().map(|name| format!("{{{name}}}"));
    let names: Vec<String> = names.collect();
    let tells_apart = key.parts().any(|source| *source != Source::Host);
    let is_one = !names.is_empty() && !tells_apart;
    let text = format!(
        "all paths of {} have one key, `{}`, so a token for one of them makes the holders of all \
         others stale\n\
         name what it is about, such as {}, unless one lock guards them all",
        route.path,
        key.as_str(),
        names.join(", ")
    );
    report.warn_if(is_one, &format!("{at}.resource"), text);
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
    let mut enforced = routes.iter().filter(|route| route.mode == Mode::Enforce);
    if let Some(open) = enforced.find(|route| route.require_client.is_empty()) {
        let text = format!(
            "requests with a token raise marks as claims do, and the route {} accepts them from \
             every client\n\
             give the route a require_client, or restrict who can reach the port",
            open.path
        );
        report.warn(at, text);
    }
}

/// A route with a key, and some of its paths with their keys.
struct Fenced<'a> {
    index: usize,
    route: &'a RouteSettings,
    template: &'a KeyTemplate,
    keys: Vec<(String, ResourceKey)>,
}

/// Warns of every two fenced routes that share a key, if their templates, their token formats, or
/// the bounds of their tokens differ. Routes with the same template are meant to share it.
pub(super) fn shared_keys(routes: &[(String, &RouteSettings)], report: &mut Report) {
    let patterns = routes.iter().map(|(_, route)| &route.path);
    let paths = SamplePaths::new(patterns.clone());
    let (finder, _) = Router::new(patterns);
    // True if a path leads to this route and is allowed there.
    let reach = |index: usize, path: &CheckedPath| {
        finder.find(path) == Some(index) && path.oddity_not_in(routes[index].1.allow).is_none()
    };
    let fenced = routes.iter().enumerate().filter_map(|(index, (_, route))| {
        let template = route.key.as_ref().filter(|_| route.mode != Mode::Bypass)?;
        // A number, which all filters take.
        let mut value = |_: &Source| Ok(Some("7".to_owned()));
        let samples = paths.of([Some(&route.path), None]).into_iter();
        let reached = samples.filter(|sample| reach(index, &sample.path));
        let keys = reached
            .filter_map(|sample| {
                Some((sample.raw, template.render(&sample.path, &mut value).ok()?))
            })
            .collect();
        Some(Fenced {
            index,
            route,
            template,
            keys,
        })
    });
    let fenced: Vec<Fenced<'_>> = fenced.collect();
    let proof = |one: &Fenced<'_>, other: &Fenced<'_>| {
        one.keys.iter().find_map(|(path, key)| {
            let twin = (other.template).sample(key.as_str(), |path| reach(other.index, path))?;
            let (first, second) = (method(one.route), method(other.route));
            let (route, other_route) = (&one.route.path, &other.route.path);
            Some(format!(
                "{first} {path} (route {route}) and {second} {twin} (route {other_route}) have the \
                 same key, {}",
                shown(key.as_str()),
            ))
        })
    };
    for (at, one) in fenced.iter().enumerate() {
        for other in &fenced[at + 1..] {
            let faults = faults(one, other);
            let proof =
                (!faults.is_empty()).then(|| proof(one, other).or_else(|| proof(other, one)));
            let Some(both) = proof.flatten() else {
                continue;
            };
            for fault in faults {
                let at = format!("{}.resource", routes[other.index].0);
                report.warn(at, format!("{both}{fault}"));
            }
        }
    }
}

/// The differences of two routes that matter if they share a key, each with a hint.
fn faults(one: &Fenced<'_>, other: &Fenced<'_>) -> Vec<&'static str> {
    let (token, other_token) = (one.route.token, other.route.token);
    let formats_differ = token.format != other_token.format;
    let bounds_differ = !formats_differ && token.bounds() != other_token.bounds();
    let mut faults = Vec::new();
    if formats_differ {
        faults.push(
            ", and their tokens are read in different formats\n\
             a claim of such a key is refused by X-Fencing-Resource: claim by X-Fencing-Target",
        );
    }
    if bounds_differ {
        faults.push(
            ", and `token.max_jump` or `token.max` of these routes differ: a token that one refuses \
             raises the mark by the other\n\
             give both the same bounds, the narrower ones",
        );
    }
    if !are_meant(one.template, other.template) {
        faults.push(
            ": if these are two things, one can lock the other out\n\
             begin each template with a word of its own, such as \"file:{name}\"",
        );
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
