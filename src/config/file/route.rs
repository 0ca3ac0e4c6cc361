//! One route: its fields as they are written, and their checks.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::body::{self, BodyFile};
use super::idempotency::{self, IdempotencyFile};
use super::require_client;
use super::route_fields;
use super::token::{self, TokenFile};
use super::units::{OffOr, Time};
use super::unknown_statuses::HTTP;
use super::upstream::longer_than_settle;
use super::values::positive;
use crate::config::settings::{
    BarrierSettings, BodySettings, ClientKey, IdempotencySettings, Mode, Reuse, RouteSettings,
    SafeMethods, UnknownStatuses,
};
use crate::config::yaml::Report;
use crate::routing::{DEFAULT_METHODS, KeyTemplate, Pattern, Source, names_a_peer};

/// The default of `reuse`.
const REUSE: Reuse = Reuse::Allow;

/// A route: which requests are fenced, and by which key.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Route", extend("required" = ["path"]))]
pub struct RouteFile {
    /// The name in metrics and logs. The default is the path.
    pub name: Option<String>,
    /// `{name}` matches one segment; `{*rest}`, at the end, matches any number, including zero. A
    /// slash at the end is part of the path: `/orders/{id}` does not match `/orders/42/`.
    pub path: Option<String>,
    /// The unsafe methods that pass; others get a 405. The default is POST, PUT, PATCH and DELETE.
    /// COPY and MOVE also write what `Destination` names, so that must have the same key.
    #[schemars(with = "Option<Vec<String>>")]
    pub methods: Option<Vec<Option<String>>>,
    /// The key of the protected resource: text with `{name}` of the path, `{header.x-tenant}`,
    /// `{query.q}`, `{json.order_id}`, `{host}` or `{path}`, each with filters: `{id|lower}`,
    /// `{id|int}`, and `{id|plain}`, which accepts letters, digits, `-` and `_` and refuses
    /// everything else. Required unless the mode is bypass. A change gives the same things other
    /// marks, and needs `fencepost migrate --accept-new-keys`.
    pub resource: Option<String>,
    /// `enforce`; `observe`: refuse nothing, and count what would be refused; `bypass`: forward
    /// without a check.
    pub mode: Mode,
    /// The clients that may use the route, by the names in their certificates; others get a 403. A
    /// URI (`spiffe://cluster/ns/pay/sa/worker`) is compared as a whole, a DNS name as a whole
    /// without case; `*.pay.svc` is any one label before `.pay.svc`. Names are the DNS names and
    /// URIs of the certificate's SAN; its common name does not count (RFC 9525). Needs
    /// `tls.client_ca_file`. This is access control, not fencing: it applies in every mode, to
    /// every method, and to claims.
    #[schemars(with = "Option<Vec<String>>")]
    pub require_client: Option<Vec<Option<String>>>,
    /// The format of tokens, and their bounds.
    pub token: Option<TokenFile>,
    /// `allow`: several requests may carry the same token. `once`: each token passes once.
    #[schemars(extend("default" = REUSE))]
    pub reuse: Option<Reuse>,
    /// The treatment of safe methods. The default is that of the top level.
    pub safe_methods: Option<SafeMethods>,
    /// Spellings of a path that are refused as ambiguous by default and harmless with this
    /// upstream: `semicolon`, `empty-segments`, `encoded-slash`, `raw-characters`. And
    /// `any-destination`: what COPY and MOVE name in `Destination` is not checked.
    #[schemars(with = "Option<Vec<String>>")]
    pub allow: Option<Vec<Option<String>>>,
    /// The `Idempotency-Key` that is sent upstream: `off`, or a block. If absent, it is on with its
    /// defaults.
    pub idempotency: Option<OffOr<IdempotencyFile>>,
    /// Overrides of the top level's `upstream`.
    pub upstream: RouteUpstreamFile,
    /// Overrides of the top level's `barrier`.
    pub barrier: Option<RouteBarrierFile>,
    /// Overrides of the top level's `body`.
    pub body: BodyFile,
}

/// A route's overrides of `upstream`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "RouteUpstream")]
pub struct RouteUpstreamFile {
    /// The time for the head of a response.
    pub timeout: Option<Time>,
    /// Statuses that leave the outcome of a request unknown, in place of the top level's.
    #[schemars(with = "Option<Vec<u16>>")]
    pub unknown_statuses: Option<Vec<Option<u16>>>,
}

/// A route's overrides of `barrier`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "RouteBarrier")]
pub struct RouteBarrierFile {
    /// The longest wait of a request for older ones of its resource.
    pub wait: Option<Time>,
    /// The time for older exchanges once a newer token waits.
    pub grace: Option<Time>,
}

