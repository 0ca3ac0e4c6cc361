//! One route: which requests are fenced, by which key, and what differs from the top level.

use std::collections::BTreeSet;

use http::Method;
use serde::{Deserialize, Deserializer};

use super::clients::ClientPattern;
use super::judging::{
    ClientKey, IdempotencySettings, LookUp, Mode, OutcomeSettings, Reuse, SafeMethods,
    TokenSettings, UnknownOutcome,
};
use super::limits::{BarrierSettings, BodySettings};
use super::units::{OffOr, Positive, Time, word};
use super::upstream::{FinalStatus, UnknownStatuses, UpstreamSettings};
use super::yaml::{Report, blocks, not_one_of, wrong};
use crate::routing::{
    Allow, DEFAULT_METHODS, KeyTemplate, NAMING_OTHERS, Pattern, SAFE_METHODS, Source, is_replaced,
    names_a_peer,
};

/// Route labels that mean something else in metrics and logs.
const RESERVED_LABELS: [&str; 2] = ["claim", "unmatched"];

blocks! {
    /// A route: which requests are fenced, and by which key.
    #[schemars(extend("required" = ["path"]))]
    pub struct RouteSettings {
        /// The name in metrics and logs. The default is the path.
        name: Option<String>,
        /// `{name}` matches one segment; `{*rest}`, at the end, matches any number, including zero.
        /// A slash at the end is part of the path: `/orders/{id}` does not match `/orders/42/`.
        pub path: Pattern,
        /// The unsafe methods that pass; others get a 405. The default is POST, PUT, PATCH and
        /// DELETE. COPY and MOVE also write what `Destination` names, so that must have the same
        /// key.
        #[serde(deserialize_with = "methods")]
        #[schemars(extend("default" = ()))]
        pub methods: BTreeSet<String> = DEFAULT_METHODS.map(str::to_owned).into(),
        /// The key of the protected resource: text with `{name}` of the path, `{header.x-tenant}`,
        /// `{query.q}`, `{json.order_id}`, `{host}` or `{path}`, each with filters: `{id|lower}`,
        /// `{id|int}`, and `{id|plain}`, which accepts ASCII letters, digits, `-` and `_` and
        /// refuses everything else. Required unless the mode is bypass. A change gives the same things
        /// other marks, and needs `fencepost migrate --accept-new-keys`.
        resource: Option<String>,
        /// The template of the key; `None` only in bypass mode.
        #[serde(skip)]
        pub key: Option<KeyTemplate>,
        /// `enforce`; `observe`: refuse no token, and count what would be refused; `bypass`: forward
        /// without a check.
        pub mode: Mode = Mode::Enforce,
        /// The clients that may use the route, by the names in their certificates; others get a
        /// 403. A URI (`spiffe://cluster/ns/pay/sa/worker`) is compared as a whole, a DNS name as a
        /// whole without case; `*.pay.svc` is any one label before `.pay.svc`. Names are the DNS
        /// names and URIs of the certificate's SAN; its common name does not count (RFC 9525).
        /// Needs `tls.client_ca_file`. This is access control, not fencing: it applies in every
        /// mode, to every method, and to claims.
        pub require_client: Vec<ClientPattern>,
        /// The format of tokens, and their bounds.
        pub token: TokenSettings,
        /// `allow`: several requests may carry the same token. `once`: each token passes once.
        pub reuse: Reuse = Reuse::Allow,
        /// The treatment of safe methods. The default is that of the top level.
        #[schemars(extend("default" = ()))]
        pub safe_methods: SafeMethods = SafeMethods::Optional,
        /// Spellings of a path that are refused as ambiguous by default and harmless with this
        /// upstream: `semicolon`, `empty-segments`, `encoded-slash`, `raw-characters`. And
        /// `any-destination`: what COPY and MOVE name in `Destination` is not checked.
        #[serde(deserialize_with = "allow")]
        #[schemars(with = "Vec<AllowedSpelling>")]
        pub allow: Allow,
        /// The `Idempotency-Key` that is sent upstream: `off`, or a block. If absent, it is on with
        /// its defaults.
        pub idempotency: OffOr<IdempotencySettings> = OffOr(Some(IdempotencySettings::default())),
        /// Remembers what came of each operation: see the block. If absent, nothing is remembered.
        #[schemars(extend("default" = ()))]
        pub outcome: Option<OutcomeSettings>,
        /// Overrides of the top level's `upstream`.
        pub upstream: RouteUpstream,
        /// The statuses that leave the outcome of a request unknown.
        #[serde(skip)]
        pub unknown: UnknownStatuses,
        /// Overrides of the top level's `barrier`.
        pub barrier: RouteBarrier,
        /// Overrides of the top level's `body`.
        pub body: BodySettings,
    }

    /// A route's overrides of `upstream`.
    pub struct RouteUpstream {
        /// The time for the head of a response.
        #[schemars(extend("default" = ()))]
        pub timeout: Positive = UpstreamSettings::default().timeout,
        /// Statuses that leave the outcome of a request unknown, in place of the top level's.
        #[schemars(extend("default" = ()))]
        pub(super) unknown_statuses: Vec<FinalStatus> =
            UpstreamSettings::default().unknown_statuses,
    }

    /// A route's overrides of `barrier`.
    #[derive(Copy)]
    pub struct RouteBarrier {
        /// The longest wait of a request for older ones of its resource.
        #[schemars(extend("default" = ()))]
        pub wait: Time = BarrierSettings::default().wait,
        /// The time for older exchanges once a newer token waits.
        #[schemars(extend("default" = ()))]
        pub grace: Positive = BarrierSettings::default().grace,
    }
}

