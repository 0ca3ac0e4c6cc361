//! The fields of one route, as they are written. As in [`file`](super::file), their doc comments are
//! the reference.

use schemars::JsonSchema;
use serde::Deserialize;

use super::body::BodyFile;
use super::settings::{ClientKey, KeyForm, Mode, Reuse, SafeMethods, Upgrade};
use super::units::{CountOrNone, OffOr, Time};
use crate::routing::TokenFormat;

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
    /// The unsafe methods that pass; others get a 405. The default is every unsafe method.
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
    #[schemars(extend("default" = "enforce"))]
    pub mode: Option<Mode>,
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
    /// Whether more than one request may carry the same token. `once`: each token passes once.
    #[schemars(extend("default" = "allow"))]
    pub reuse: Option<Reuse>,
    /// How GET, HEAD and OPTIONS are judged. The default is that of the top level.
    pub safe_methods: Option<SafeMethods>,
    /// Whether a request may open a tunnel (`Upgrade`: `WebSocket` and the like). `allow`: the
    /// opening request is judged like a write, whatever its method. The tunnel counts as in flight
    /// while it is open, and is closed at once when a newer token comes. Bypass and observe always
    /// tunnel.
    #[schemars(extend("default" = "refuse"))]
    pub upgrade: Option<Upgrade>,
    /// What is refused as ambiguous by default and harmless with this upstream. Spellings of a
    /// path: `semicolon`, `empty-segments`, `encoded-slash`, `backslash`, `raw-characters`,
    /// `encoded-question-mark`, `encoded-hash`, `double-encoding`. And `path-override`:
    /// `X-Original-URL` and `X-Rewrite-URL`, if the upstream does not route by them.
    #[schemars(with = "Option<Vec<String>>")]
    pub allow: Option<Vec<Option<String>>>,
    /// The `Idempotency-Key` that is sent upstream: `off`, or a block. If absent, it is on with its
    /// defaults.
    pub idempotency: Option<OffOr<IdempotencyFile>>,
    /// Overrides of the top level's `upstream`.
    pub upstream: Option<RouteUpstreamFile>,
    /// Overrides of the top level's `barrier`.
    pub barrier: Option<RouteBarrierFile>,
    /// Overrides of the top level's `body`.
    pub body: Option<BodyFile>,
}

/// The format of tokens, and their bounds.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Token")]
pub struct TokenFile {
    /// Its format in `X-Fencing-Token`.
    #[schemars(extend("default" = "decimal"))]
    pub format: Option<FormatName>,
    /// How far above its resource's mark a token may be; tokens beyond that get a 422 until an
    /// operator admits them (`fencepost marks advance`). A number, or `none`. The default for
    /// decimal tokens (`decimal`, `after-hash`) is 2^48 = 281474976710656, or as much again as the
    /// mark if that is more; no known lock service leaps that far. For the other formats it is
    /// none. If each lock has a counter of its own, 1000 is plenty, and stops a forged number much
    /// earlier.
    pub max_jump: Option<CountOrNone>,
    /// The greatest token that is accepted, also as a resource's first one; a number, or `none`.
    /// The default for decimal tokens is 9000000000000000000, which leaves numbers above every
    /// mark. For the other formats it is none.
    pub max: Option<CountOrNone>,
}

/// How a token is written.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FormatName {
    /// Digits.
    Decimal,
    /// Hexadecimal digits of either case, with `0x` or without.
    Hex,
    /// The decimal number after the last `#`: `lock#42`.
    AfterHash,
    /// The first 16 hexadecimal digits of a longer text.
    #[serde(rename = "prefix-hex16")]
    PrefixHex16,
}

impl From<FormatName> for TokenFormat {
    fn from(name: FormatName) -> Self {
        match name {
            FormatName::Decimal => Self::Decimal,
            FormatName::Hex => Self::Hex,
            FormatName::AfterHash => Self::AfterHash,
            FormatName::PrefixHex16 => Self::PrefixHex16,
        }
    }
}

/// The `Idempotency-Key` that is sent upstream.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Idempotency")]
pub struct IdempotencyFile {
    /// The header's name.
    #[schemars(extend("default" = "Idempotency-Key"))]
    pub header: Option<String>,
    /// `{resource}` and `{token}`, and `{operation}` (the caller's `X-Fencing-Operation`, or else
    /// the digest) or `{digest}` (of method, target and body). `{resource}-{token}` alone: one key
    /// per epoch.
    #[schemars(extend("default" = "{resource}-{token}-{operation}"))]
    pub key: Option<String>,
    /// Whether to refuse a request that yields no key (its body is longer than `body.buffer`, and
    /// it names no operation).
    #[schemars(extend("default" = false))]
    pub required: Option<bool>,
    /// `uuid`: version 8, of the SHA-256. `raw`: the text itself.
    #[schemars(extend("default" = "uuid"))]
    pub form: Option<KeyForm>,
    /// Whether to send it as a string of RFC 9651, in double quotes.
    #[schemars(extend("default" = false))]
    pub quoted: Option<bool>,
    /// The treatment of a key that the client sends itself.
    #[schemars(extend("default" = "keep"))]
    pub client_key: Option<ClientKey>,
}

/// A route's overrides of `upstream`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "RouteUpstream")]
pub struct RouteUpstreamFile {
    /// How long the head of a response may take.
    pub timeout: Option<Time>,
    /// Statuses that leave the outcome of a request unknown, in place of the top level's.
    #[schemars(with = "Option<Vec<u16>>")]
    pub unknown_statuses: Option<Vec<Option<u16>>>,
    /// The same for values of `grpc-status`.
    #[schemars(with = "Option<Vec<u16>>")]
    pub unknown_grpc_statuses: Option<Vec<Option<u16>>>,
}

/// A route's overrides of `barrier`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "RouteBarrier")]
pub struct RouteBarrierFile {
    /// How long a request waits for older ones of its resource.
    pub wait: Option<Time>,
    /// How long older exchanges may continue once a newer token waits.
    pub grace: Option<Time>,
}
