//! The fields of the file, as they are written. Their doc comments are the reference: the JSON Schema
//! takes its descriptions from them. Every field may be absent; what a field means together with the
//! others, and its default, is the business of the [checks](super::validate).

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::body::BodyFile;
use super::claim::ClaimFile;
use super::limits::LimitsFile;
use super::route_file::RouteFile;
use super::settings::{Create, LogFormat, SafeMethods, Unmatched};
use super::tls::{AdminTlsFile, TlsFile, UpstreamTlsFile};
use super::units::{FileMode, Hidden, OffOr, Time};

/// The configuration of fencepost. Durations are written `250ms`, `5s`, `1m`; sizes `512KiB`, `1MiB`
/// or as plain bytes.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(title = "fencepost configuration", rename = "Configuration")]
pub struct File {
    /// Address for clients: `host:port`, or `unix:/path/of.sock`.
    #[schemars(extend("default" = "127.0.0.1:7080"))]
    pub listen: Option<String>,
    /// Mode of the listener's Unix socket, in octal digits: users who may write to it may connect.
    /// The default follows the umask, which usually leaves only the owner.
    pub listen_mode: Option<FileMode>,
    /// TLS for clients. Without it they speak plain HTTP.
    pub tls: Option<TlsFile>,
    /// The protected service. `url` is required, here or by `--upstream`.
    pub upstream: Option<UpstreamFile>,
    /// The database for the marks.
    pub store: Option<StoreFile>,
    /// How newer tokens wait for older requests.
    pub barrier: Option<BarrierFile>,
    /// How much of a body is read, and for how long.
    pub body: Option<BodyFile>,
    /// Limits of the data port.
    pub limits: Option<LimitsFile>,
    /// How the program ends on SIGTERM.
    pub shutdown: Option<ShutdownFile>,
    /// Probes, metrics, and the API for marks.
    pub admin: Option<AdminFile>,
    /// The log on standard error.
    pub log: Option<LogFile>,
    /// Paths that no route matches. `safe-only`: GET, HEAD and OPTIONS pass unfenced, everything
    /// else gets a 404. `refuse`: everything gets a 404.
    #[schemars(extend("default" = "safe-only"))]
    pub unmatched: Option<Unmatched>,
    /// How GET, HEAD and OPTIONS are judged, unless a route overrides it.
    #[schemars(extend("default" = "optional"))]
    pub safe_methods: Option<SafeMethods>,
    /// The status of a stale request: 412 or 409.
    #[schemars(extend("default" = 412, "enum" = [412, 409, null]))]
    pub stale_status: Option<u16>,
    /// Whether refusals name the resource, the token, the mark and their difference. `false` omits
    /// all four.
    #[schemars(extend("default" = true))]
    pub disclose: Option<bool>,
    /// The endpoint where a new holder raises the mark before it reads: `off`, or a block with its
    /// path and the clients that may claim.
    pub claim: Option<OffOr<ClaimFile>>,
    /// The routes: which requests are fenced, and by which key. The most specific route wins, in
    /// any order. Without routes, one route `/{*path}` fences every unsafe request, and each path
    /// is a resource of its own.
    #[schemars(with = "Option<Vec<RouteFile>>")]
    pub routes: Option<Vec<Option<RouteFile>>>,
}

