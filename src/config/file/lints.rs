//! Warnings about routes that are valid and may leave a hole: a spelling beside an enforced route
//! that a wider route lets through, a key that names no thing, a path with a slash at its end.

use crate::config::settings::{Mode, RouteSettings};
use crate::config::yaml::Report;
use crate::routing::{CheckedPath, Pattern, Router, Source};

/// Warns of routes that are valid and may leave a hole.
pub(super) fn routes(routes: &[(String, RouteSettings)], report: &mut Report) {
    let all = routes.iter().map(|(_, route)| route.pattern.clone());
    // Conflicts have been reported.
    let Ok(paths) = Router::new(all.collect()) else {
        return;
    };
    let enforced = || {
        routes
            .iter()
            .filter(|(_, route)| route.mode == Mode::Enforce)
    };
    for (index, (at, wide)) in routes.iter().enumerate() {
        if wide.mode != Mode::Enforce {
            around(
                at,
                wide,
                |path| found(&paths, path) == Some(index),
                enforced(),
                report,
            );
        }
    }
    for (at, route) in routes {
        one_key(at, route, report);
        slash_at_the_end(at, route, routes, report);
    }
}

fn found(paths: &Router, path: &str) -> Option<usize> {
    let path = CheckedPath::parse(path).ok()?;
    paths.find(&path).map(|(index, _)| index)
}

/// Warns of a route that lets requests through, and gets spellings of an enforced route's paths.
fn around<'a>(
    at: &str,
    wide: &RouteSettings,
    takes: impl Fn(&str) -> bool,
    enforced: impl Iterator<Item = &'a (String, RouteSettings)>,
    report: &mut Report,
) {
    for (_, route) in enforced {
        let example = route.pattern.example();
        let spellings: Vec<String> = spellings(&route.pattern)
            .into_iter()
            .filter(|spelling| takes(spelling))
            .map(|spelling| format!("`{spelling}`"))
            .collect();
        if spellings.is_empty() {
            continue;
        }
        let how = match wide.mode {
            Mode::Observe => "only observes",
            _ => "lets through without a check",
        };
        report.warn(
            format!("{at}.path"),
            format!(
                "this route {how} {}, which the upstream may take for `{example}`, and {} enforces \
                 that",
                spellings.join(" and "),
                route.path
            ),
            "leave this route out (`unmatched` then lets only GET, HEAD and OPTIONS pass), or list \
             narrower paths, unless the upstream answers these spellings with 404; `fencepost \
             explain` shows which route a request gets",
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
    let names: Vec<String> = route
        .pattern
        .names()
        .map(|name| format!("{{{name}}}"))
        .collect();
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
    routes: &[(String, RouteSettings)],
    report: &mut Report,
) {
    let Some(without) = route
        .pattern
        .as_str()
        .strip_suffix('/')
        .filter(|path| !path.is_empty())
    else {
        return;
    };
    let has_twin = routes
        .iter()
        .any(|(_, other)| other.pattern.as_str() == without);
    if !has_twin {
        report.warn(
            format!("{at}.path"),
            format!("it ends in a slash, and `{without}` is another path, which it does not match"),
            "remove the slash, or give both a route",
        );
    }
}
