//! The validated configuration that the rest of the program reads. Every value in it has been
//! checked, every default filled in; nothing here is optional that the program needs.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::address_range::AddressRange;
use super::bearer_tokens::BearerTokens;
use super::client_pattern::ClientPattern;
use super::document::ConfigDocument;
use super::log_level::LogLevel;
use super::source_files::Sources;
use super::tls_settings::{TlsSettings, UpstreamTlsSettings};
use super::tracing_settings::TracingSettings;
use crate::http1::head::HeadLimits;
use crate::routing::{Allow, KeyTemplate, Pattern, TokenBounds, TokenFormat};

/// A configuration that has passed every check.
#[derive(Clone, Debug)]
pub struct Settings {
    pub listen: Listen,
    /// The mode of the listener's Unix socket; `None`: the umask decides.
    pub listen_mode: Option<u32>,
    /// The proxies that may name their clients.
    pub trusted_proxies: Vec<AddressRange>,
    /// `None`: plain HTTP.
    pub tls: Option<TlsSettings>,
    pub upstream: UpstreamSettings,
    pub store: StoreSettings,
    pub barrier: BarrierSettings,
    pub body: BodySettings,
    pub limits: LimitSettings,
    pub shutdown: ShutdownSettings,
    pub admin: AdminSettings,
    pub log: LogSettings,
    /// `None`: no request is traced.
    pub tracing: Option<TracingSettings>,
    /// The file with flags and environment variables over it, as it was read; without secrets.
    pub document: ConfigDocument,
    pub unmatched: Unmatched,
    /// 412 or 409.
    pub stale_status: u16,
    /// The proxy's own answers name resource, token, mark and gap.
    pub disclose: bool,
    /// The prefix of a problem's `type`. `None`: `urn:fencepost:problem:`.
    pub problem_base_url: Option<String>,
    /// The claim endpoint; `None`: off.
    pub claim: Option<ClaimSettings>,
    /// In the order of the file. The router finds the most specific one.
    pub routes: Vec<RouteSettings>,
    /// The files that all this was read from.
    pub sources: Sources,
}

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// `host:port`; resolved when bound. Port 0 takes a free one.
    Tcp(String),
    Unix(PathBuf),
}

/// Statuses with which a gateway says that it does not know the outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownStatuses {
    pub http: Arc<[u16]>,
    /// Values of `grpc-status`, which come in an HTTP response with 200.
    pub grpc: Arc<[u16]>,
}

/// Gateways answer with these when they have lost the upstream (RFC 9110, 15.6.3 and 15.6.5). Envoy
/// and gRPC's own libraries turn that, and a call that was given up, into CANCELLED,
/// `DEADLINE_EXCEEDED`, UNAVAILABLE (<https://grpc.github.io/grpc/core/md_doc_statuscodes.html>).
impl Default for UnknownStatuses {
    fn default() -> Self {
        Self {
            http: Arc::new([502, 504]),
            grpc: Arc::new([1, 4, 14]),
        }
    }
}

#[derive(Clone, Debug)]
pub struct UpstreamSettings {
    pub url: UpstreamUrl,
    pub host: HostPolicy,
    pub connect_timeout: Duration,
    /// To the response head.
    pub timeout: Duration,
    /// The time for which an idle connection to the upstream is kept.
    pub idle_timeout: Duration,
    /// The time for which the kernel tries to deliver bytes of a fenced request.
    pub undelivered: Duration,
    pub unknown: UnknownStatuses,
    /// HTTP/2 over TLS, by ALPN.
    pub http2: bool,
    /// Of a response's head.
    pub header_bytes: usize,
    pub tls: UpstreamTlsSettings,
}

/// The address that requests go to. It has no path: targets go upstream byte for byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpstreamUrl {
    /// `host` or `host:port`.
    Http(String),
    Https(String),
    /// HTTP/2 by prior knowledge, without TLS.
    H2c(String),
    Unix(PathBuf),
}

/// The `Host` that the upstream sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPolicy {
    /// The client's.
    Preserve,
    /// The upstream URL's authority (`localhost` for a Unix socket).
    Rewrite,
    Literal(String),
}

