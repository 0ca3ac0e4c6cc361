//! The checks of the routes, one by one and against each other.

use std::collections::BTreeMap;
use std::time::Duration;

use super::body;
use super::checks::positive;
use super::claim;
use super::idempotency;
use super::parts;
use super::peer;
use super::problems::{Report, shown};
use super::route_file::{RouteFile, RouteUpstreamFile};
use super::settings::{
    BarrierSettings, BodySettings, ClaimSettings, Mode, Reuse, RouteSettings, SafeMethods,
    UnknownStatuses, Unmatched, Upgrade,
};
use super::table::RouteTable;
use super::token;
use super::units::Time;
use crate::routing::{KeyTemplate, Pattern, Router, Source, names_a_peer};

/// What a route inherits.
#[derive(Clone, Debug)]
pub(super) struct Inherited {
    pub safe_methods: SafeMethods,
    pub upstream_timeout: Duration,
    pub unknown: UnknownStatuses,
    pub barrier: BarrierSettings,
    pub body: BodySettings,
    pub key_bytes: usize,
    /// Clients are asked for certificates, so that they have names.
    pub peers_are_named: bool,
}

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
            "name one, or leave `routes` out: then /{*path} fences every unsafe request, one resource \
             per path",
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
    }
    (checked.len() == count && count > 0)
        .then(|| checked.into_iter().map(|(_, settings)| settings).collect())
}

fn pattern(
    at: &str,
    path: Option<&str>,
    claim: Option<&str>,
    report: &mut Report,
) -> Option<Pattern> {
    let at = format!("{at}.path");
    let Some(path) = path else {
        report.error(
            at,
            "a route needs a path",
            "such as /orders/{id}, or /{*path} for every path",
        );
        return None;
    };
    if claim == Some(path) {
        report.error(
            at,
            "this is the path of the claim endpoint",
            "claims are answered there and never reach a route: choose another `claim.path`, or `claim: off`",
        );
        return None;
    }
    match Pattern::parse(path) {
        Ok(pattern) => Some(pattern),
        Err(error) => {
            report.error(at, error.to_string(), "");
            None
        }
    }
}

/// One route, with its path in the configuration.
fn route(
    at: &str,
    file: RouteFile,
    pattern: Option<Pattern>,
    inherited: &Inherited,
    report: &mut Report,
) -> Option<(String, RouteSettings)> {
    let path = file.path.clone().unwrap_or_default();
    let mode = file.mode.unwrap_or(Mode::Enforce);
    match mode {
        Mode::Enforce => {}
        Mode::Observe => report.warn(
            format!("{at}.mode"),
            "observe refuses nothing: stale writes reach the upstream and are only counted",
            "enforce, once the counts are what you expect",
        ),
        Mode::Bypass => ignored_by_bypass(at, &file, report),
    }
    let methods = match file.methods {
        Some(list) => parts::methods(&format!("{at}.methods"), list, report).map(Some),
        None => Some(None),
    };
    let allow = parts::allow(
        &format!("{at}.allow"),
        file.allow.unwrap_or_default(),
        report,
    );
    let (upstream_timeout, unknown) =
        upstream(at, file.upstream.unwrap_or_default(), inherited, report);
    let barrier = file.barrier.unwrap_or_default();
    let body = body::settings(
        &format!("{at}.body"),
        &file.body.unwrap_or_default(),
        inherited.body,
        report,
    );
    let key = resource(
        at,
        file.resource.as_deref(),
        mode,
        pattern.as_ref(),
        (body, inherited.peers_are_named),
        report,
    );
    let idempotency_off_or = file.idempotency;
    let idempotency = if mode == Mode::Bypass {
        None
    } else {
        idempotency::settings(&format!("{at}.idempotency"), idempotency_off_or, report)
    };
    if body.buffer == 0 && idempotency.as_ref().is_some_and(|i| i.key.needs_body()) {
        report.warn(
            format!("{at}.idempotency"),
            "`body.buffer` is 0: a request with a body that names no operation gets no key",
            "raise body.buffer, or take {operation} and {digest} out of the key",
        );
    }
    let require_client = peer::patterns(
        &format!("{at}.require_client"),
        file.require_client,
        inherited.peers_are_named,
        report,
    );
    let (token_format, token_bounds) = token::settings(at, file.token, report);
    let name = file
        .name
        .filter(|name| parts::label(&format!("{at}.name"), name, report));
    let settings = RouteSettings {
        label: name.unwrap_or_else(|| path.clone()),
        pattern: pattern?,
        path,
        methods: methods?,
        key: key?,
        mode,
        require_client,
        token_format,
        token_bounds,
        key_bytes: inherited.key_bytes,
        reuse: file.reuse.unwrap_or(Reuse::Allow),
        safe_methods: file.safe_methods.unwrap_or(inherited.safe_methods),
        upgrade: file.upgrade.unwrap_or(Upgrade::Refuse),
        allow,
        idempotency,
        upstream_timeout,
        unknown,
        barrier_wait: barrier.wait.map_or(inherited.barrier.wait, |time| time.0),
        barrier_grace: duration(
            &format!("{at}.barrier.grace"),
            barrier.grace,
            inherited.barrier.grace,
            report,
        ),
        body,
    };
    Some((at.to_owned(), settings))
}