/// The protected service.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Upstream")]
pub struct UpstreamFile {
    /// `http://host:port`, `https://host`, `h2c://host:port` (HTTP/2 without TLS) or
    /// `unix:/path/of.sock`. Without a path: request targets are passed on byte for byte.
    pub url: Option<String>,
    /// The `Host` that the upstream sees: `preserve` (the client's), `rewrite` (the URL's), or a literal
    /// `host` or `host:port`.
    #[schemars(extend("default" = "preserve"))]
    pub host: Option<String>,
    /// Time for the connection, including its TLS handshake.
    #[schemars(extend("default" = "2s"))]
    pub connect_timeout: Option<Time>,
    /// Time until the head of the response. After that the outcome is unknown, and the request
    /// counts as in flight for `barrier.settle`.
    #[schemars(extend("default" = "30s"))]
    pub timeout: Option<Time>,
    /// How long an idle connection is kept. Keep it below the upstream's own keep-alive, so that
    /// fewer requests meet a connection that is being closed.
    #[schemars(extend("default" = "4s"))]
    pub idle_timeout: Option<Time>,
    /// How long the kernel tries to deliver bytes of a fenced request that the upstream does not
    /// read (`TCP_USER_TIMEOUT`, RFC 5482). Then it drops them and resets the connection, whether
    /// the proxy runs or not. When a proxy dies, the others wait for `store.lease`, then for this,
    /// then for `barrier.settle`. 100ms to 10m.
    #[schemars(extend("default" = "10s"))]
    pub undelivered: Option<Time>,
    /// Statuses with which a gateway before the service says that it does not know the outcome. The
    /// client gets the response unchanged, and the request counts as in flight for
    /// `barrier.settle`, because the service may still be working. Envoy uses 503 too. `[]`: none.
    /// 200 to 599.
    #[schemars(with = "Option<Vec<u16>>", extend("default" = [502, 504]))]
    pub unknown_statuses: Option<Vec<Option<u16>>>,
    /// The same for gRPC, whose gateways answer with the HTTP status 200: values of `grpc-status`. 1 is
    /// `CANCELLED`, 4 `DEADLINE_EXCEEDED`, 14 `UNAVAILABLE`. A 2xx to a gRPC call without a status counts
    /// as one of these. `[]`: none. 1 to 16.
    #[schemars(with = "Option<Vec<u16>>", extend("default" = [1, 4, 14]))]
    pub unknown_grpc_statuses: Option<Vec<Option<u16>>>,
    /// Whether to speak HTTP/2 to an `https://` upstream, which must offer it by ALPN. `false`:
    /// HTTP/1.1.
    #[schemars(extend("default" = false))]
    pub http2: Option<bool>,
    /// How many HTTP/2 connections to the upstream may carry requests at once, for fenced requests
    /// and for all others each. Another one is opened when all streams are in use (as many as the
    /// upstream allows, at most 100 per connection). Requests beyond that wait for `timeout` and
    /// then get a 503. 1 to 10000.
    #[schemars(extend("default" = 64))]
    pub http2_connections: Option<u64>,
    /// TLS to an `https://` upstream, if the system's root certificates do not suffice, or the
    /// proxy needs a certificate of its own.
    pub tls: Option<UpstreamTlsFile>,
}

/// The database for the marks.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Store")]
pub struct StoreFile {
    /// `sqlite:fencepost.db` (one proxy; a path, relative ones to the working directory) or
    /// `postgres://user@host/database` (any number of proxies). Across a network the server is verified
    /// (`sslmode=verify-full`), unless the URL says otherwise.
    #[schemars(extend("default" = "sqlite:fencepost.db"))]
    pub url: Option<Hidden>,
    /// Instead of `url`: a file with the `postgres://` URL, such as a mounted secret; read at every
    /// connect.
    pub url_file: Option<PathBuf>,
    /// TLS to Postgres, unless the URL configures it.
    pub tls: Option<StoreTlsFile>,
    /// Proxies with the same namespace share marks; use one namespace per upstream. Letters,
    /// digits, `.`, `_` and `-`, at most 63. Required with Postgres.
    #[schemars(extend("default" = "default"))]
    pub namespace: Option<String>,
    /// How long an instance may forward without a renewal that the store has committed; it renews
    /// every second. Postgres: when an instance dies, its resources wait for this, then for
    /// `upstream.undelivered` and `barrier.settle`, and a fifth longer, because clocks may run at
    /// different rates. `SQLite`: while an fsync takes longer than this, fenced requests are
    /// refused. At least 1s.
    #[schemars(extend("default" = "5s"))]
    pub lease: Option<Time>,
    /// Time for one statement. A request that the store cannot decide in time gets a 503.
    #[schemars(extend("default" = "5s"))]
    pub timeout: Option<Time>,
    /// How many marks to cache of resources that have nothing in flight.
    #[schemars(extend("default" = 1_000_000))]
    pub cached_marks: Option<u64>,
    /// Whether `serve` updates the schema of the database, under a lock. `false`: it does not start
    /// if the schema is behind, and you run `fencepost migrate`.
    #[schemars(extend("default" = true))]
    pub migrate: Option<bool>,
    /// `SQLite`, if a start finds no store. `if-missing`: create one without marks, with a warning
    /// in the log; every resource's first token is accepted then, however old it is. `never`:
    /// refuse to start, as it should be once there are marks; `fencepost migrate` still creates
    /// one.
    #[schemars(extend("default" = "if-missing"))]
    pub create: Option<Create>,
}