#[derive(Clone, Debug)]
pub struct StoreSettings {
    pub target: StoreTarget,
    pub tls: StoreTls,
    /// Proxies with the same namespace share marks.
    pub namespace: String,
    /// The time for which an instance may forward without a renewal committed by the store.
    pub lease: Duration,
    pub timeout: Duration,
    /// The number of cached marks of resources that have nothing in flight.
    pub cached_marks: usize,
    /// `serve` updates the schema.
    pub migrate: bool,
    /// The treatment of a missing embedded store.
    pub create: Create,
    /// An embedded store may be on a file system in memory.
    pub volatile: bool,
}

/// The action of a start that finds no embedded store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Create {
    /// It creates one without marks, with a warning in the log.
    #[default]
    IfMissing,
    /// The start is refused.
    Never,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreTarget {
    Sqlite {
        path: PathBuf,
    },
    /// A DSN, or the file that holds one (read at each connect).
    Postgres(Secret),
}

/// The files of TLS to Postgres, read at each connect. They replace the URL's parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreTls {
    /// The CAs that the server's certificate is verified by, in place of the system's.
    pub ca_file: Option<PathBuf>,
    /// The certificate that is shown to the server, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// The address of a Postgres, and the files that TLS to it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresAddress {
    pub url: Secret,
    pub tls: StoreTls,
    /// The name of this process in `pg_stat_activity`; `None`: `fencepost`.
    pub application_name: Option<String>,
}

/// With all that TLS needs in the URL.
impl From<Secret> for PostgresAddress {
    fn from(url: Secret) -> Self {
        Self {
            url,
            tls: StoreTls::default(),
            application_name: None,
        }
    }
}

/// A secret given in place or in a file that is read when it is needed.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    Literal(String),
    File(PathBuf),
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Literal(_) => f.write_str("Secret(…)"),
            Self::File(path) => write!(f, "Secret(file {})", path.display()),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct BarrierSettings {
    /// The longest wait of a request for older ones.
    pub wait: Duration,
    /// The time for older exchanges once a newer token waits.
    pub grace: Duration,
    /// The time for which the upstream may work on a request after its last byte.
    pub settle: Duration,
    /// The number of requests of one resource that may wait.
    pub queue: usize,
}

#[derive(Clone, Copy, Debug)]
pub struct BodySettings {
    /// Bodies up to this many bytes are read before admission.
    pub buffer: u64,
    /// Longer bodies are a 413.
    pub max: Option<u64>,
    /// The time for a whole body on a fenced request.
    pub timeout: Duration,
    /// The longest pause of a client within its body.
    pub progress_timeout: Duration,
    /// The time after which a gRPC call is judged although its client has not ended its messages.
    pub stream_after: Duration,
}

#[derive(Clone, Copy, Debug)]
pub struct LimitSettings {
    /// Requests in progress or waiting; more get a 503 `overloaded`.
    pub in_flight: usize,
    /// Of those, the ones of one connection.
    pub in_flight_per_connection: usize,
    /// Of those, the ones of one address; `None`: no limit.
    pub in_flight_per_client: Option<ClientShare>,
    /// Of those, the ones of one resource, waiting or in flight; `None`: no limit.
    pub in_flight_per_resource: Option<usize>,
    /// Open connections on the data port.
    pub connections: usize,
    /// Open connections of one address; `None`: no limit.
    pub connections_per_client: Option<ClientShare>,
    /// Requests in progress on one HTTP/2 connection.
    pub http2_streams: u32,
    /// How long a client may take for the head of a request or its TLS handshake.
    pub head_timeout: Duration,
    /// The time for which a connection may stay open without a request.
    pub idle_timeout: Duration,
    /// The time for which a client may read nothing of its response.
    pub write_timeout: Duration,
    /// Bytes of a request's head, from its first to the empty line.
    pub header_bytes: usize,
    /// Header lines of a request.
    pub header_count: usize,
    /// Bytes of a request's target.
    pub target_bytes: usize,
    /// Bytes of bodies held at once, over all requests.
    pub body_memory: usize,
    /// Bytes of a resource's key.
    pub key_bytes: usize,
    /// Resources that may get their first mark in a second; `None`: no limit.
    pub new_resources: Option<u32>,
}