/// The fields that a route takes from the top level, where it does not set them itself.
pub(super) const INHERITED: [&str; 9] = [
    "safe_methods",
    "upstream.timeout",
    "upstream.unknown_statuses",
    "barrier.wait",
    "barrier.grace",
    "body.buffer",
    "body.max",
    "body.timeout",
    "body.progress_timeout",
];

word!(Pattern, Pattern::parse);

/// An unsafe method that a route can allow.
struct UnsafeMethod(String);

word!(UnsafeMethod, UnsafeMethod::parse);

impl UnsafeMethod {
    fn parse(name: &str) -> Result<Self, String> {
        let upper = name.to_ascii_uppercase();
        let (fault, hint) = match upper.as_str() {
            _ if Method::from_bytes(name.as_bytes()).is_err() => ("is not a method", "such as PUT"),
            method if SAFE_METHODS.contains(&method) => (
                "is a safe method, and this list is for unsafe ones",
                "remove it; `safe_methods` says how safe ones are judged",
            ),
            method if NAMING_OTHERS.contains(&method) => (
                "changes what its body or `Link` names, and no key covers that",
                "remove it; it is refused on all routes while one enforces",
            ),
            "TRACE" | "CONNECT" => ("is never forwarded", "remove it"),
            upper if upper != name => (
                "has lower-case letters",
                "methods are case-sensitive: write it in capitals",
            ),
            _ => return Ok(Self(name.to_owned())),
        };
        wrong(name, fault, hint)
    }
}

fn methods<'de, D: Deserializer<'de>>(input: D) -> Result<BTreeSet<String>, D::Error> {
    let methods = Vec::<UnsafeMethod>::deserialize(input)?;
    Ok(methods.into_iter().map(|method| method.0).collect())
}

/// A spelling that a route can allow.
struct AllowedSpelling(String);

word!(AllowedSpelling, |name| {
    let known = Allow::NAMES.contains(&name);
    known
        .then(|| AllowedSpelling(name.to_owned()))
        .ok_or_else(|| not_one_of(name, Allow::NAMES))
});

/// Also reads the list in a route table.
pub(super) fn allow<'de, D: Deserializer<'de>>(input: D) -> Result<Allow, D::Error> {
    let mut allow = Allow::default();
    for AllowedSpelling(name) in Vec::deserialize(input)? {
        allow.set(&name);
    }
    Ok(allow)
}

impl RouteSettings {
    /// The value of the `route` label: the route's `name`, else its path.
    pub fn label(&self) -> &str {
        self.name.as_deref().unwrap_or(self.path.as_str())
    }

    /// The key that goes upstream; `None`: none does.
    pub const fn idempotency(&self) -> Option<&IdempotencySettings> {
        self.idempotency.0.as_ref()
    }

    /// The template of the key, unless requests pass without a check.
    pub(super) fn fenced_key(&self) -> Option<&KeyTemplate> {
        self.key.as_ref().filter(|_| self.mode != Mode::Bypass)
    }

    /// Returns true if it has what it needs: a path, and a key if it judges requests.
    pub(super) fn is_whole(&self) -> bool {
        !self.path.as_str().is_empty() && (self.key.is_some() || self.mode == Mode::Bypass)
    }

