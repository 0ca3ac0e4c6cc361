//! The checks of one route, by itself.

use std::time::Duration;

use super::body;
use super::checks::positive;
use super::idempotency;
use super::parts;
use super::peer;
use super::problems::Report;
use super::route_file::{IdempotencyFile, RouteFile, RouteUpstreamFile};
use super::settings::{
    BarrierSettings, BodySettings, IdempotencySettings, Mode, Reuse, RouteSettings, SafeMethods,
    UnknownStatuses, Upgrade,
};
use super::token;
use super::units::{OffOr, Time};
use super::upstream::longer_than_settle;
use crate::routing::{KeyTemplate, Pattern, Source, names_a_peer};

/// The settings that a route inherits.
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

pub(super) fn pattern(
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
pub(super) fn route(
    at: &str,
    file: RouteFile,
    pattern: Option<Pattern>,
    inherited: &Inherited,
    report: &mut Report,
) -> Option<(String, RouteSettings)> {
    let path = file.path.clone().unwrap_or_default();
    let mode = file.mode.unwrap_or(Mode::Enforce);
    doubtful_mode(at, mode, &file, report);
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
    let idempotency = idempotency_of(at, file.idempotency, mode, body, report);
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

/// Warns of a mode that refuses nothing, and of what it makes meaningless.
fn doubtful_mode(at: &str, mode: Mode, file: &RouteFile, report: &mut Report) {
    match mode {
        Mode::Enforce => {}
        Mode::Observe => report.warn(
            format!("{at}.mode"),
            "observe refuses nothing: stale writes reach the upstream and are only counted",
            "enforce, once the counts are what you expect",
        ),
        Mode::Bypass => ignored_by_bypass(at, file, report),
    }
}

/// The key that is sent upstream; `None`: none is.
fn idempotency_of(
    at: &str,
    block: Option<OffOr<IdempotencyFile>>,
    mode: Mode,
    body: BodySettings,
    report: &mut Report,
) -> Option<IdempotencySettings> {
    let at = format!("{at}.idempotency");
    let idempotency = if mode == Mode::Bypass {
        None
    } else {
        idempotency::settings(&at, block, report)
    };
    if body.buffer == 0 && idempotency.as_ref().is_some_and(|i| i.key.needs_body()) {
        report.warn(
            at,
            "`body.buffer` is 0: a request with a body that names no operation gets no key",
            "raise body.buffer, or take {operation} and {digest} out of the key",
        );
    }
    idempotency
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

fn duration(at: &str, time: Option<Time>, inherited: Duration, report: &mut Report) -> Duration {
    time.map_or(inherited, |time| positive(at, time.0, report))
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
