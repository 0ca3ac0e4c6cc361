//! The checks of all routes: [each](super::route) by itself, and against each other.

use std::collections::BTreeMap;

use super::route::{Inherited, RouteFile, pattern, route};
use super::{claim, lints};
use crate::config::route_table::RouteTable;
use crate::config::settings::{ClaimSettings, RouteSettings, Unmatched};
use crate::config::yaml::{Report, shown};
use crate::routing::{Pattern, Router};

/// Checks all routes. `None` if one of them is wrong.
pub(super) fn routes(
    list: Vec<Option<RouteFile>>,
    inherited: &Inherited,
    claim: Option<&ClaimSettings>,
    report: &mut Report,
) -> Option<Vec<RouteSettings>> {
    if list.is_empty() {
        report.error(
            "routes",
            "there are no routes, so nothing is fenced",
            "name one, or leave `routes` out: then /{*path} fences POST, PUT, PATCH and DELETE, one \
             resource per path",
        );
    }
    let count = list.len();
    let mut checked = Vec::with_capacity(count);
    let mut patterns = Vec::new();
    for (index, file) in list.into_iter().enumerate() {
        let at = format!("routes[{index}]");
        let Some(file) = file else {
            report.error(
                at,
                "this route is empty",
                "give it a path and a resource, or remove it",
            );
            continue;
        };
        let claim_path = claim.map(|claim| claim.path.as_str());
        let pattern = pattern(&at, file.path.as_deref(), claim_path, report);
        patterns.extend(pattern.clone().map(|pattern| (index, pattern)));
        checked.extend(route(&at, file, pattern, inherited, report));
    }
    conflicts(&patterns, report);
    labels(&checked, report);
    ways_around(&checked, report);
    if let Some(claim) = claim {
        claim::ways_around(claim, checked.iter().map(|(_, route)| route), report);
    }
    if checked.len() == count {
        shared_keys(&checked, report);
        lints::routes(&checked, report);
    }
    (checked.len() == count && count > 0)
        .then(|| checked.into_iter().map(|(_, settings)| settings).collect())
}

fn labels(routes: &[(String, RouteSettings)], report: &mut Report) {
    let mut seen: BTreeMap<&str, &RouteSettings> = BTreeMap::new();
    for (at, route) in routes {
        if let Some(first) = seen.insert(&route.label, route)
            && first.path != route.path
        {
            report.error(
                format!("{at}.name"),
                format!(
                    "the routes {} and {} are both called {}",
                    first.path,
                    route.path,
                    shown(&route.label)
                ),
                "metrics could not tell them apart: give each its own name",
            );
        }
    }
}

/// Warns of wider routes that accept every client while a narrower one does not. A path that
/// matches the wider route here (one with a trailing slash, for example) may belong to the narrower
/// one for the upstream.
fn ways_around(routes: &[(String, RouteSettings)], report: &mut Report) {
    for (at, wide) in routes {
        let open = wide.require_client.is_empty();
        let around = routes.iter().find(|(_, route)| {
            !route.require_client.is_empty() && wide.pattern.surrounds(&route.pattern)
        });
        if let Some((_, narrow)) = around.filter(|_| open) {
            report.warn(
                format!("{at}.path"),
                format!(
                    "this route accepts paths around {} (with a trailing slash or more) from every \
                     client, and that one does not",
                    narrow.path
                ),
                "give this one a require_client too, or let the narrower path end in /{*rest}",
            );
        }
    }
}

/// Warns of two routes that share a key although their templates, their token formats, or the
/// bounds of their tokens differ.
fn shared_keys(routes: &[(String, RouteSettings)], report: &mut Report) {
    let table = RouteTable::of_routes(routes.iter().map(|(_, route)| route), Unmatched::Refuse);
    let bounds = |index: usize| routes.get(index).map(|(_, route)| route.token_bounds);
    for shared in table.shared_keys(|one, other| bounds(one) != bounds(other)) {
        let [(_, first), (_, second)] = shared.routes.map(|index| &routes[index]);
        let later = shared.routes.into_iter().max().unwrap_or_default();
        let at = format!("{}.resource", routes[later].0);
        let both = format!(
            "{} (route {}) and {} (route {}) have the same key, {}",
            shared.requests[0],
            first.path,
            shared.requests[1],
            second.path,
            shown(shared.key.as_str()),
        );
        if shared.formats_differ {
            report.warn(
                at.clone(),
                format!("{both}, and their tokens are read in different formats"),
                "a claim of such a key is refused by X-Fencing-Resource: claim by X-Fencing-Target",
            );
        }
        // If the formats differ, the bounds do too.
        if shared.bounds_differ && !shared.formats_differ {
            report.warn(
                at.clone(),
                format!(
                    "{both}, and `token.max_jump` or `token.max` of these routes differ: a token \
                     that one refuses raises the mark by the other"
                ),
                "give both the same bounds, the narrower ones",
            );
        }
        if shared.templates_differ {
            report.warn(
                at,
                format!("{both}: if these are two things, one can lock the other out"),
                "begin each template with a word of its own, such as \"file:{name}\"",
            );
        }
    }
}

fn conflicts(patterns: &[(usize, Pattern)], report: &mut Report) {
    let all = patterns
        .iter()
        .map(|(_, pattern)| pattern.clone())
        .collect();
    let Err(conflicts) = Router::new(all) else {
        return;
    };
    for conflict in conflicts {
        let (Some((first, _)), Some((second, _))) =
            (patterns.get(conflict.first), patterns.get(conflict.second))
        else {
            continue;
        };
        report.error(
            format!("routes[{second}].path"),
            format!("{conflict} (routes[{first}] and routes[{second}])"),
            "make one of them more specific, or remove it",
        );
    }
}