    pub(super) fn check_name(&self, at: &str, report: &mut Report) {
        let Some(name) = &self.name else { return };
        let is_long = name.chars().count() > 128;
        let is_bad = name.trim().is_empty() || is_long || name.chars().any(char::is_control);
        let is_reserved = RESERVED_LABELS.contains(&name.as_str());
        let text = "the name is empty, longer than 128 characters, has control characters, or means \
                    something else in metrics\n\
                    a short word, such as orders; without a name, the path is taken";
        report.error_if(is_bad || is_reserved, at, text);
    }

    /// Checks what is remembered of operations.
    pub(super) fn check_outcome(&self, at: &str, report: &mut Report) {
        let Some(outcome) = &self.outcome else { return };
        let is_idle = |look_up: &LookUp| look_up.get.0.is_empty();
        let text = "a look-up needs a target\nsuch as /charges?op={operation}";
        let is_idle = outcome.look_up.as_ref().is_some_and(is_idle);
        report.error_if(is_idle, &format!("{at}.look_up.get"), text);
        let sends_twice =
            outcome.unknown == UnknownOutcome::Forward && self.idempotency().is_none();
        let text = "the upstream cannot tell that it gets an operation a second time: no \
                    Idempotency-Key is sent\nleave out `idempotency: off`, or say `unknown: refuse`";
        report.error_if(sends_twice, &format!("{at}.unknown"), text);
        let text = "`body.buffer` is 0, so no body is read whole: only requests without a body can be \
                    remembered\nraise body.buffer to the size of the longest body";
        report.warn_if(self.body.buffer.0 == 0, at, text);
    }

    /// Reads the template of the key.
    pub(super) fn check_key(&mut self, at: &str, clients_are_named: bool, report: &mut Report) {
        let Some(template) = &self.resource else {
            let text = "this route has no resource key\n\
                        such as \"order:{id}\" or \"{path}\"; or say `mode: bypass`";
            return report.error_if(self.mode != Mode::Bypass, at, text);
        };
        if self.path.as_str().is_empty() {
            return;
        }
        let key = match KeyTemplate::parse(template, &self.path) {
            Ok(key) => key,
            Err(error) => return report.error(at, error),
        };
        let text = "the key is taken from the body, and `body.buffer` is 0: no body is ever read\n\
                    raise body.buffer to the size of the longest body";
        report.error_if(key.uses_json() && self.body.buffer.0 == 0, at, text);
        for source in key.parts() {
            if let Source::Header(name) = source {
                self.check_header(at, (source, name), clients_are_named, report);
            }
        }
        self.key = Some(key);
    }

    /// Checks a header that the key is made of.
    fn check_header(
        &self,
        at: &str,
        (source, name): (&Source, &str),
        clients_are_named: bool,
        report: &mut Report,
    ) {
        let replaces = |block: &IdempotencySettings| {
            let keeps = block.client_key == ClientKey::Keep && self.outcome.is_none();
            !keeps && name.replace('_', "-") == block.header.0
        };
        let text = "the proxy writes or removes this header itself, so the upstream does not act on \
                    what the client has sent\nname another header";
        report.error_if(is_replaced(name), at, format!("{source}: {text}"));
        let is_removed = clients_are_named && names_a_peer(name);
        let text = "it names a client by its certificate: with `tls.client_ca_file` it is removed, \
                    so that every request would get a 400\nname what the request is about";
        report.error_if(is_removed, at, format!("{source}: {text}"));
        let is_own = self.idempotency().is_some_and(replaces);
        let text = "the header of the route's idempotency key: the upstream does not get the client's\n\
                    name what the request is about, or say `idempotency.client_key: keep`";
        report.error_if(is_own, at, format!("{source}: {text}"));
        let text = match name {
            "x-fencing-operation" | "idempotency-key" | "traceparent" | "x-request-id" => {
                "it differs from request to request, so one resource gets many keys\n\
                 use a part that names the resource, not the request"
            }
            "authorization" | "cookie" => {
                "it is a secret, and keys are stored and logged\nuse another part of the request"
            }
            _ => return,
        };
        report.warn(at, format!("{source}: {text}"));
    }
}

/// The path of a route in the configuration.
pub(super) fn path(index: usize) -> String {
    format!("routes[{index}]")
}