impl LimitSettings {
    /// The limits of a request's head.
    pub(crate) const fn head(&self) -> HeadLimits {
        HeadLimits {
            bytes: self.header_bytes,
            fields: self.header_count,
            target: self.target_bytes,
        }
    }

    /// Of the requests in flight, those that may wait at barriers: they leave a quarter of the
    /// limit to requests that need not wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        all_but_a_quarter(self.in_flight)
    }

    /// Of the requests in flight, those that may be tunnels, which may never end.
    #[must_use]
    pub fn tunnels(&self) -> usize {
        all_but_a_quarter(self.in_flight)
    }
}

/// Leaves a quarter, and at least one where there are two.
pub(super) fn all_but_a_quarter(all: usize) -> usize {
    let others = (all / 4).max(1);
    all.saturating_sub(others).max(1)
}

/// The share of one client address in a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientShare {
    /// The share of a single address.
    pub most: usize,
    /// The limit itself.
    pub of: usize,
    /// Loopback addresses count too. By default they don't: all clients of a mesh's sidecar
    /// have the same one.
    pub loopback: bool,
}

impl ClientShare {
    /// Returns true if an address that has `held` gets one more, when `free` are left.
    ///
    /// The next addresses share what one address leaves, in the same proportion. With three
    /// quarters, two addresses leave a seventh and ten leave a thirty-first: none of them can take
    /// all there is (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet
    /// switches", 1998).
    #[must_use]
    pub const fn gives(&self, held: usize, free: usize) -> bool {
        let left = self.of.saturating_sub(self.most);
        held < self.most && held.saturating_mul(left) < self.most.saturating_mul(free)
    }

    /// Returns true if an address is counted.
    #[must_use]
    pub fn counts(&self, ip: IpAddr) -> bool {
        self.loopback || !ip.to_canonical().is_loopback()
    }
}

/// The claim endpoint, and the clients that may claim.
#[derive(Clone, Debug)]
pub struct ClaimSettings {
    pub path: String,
    /// Empty: every client.
    pub require_client: Vec<ClientPattern>,
    /// `None`: every address.
    pub addresses: Option<Vec<AddressRange>>,
    /// `None`: no token is asked for.
    pub tokens: Option<BearerTokens>,
}

#[derive(Clone, Copy, Debug)]
pub struct ShutdownSettings {
    /// Time from becoming unready to refusing new connections.
    pub delay: Duration,
    /// Time for draining after that. Keep the sum of `delay` and this below the time after which
    /// SIGKILL is sent (Kubernetes: 30s).
    pub deadline: Duration,
}

/// The default of `admin.listen`.
pub const ADMIN_LISTEN: &str = "127.0.0.1:7081";

#[derive(Clone, Debug)]
pub struct AdminSettings {
    /// `None`: off.
    pub listen: Option<Listen>,
    /// Without it, no writes over the admin API. Read at each write.
    pub token_file: Option<PathBuf>,
    /// Without it, and without the other one, marks are read on the loopback only. Read at each
    /// such read.
    pub read_token_file: Option<PathBuf>,
    /// `None`: plain HTTP.
    pub tls: Option<TlsSettings>,
    /// A store outage makes `/readyz` fail.
    pub ready_follows_store: bool,
}

/// The log on standard error.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Log")]
pub struct LogSettings {
    /// `json`, or `text` for reading. The default is text on a terminal, otherwise JSON.
    pub format: LogFormat,
    /// `error`, `warn`, `info`, `debug`, `trace` or `off`; also per module:
    /// `info,fencepost::store=debug`. Follows a reload.
    #[schemars(with = "String")]
    pub level: LogLevel,
    /// Paths are logged with their queries, which may hold secrets.
    pub query: bool,
    /// Which requests get a line: `off`, `refusals` (with unknown outcomes), `fenced` (these, and
    /// each fenced, observed or claiming request), or `all`. The lines of answered requests are at
    /// `info`.
    pub access: AccessLog,
}

