//! The checks of all routes: [each](super::route) by itself, and against each other.

use std::collections::BTreeMap;

use super::route::{Inherited, RouteFile, pattern, route};
use super::{claim, lints, shared_keys};
use crate::config::settings::{ClaimSettings, RouteSettings};
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
    if let Some(claim) = claim {
        claim::ways_around(claim, checked.iter().map(|(_, route)| route), report);
    }
    if checked.len() == count {
        shared_keys::warn(&checked, report);
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

fn conflicts(patterns: &[(usize, Pattern)], report: &mut Report) {
    let (_, conflicts) = Router::new(patterns.iter().map(|(_, pattern)| pattern));
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
