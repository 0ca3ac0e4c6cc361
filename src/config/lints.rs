//! Warnings about routes that are valid and may leave a hole: a spelling beside an enforced route
//! that a wider route lets through, a thing that goes with another one, a key that names no thing,
//! a capture that is none, keys that two routes share and not the bounds of tokens, and claims beside
//! routes that every client may use.

use super::clients::ClaimSettings;
use super::judging::Mode;
use super::route::{RouteSettings, path};
use super::yaml::Report;
use crate::routing::{CheckedPath, Pattern, Router, Source};

/// Warns of routes that are valid and may leave a hole.
pub(super) fn routes(routes: &[RouteSettings], report: &mut Report) {
    // Conflicts have been reported.
    let (paths, _) = Router::new(routes.iter().map(|route| &route.path));
    for (index, wide) in routes.iter().enumerate() {
        let at = &path(index);
        let takes = |path: &str| {
            let path = CheckedPath::parse(path).ok();
            path.and_then(|path| paths.find(&path)) == Some(index)
        };
        let others = || routes.iter();
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
    let mut capital = example.clone();
    if let (Some(_), Some(first)) = (pattern.literal(0), capital.get_mut(1..2)) {
        first.make_ascii_uppercase();
    }
    slash
        .into_iter()
        .chain((capital != example).then_some(capital))
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
    let Some(key) = route.fenced_key() else {
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

/// Warns of every two fenced routes that share keys, if their token formats or the bounds of their
/// tokens differ. They share keys if the templates have the same literals.
pub(super) fn shared_keys(routes: &[RouteSettings], report: &mut Report) {
    for (index, route) in routes.iter().enumerate() {
        for other in &routes[..index] {
            let (Some(key), Some(other_key)) = (route.fenced_key(), other.fenced_key()) else {
                continue;
            };
            let formats_differ = route.token.format != other.token.format;
            let fault = if formats_differ {
                "their tokens are read in different formats\n\
                 a claim of such a key is refused by X-Fencing-Resource: claim by X-Fencing-Target"
            } else {
                "`token.max_jump` or `token.max` of these routes differ: a token that one refuses \
                 raises the mark by the other\n\
                 give both the same bounds, the narrower ones"
            };
            let differ = formats_differ || route.token.bounds() != other.token.bounds();
            let is_shared = differ && key.literals().eq(other_key.literals());
            let text = format!(
                "{} shares keys with {}, and {fault}",
                route.path, other.path
            );
            report.warn_if(is_shared, &format!("{}.resource", path(index)), text);
        }
    }
}