/// How long the upstream may take, and which statuses leave the outcome open.
fn upstream(
    at: &str,
    file: RouteUpstreamFile,
    inherited: &Inherited,
    report: &mut Report,
) -> (Duration, UnknownStatuses) {
    let unknown = parts::unknown_statuses(
        &format!("{at}.upstream"),
        (file.unknown_statuses, file.unknown_grpc_statuses),
        &inherited.unknown,
        report,
    );
    let upstream_timeout = duration(
        &format!("{at}.upstream.timeout"),
        file.timeout,
        inherited.upstream_timeout,
        report,
    );
    if upstream_timeout > inherited.barrier.settle && upstream_timeout != inherited.upstream_timeout
    {
        longer_than_settle(format!("{at}.upstream.timeout"), report);
    }
    (upstream_timeout, unknown)
}

/// The key of what a route protects; `Some(None)` where it needs none, `None` where it is wrong.
#[expect(
    clippy::option_option,
    reason = "two kinds of nothing: needless, and wrong"
)]
fn resource(
    at: &str,
    template: Option<&str>,
    mode: Mode,
    pattern: Option<&Pattern>,
    (body, peers_are_named): (BodySettings, bool),
    report: &mut Report,
) -> Option<Option<KeyTemplate>> {
    let at = format!("{at}.resource");
    let Some(template) = template else {
        if mode == Mode::Bypass {
            return Some(None);
        }
        report.error(
            at,
            "this route has no resource key",
            "name it by parts of the request, such as \"order:{id}\" or \"{path}\"; or say `mode: bypass`",
        );
        return None;
    };
    let key = parts::key(&at, template, pattern?, report)?;
    if key.uses_json() && body.buffer == 0 {
        report.error(
            at.as_str(),
            "the key is taken from the body, and `body.buffer` is 0: no body is ever read",
            "raise body.buffer to the size of the longest body",
        );
    }
    if peers_are_named {
        no_identity(&at, &key, report);
    }
    Some(Some(key))
}

/// A key of what a client says of its certificate, where that is taken off every request.
fn no_identity(at: &str, key: &KeyTemplate, report: &mut Report) {
    let taken_off = key.parts().find(|source| match source {
        Source::Header(name) => names_a_peer(name),
        _ => false,
    });
    if let Some(source) = taken_off {
        report.error(
            at,
            format!(
                "{source} says who a client is by its certificate: with `tls.client_ca_file` it is taken off, so \
                 that every request would be a 400"
            ),
            "name what the request is about",
        );
    }
}

/// Warns of a route whose upstream may answer later than `barrier.settle` allows for.
pub(super) fn longer_than_settle(at: String, report: &mut Report) {
    report.warn(
        at,
        "the upstream is given longer than `barrier.settle` allows for: a request that breaks may \
         still take effect after a newer token has been admitted",
        "raise barrier.settle to the longest time that the upstream works on a request",
    );
}

fn duration(at: &str, time: Option<Time>, inherited: Duration, report: &mut Report) -> Duration {
    time.map_or(inherited, |time| positive(at, time.0, report))
}

/// An upstream of HTTP/2 has no upgrades (RFC 9113, 8.6).
pub(super) fn no_upgrades(routes: &[RouteSettings], report: &mut Report) {
    for (index, route) in routes.iter().enumerate() {
        if route.upgrade == Upgrade::Allow {
            report.error(
                format!("routes[{index}].upgrade"),
                "an upstream that speaks HTTP/2 opens no tunnels",
                "name it by http://, or leave upstream.http2 out, if it speaks HTTP/1.1 too; or refuse upgrades",
            );
        }
    }
}

fn ignored_by_bypass(at: &str, file: &RouteFile, report: &mut Report) {
    let upstream = file.upstream.as_ref();
    let unknown_statuses = upstream.is_some_and(|block| block.unknown_statuses.is_some());
    let unknown_grpc = upstream.is_some_and(|block| block.unknown_grpc_statuses.is_some());
    let given = [
        ("resource", file.resource.is_some()),
        ("token", file.token.is_some()),
        ("reuse", file.reuse.is_some()),
        ("safe_methods", file.safe_methods.is_some()),
        ("upgrade", file.upgrade.is_some()),
        ("idempotency", file.idempotency.is_some()),
        ("barrier", file.barrier.is_some()),
        ("upstream.unknown_statuses", unknown_statuses),
        ("upstream.unknown_grpc_statuses", unknown_grpc),
    ];
    let given: Vec<_> = given
        .into_iter()
        .filter(|(_, given)| *given)
        .map(|(name, _)| name)
        .collect();
    if !given.is_empty() {
        report.warn(
            format!("{at}.mode"),
            format!(
                "bypass forwards without looking, so these mean nothing: {}",
                given.join(", ")
            ),
            "remove them, or enforce",
        );
    }
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

/// Warns of wider routes that let everybody in where a narrower one does not: paths that are the narrower one's
/// to the upstream (with a slash behind, say) may be the wider one's here.
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
                    "this route takes paths around {} (with a slash or more behind it) from every client, and that \
                     one does not",
                    narrow.path
                ),
                "give this one a require_client too, or let the narrower path end in /{*rest}",
            );
        }
    }
}

/// Warns of two routes that are seen to yield one key though their templates, their token formats, or
/// the bounds of their tokens differ.
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
        // Of tokens that are read differently the bounds are, too.
        if shared.bounds_differ && !shared.formats_differ {
            report.warn(
                at.clone(),
                format!(
                    "{both}, and `token.max_jump` or `token.max` of these routes differ: a token that one refuses \
                     raises the mark by the other"
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