/// The settings that a route inherits.
#[derive(Clone, Debug)]
pub(super) struct Inherited {
    pub safe_methods: SafeMethods,
    pub upstream_timeout: Duration,
    pub unknown: UnknownStatuses,
    pub barrier: BarrierSettings,
    pub body: BodySettings,
    pub key_bytes: usize,
    /// Clients are asked for certificates, so they have names.
    pub clients_are_named: bool,
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
            "claims are answered there and never reach a route: choose another `claim.path`, or \
             `claim: off`",
        );
        return None;
    }
    match Pattern::parse(path) {
        Ok(pattern) => Some(pattern),
        Err(error) => {
            report.error(at, error, "");
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
    let mode = file.mode;
    doubtful_mode(at, mode, &file, report);
    let methods = match file.methods {
        Some(list) => route_fields::methods(&format!("{at}.methods"), list, report),
        None => Some(DEFAULT_METHODS.map(str::to_owned).into()),
    };
    let allow = route_fields::allow(
        &format!("{at}.allow"),
        file.allow.unwrap_or_default(),
        report,
    );
    let (upstream_timeout, unknown) = upstream(at, file.upstream, inherited, report);
    let barrier = file.barrier.unwrap_or_default();
    let body = body::settings(&format!("{at}.body"), &file.body, inherited.body, report);
    let key = resource(
        at,
        file.resource.as_deref(),
        mode,
        pattern.as_ref(),
        (body, inherited.clients_are_named),
        report,
    );
    let idempotency = idempotency_of(at, file.idempotency, mode, body, report);
    if let (Some(Some(key)), Some(idempotency)) = (&key, &idempotency) {
        no_replaced_key(at, key, idempotency, report);
    }
    let require_client = require_client::settings(
        &format!("{at}.require_client"),
        file.require_client,
        inherited.clients_are_named,
        report,
    );
    let (token_format, token_bounds) = token::settings(at, &file.token.unwrap_or_default(), report);
    let name = file
        .name
        .filter(|name| route_fields::label(&format!("{at}.name"), name, report));
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
        reuse: file.reuse.unwrap_or(REUSE),
        safe_methods: file.safe_methods.unwrap_or(inherited.safe_methods),
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
        idempotency::settings(&at, block.unwrap_or_default(), report)
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

/// The time for the upstream, and the statuses that leave the outcome unknown.
fn upstream(
    at: &str,
    file: RouteUpstreamFile,
    inherited: &Inherited,
    report: &mut Report,
) -> (Duration, UnknownStatuses) {
    let mut unknown = inherited.unknown.clone();
    if let Some(list) = file.unknown_statuses {
        unknown.http = HTTP.read(&format!("{at}.upstream.unknown_statuses"), list, report);
    }
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
    (body, clients_are_named): (BodySettings, bool),
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
            "name it with parts of the request, such as \"order:{id}\" or \"{path}\"; or say \
             `mode: bypass`",
        );
        return None;
    };
    let key = route_fields::key(&at, template, pattern?, report)?;
    if key.uses_json() && body.buffer == 0 {
        report.error(
            at.as_str(),
            "the key is taken from the body, and `body.buffer` is 0: no body is ever read",
            "raise body.buffer to the size of the longest body",
        );
    }
    if clients_are_named {
        no_identity(&at, &key, report);
    }
    Some(Some(key))
}

/// Refuses a key made of a header that names the client, if that header is removed from every
/// request.
fn no_identity(at: &str, key: &KeyTemplate, report: &mut Report) {
    let taken_off = key.parts().find(|source| match source {
        Source::Header(name) => names_a_peer(name),
        _ => false,
    });
    if let Some(source) = taken_off {
        report.error(
            at,
            format!(
                "{source} names a client by its certificate: with `tls.client_ca_file` it is \
                 removed, so that every request would get a 400"
            ),
            "name what the request is about",
        );
    }
}

/// Refuses a key made of the header in whose place the proxy puts its own idempotency key.
fn no_replaced_key(
    at: &str,
    key: &KeyTemplate,
    idempotency: &IdempotencySettings,
    report: &mut Report,
) {
    let replaces = |source: &&Source| match source {
        Source::Header(name) => name.replace('_', "-") == idempotency.header,
        _ => false,
    };
    if idempotency.client_key != ClientKey::Keep
        && let Some(source) = key.parts().find(replaces)
    {
        report.error(
            format!("{at}.resource"),
            format!(
                "{source} is the header of the route's idempotency key, so the upstream does not \
                 get the client's"
            ),
            "name what the request is about, or say `idempotency.client_key: keep`",
        );
    }
}

fn duration(at: &str, time: Option<Time>, inherited: Duration, report: &mut Report) -> Duration {
    time.map_or(inherited, |time| positive(at, time, report))
}

fn ignored_by_bypass(at: &str, file: &RouteFile, report: &mut Report) {
    let given = [
        ("methods", file.methods.is_some()),
        ("resource", file.resource.is_some()),
        ("token", file.token.is_some()),
        ("reuse", file.reuse.is_some()),
        ("safe_methods", file.safe_methods.is_some()),
        ("idempotency", file.idempotency.is_some()),
        ("barrier", file.barrier.is_some()),
        (
            "upstream.unknown_statuses",
            file.upstream.unknown_statuses.is_some(),
        ),
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
                "bypass forwards without a check, so these have no effect: {}",
                given.join(", ")
            ),
            "remove them, or enforce",
        );
    }
}