/// TLS to Postgres. The files are read at every connect.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "StoreTls")]
#[expect(
    clippy::struct_field_names,
    reason = "the fields are those of the file"
)]
pub struct StoreTlsFile {
    /// The CAs for the server's certificate, instead of the system's: PEM. Like `sslrootcert` in
    /// the URL.
    pub ca_file: Option<PathBuf>,
    /// The client certificate, followed by its chain: PEM. With `key_file`. Like `sslcert` in the
    /// URL.
    pub cert_file: Option<PathBuf>,
    /// Its private key: PEM, unencrypted. Like `sslkey` in the URL.
    pub key_file: Option<PathBuf>,
}

/// How newer tokens wait for older requests.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Barrier")]
pub struct BarrierFile {
    /// How long a request waits for older ones of its resource before it gets a 503.
    #[schemars(extend("default" = "10s"))]
    pub wait: Option<Time>,
    /// How long older exchanges may continue once a newer token waits. Then they are reset, and
    /// their outcome is unknown.
    #[schemars(extend("default" = "10s"))]
    pub grace: Option<Time>,
    /// How long the upstream may go on working on a request after its last byte has arrived,
    /// whether its caller still waits or not. This is your promise about the upstream: after an
    /// unknown outcome, no newer token is admitted for this long. Leave room: a fifth if the
    /// upstream is on another machine, whose clock may run at another rate.
    #[schemars(extend("default" = "30s"))]
    pub settle: Option<Time>,
    /// How many requests of one resource may wait at once; more get a 503. Never more than
    /// `limits.in_flight_per_resource`.
    #[schemars(extend("default" = 1024))]
    pub queue: Option<u64>,
}

/// How the program ends on SIGTERM.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Shutdown")]
pub struct ShutdownFile {
    /// Time from becoming unready to refusing new connections.
    #[schemars(extend("default" = "0s"))]
    pub delay: Option<Time>,
    /// Time for draining after that. Keep the sum of `delay` and this below the time after which
    /// SIGKILL is sent (Kubernetes: 30s).
    #[schemars(extend("default" = "25s"))]
    pub deadline: Option<Time>,
}

/// Probes, metrics, and the API for marks.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Admin")]
pub struct AdminFile {
    /// `host:port`, `unix:/path/of.sock`, or `off`. Probes and metrics are open to everybody who
    /// reaches it. Keys and marks can be read without a token only on the loopback and over a Unix
    /// socket.
    #[schemars(extend("default" = "127.0.0.1:7081"))]
    pub listen: Option<String>,
    /// A file with the bearer token for writes, of at least 16 characters. Without it, writes are
    /// disabled.
    pub token_file: Option<PathBuf>,
    /// A file with the bearer token for reads, of at least 16 characters. Without it, keys and
    /// marks can be read from outside the loopback only with the token for writes.
    pub read_token_file: Option<PathBuf>,
    /// TLS for the admin port.
    pub tls: Option<AdminTlsFile>,
    /// Whether an outage of the store makes `/readyz` fail.
    #[schemars(extend("default" = false))]
    pub ready_follows_store: Option<bool>,
}

/// The log on standard error.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Log")]
pub struct LogFile {
    /// `json`, or `text` for people. The default is text on a terminal, otherwise JSON.
    pub format: Option<LogFormat>,
    /// `error`, `warn`, `info`, `debug` or `trace`; also per module: `info,fencepost::store=debug`.
    #[schemars(extend("default" = "info"))]
    pub level: Option<String>,
}