/// Which requests get a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccessLog {
    /// None.
    Off,
    /// Those that are refused, and those whose outcome is unknown.
    #[default]
    Refusals,
    /// These, and those that are fenced, observed or claim.
    Fenced,
    /// Every one.
    All,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// One object per line.
    #[default]
    Json,
    /// For reading.
    Text,
}

/// The treatment of paths that no route matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unmatched {
    /// Safe methods pass, others get a 404.
    SafeOnly,
    /// All get a 404.
    Refuse,
}

/// One route, with everything it inherits filled in.
#[derive(Clone, Debug)]
pub struct RouteSettings {
    /// The value of the `route` label: the route's `name`, else its path pattern.
    pub label: String,
    pub pattern: Pattern,
    /// The pattern as the file has it.
    pub path: String,
    /// The unsafe methods allowed.
    pub methods: BTreeSet<String>,
    /// `None` only in bypass mode.
    pub key: Option<KeyTemplate>,
    pub mode: Mode,
    /// The clients whose requests are allowed; empty: all clients.
    pub require_client: Vec<ClientPattern>,
    pub token_format: TokenFormat,
    /// The tokens that it accepts.
    pub token_bounds: TokenBounds,
    /// As [`LimitSettings::key_bytes`].
    pub key_bytes: usize,
    pub reuse: Reuse,
    pub safe_methods: SafeMethods,
    /// Spellings that this route allows though they are refused by default.
    pub allow: Allow,
    /// `None`: no keys are sent.
    pub idempotency: Option<IdempotencySettings>,
    pub upstream_timeout: Duration,
    /// As [`UpstreamSettings::unknown`].
    pub unknown: UnknownStatuses,
    pub barrier_wait: Duration,
    pub barrier_grace: Duration,
    pub body: BodySettings,
}

impl Settings {
    /// Returns true if clients of the data port are asked for certificates.
    #[must_use]
    pub fn asks_clients(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.clients.is_some())
    }
}

/// The treatment of stale and invalid requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Refuses them.
    #[default]
    Enforce,
    /// Refuses nothing, and counts the requests that it would refuse.
    Observe,
    /// Forwards without a check.
    Bypass,
}

impl Mode {
    pub const ALL: [Self; 3] = [Self::Enforce, Self::Observe, Self::Bypass];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Observe => "observe",
            Self::Bypass => "bypass",
        }
    }
}

/// The treatment of equal tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reuse {
    /// Equal tokens pass.
    Allow,
    /// Each token passes once.
    Once,
}

/// The treatment of safe methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SafeMethods {
    /// Judged if they carry a token, otherwise passed unfenced.
    Optional,
    /// Judged like any other request; without a token they get a 428.
    Required,
    /// Passed unfenced, with or without a token.
    Ignored,
}

#[derive(Clone, Debug)]
pub struct IdempotencySettings {
    /// The header's name, lower case.
    pub header: String,
    pub key: IdempotencyTemplate,
    /// A request that yields no key is refused.
    pub required: bool,
    /// An RFC 9651 string.
    pub quoted: bool,
    pub client_key: ClientKey,
}

/// The parts of an idempotency key, in order: literal text between variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyTemplate {
    pub parts: Vec<IdempotencyPart>,
}

impl IdempotencyTemplate {
    /// Returns true if the key may depend on the body.
    #[must_use]
    pub fn needs_body(&self) -> bool {
        let needs = |part: &_| matches!(part, IdempotencyPart::Operation | IdempotencyPart::Digest);
        self.parts.iter().any(needs)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdempotencyPart {
    Literal(String),
    Resource,
    Token,
    /// The caller's `X-Fencing-Operation`, else the digest.
    Operation,
    /// The digest of method, target and body.
    Digest,
}

/// The treatment of a key that the client sends itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientKey {
    /// The client's key goes upstream.
    Keep,
    /// Our key replaces it.
    Replace,
    /// The request is refused.
    Reject,
}
