//! Warnings about routes that are valid and may leave a hole: a spelling beside an enforced route
//! that a wider route lets through, a thing that goes with another one, a key that names no thing, a
//! path with a slash at its end, and a capture that is none.

use crate::config::judging::Mode;
use crate::config::route::RouteSettings;
use crate::config::yaml::Report;
use crate::routing::{CheckedPath, Pattern, Router, Source};

/// Warns of routes that are valid and may leave a hole.
pub(in crate::config) fn routes(routes: &[(String, &RouteSettings)], report: &mut Report) {
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
