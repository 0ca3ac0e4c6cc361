//! The fields of the file, as they are written. Their doc comments are the reference: the JSON Schema
//! takes its descriptions from them. Every field may be absent; what a field means together with the
//! others, and its default, is the business of the [checks](super::validate).

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::claim::ClaimFile;
use super::limits::LimitsFile;
use super::route_file::RouteFile;
use super::settings::{Create, LogFormat, SafeMethods, Unmatched};
use super::tls::{TlsFile, UpstreamTlsFile};
use super::units::{FileMode, Hidden, Limit, OffOr, Size, Time};

/// The configuration of fencepost. Durations are written `250ms`, `5s`, `1m`; sizes `512KiB`, `1MiB`
/// or as plain bytes.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(title = "fencepost configuration", rename = "Configuration")]
pub struct File {
    /// Where clients connect: `host:port`, or `unix:/path/of.sock`.
    #[schemars(extend("default" = "127.0.0.1:7080"))]
    pub listen: Option<String>,
    /// The mode of the listener's Unix socket, in octal digits: who may connect is who may write to it. By
    /// default what the umask leaves, which mostly is the owner alone.
    pub listen_mode: Option<FileMode>,
    /// TLS for clients. Without it they speak plain HTTP.
    pub tls: Option<TlsFile>,
    /// The service that is fenced. `url` is required, here or by `--upstream`.
    pub upstream: Option<UpstreamFile>,
    /// Where the marks live.
    pub store: Option<StoreFile>,
    /// How newer tokens wait for older requests.
    pub barrier: Option<BarrierFile>,
    /// How much of a body is read, and for how long.
    pub body: Option<BodyFile>,
    /// How much goes on at once.
    pub limits: Option<LimitsFile>,
    /// How the program ends on SIGTERM.
    pub shutdown: Option<ShutdownFile>,
    /// Probes, metrics, and the API of the marks.
    pub admin: Option<AdminFile>,
    /// What is written to standard error.
    pub log: Option<LogFile>,
    /// What becomes of a path that no route matches. `safe-only`: GET, HEAD and OPTIONS pass unfenced,
    /// everything else is a 404. `refuse`: everything is a 404.
    #[schemars(extend("default" = "safe-only"))]
    pub unmatched: Option<Unmatched>,
    /// How GET, HEAD and OPTIONS are judged, where a route does not say otherwise.
    #[schemars(extend("default" = "optional"))]
    pub safe_methods: Option<SafeMethods>,
    /// The status of a stale request: 412 or 409.
    #[schemars(extend("default" = 412, "enum" = [412, 409, null]))]
    pub stale_status: Option<u16>,
    /// Whether refusals name the resource, the token, the mark and the gap between them. `false` leaves
    /// those four out.
    #[schemars(extend("default" = true))]
    pub disclose: Option<bool>,
    /// The endpoint by which a new holder raises the mark before it reads: `off`, or a block with
    /// its path, and who may claim.
    pub claim: Option<OffOr<ClaimFile>>,
    /// What is fenced, and by which key. The most specific route wins, whatever the order. Without
    /// any, one route `/{*path}` fences every unsafe request, one resource per path.
    #[schemars(with = "Option<Vec<RouteFile>>")]
    pub routes: Option<Vec<Option<RouteFile>>>,
}

/// The service that is fenced.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Upstream")]
pub struct UpstreamFile {
    /// `http://host:port`, `https://host`, `h2c://host:port` (HTTP/2 without TLS) or
    /// `unix:/path/of.sock`. No path: request targets go upstream byte for byte.
    pub url: Option<String>,
    /// The `Host` that the upstream sees: `preserve` (the client's), `rewrite` (the URL's), or a literal
    /// `host` or `host:port`.
    #[schemars(extend("default" = "preserve"))]
    pub host: Option<String>,
    /// How long a connection may take, with its TLS handshake.
    #[schemars(extend("default" = "2s"))]
    pub connect_timeout: Option<Time>,
    /// How long the head of a response may take. What happens then is unknown: the request keeps its
    /// resource for `barrier.settle`.
    #[schemars(extend("default" = "30s"))]
    pub timeout: Option<Time>,
    /// How long an idle connection is kept. Keep it below the upstream's own, so that it does not close
    /// one that is just being used.
    #[schemars(extend("default" = "4s"))]
    pub idle_timeout: Option<Time>,
    /// How long the kernel tries to deliver bytes of a fenced request that the upstream does not
    /// take (`TCP_USER_TIMEOUT`, RFC 5482). Then it drops them and resets the connection, whether or
    /// not the proxy runs. After a proxy's death the others wait for this between `store.lease` and
    /// `barrier.settle`. 100ms to 10m.
    #[schemars(extend("default" = "10s"))]
    pub undelivered: Option<Time>,
    /// Statuses by which a gateway between here and the service says that it does not know what became
    /// of a request. Such a response goes to the client as it is, but the service may still be at
    /// work: the request keeps its resource for `barrier.settle`. Envoy says 503 too. `[]`: none.
    /// 200 to 599.
    #[schemars(with = "Option<Vec<u16>>", extend("default" = [502, 504]))]
    pub unknown_statuses: Option<Vec<Option<u16>>>,
    /// The same for gRPC, whose gateways answer with the HTTP status 200: values of `grpc-status`. 1 is
    /// `CANCELLED`, 4 `DEADLINE_EXCEEDED`, 14 `UNAVAILABLE`. A 2xx to a gRPC call without a status counts
    /// as one of these. `[]`: none. 1 to 16.
    #[schemars(with = "Option<Vec<u16>>", extend("default" = [1, 4, 14]))]
    pub unknown_grpc_statuses: Option<Vec<Option<u16>>>,
    /// Whether HTTP/2 is spoken to an `https://` upstream, which has to offer it by ALPN. `false`: HTTP/1.1.
    #[schemars(extend("default" = false))]
    pub http2: Option<bool>,
    /// How many HTTP/2 connections to the upstream may take requests at once, for fenced requests and
    /// for all others each. Another one is opened when the streams of the open ones are in use: as many
    /// as the upstream allows, and 100 at most. Requests beyond that wait for `timeout`, and are a 503
    /// then. 1 to 10000.
    #[schemars(extend("default" = 64))]
    pub http2_connections: Option<u64>,
    /// TLS to an `https://` upstream, where the system's root certificates and no certificate of the proxy's
    /// own are not what it takes.
    pub tls: Option<UpstreamTlsFile>,
}

/// Where the marks live.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Store")]
pub struct StoreFile {
    /// `sqlite:fencepost.db` (one proxy; a path, relative ones to the working directory) or
    /// `postgres://user@host/database` (any number of proxies). Across a network the server is verified
    /// (`sslmode=verify-full`), unless the URL says otherwise.
    #[schemars(extend("default" = "sqlite:fencepost.db"))]
    pub url: Option<Hidden>,
    /// A file that holds the `postgres://` URL, such as a mounted secret; read at every connect. In
    /// place of `url`.
    pub url_file: Option<PathBuf>,
    /// TLS toward Postgres, where the URL does not say it.
    pub tls: Option<StoreTlsFile>,
    /// What shares marks: proxies in front of the same upstream use the same namespace. Letters,
    /// digits, `.`, `_` and `-`, at most 63. Required with Postgres.
    #[schemars(extend("default" = "default"))]
    pub namespace: Option<String>,
    /// How long an instance may forward without a renewal that the store has taken; it renews every second.
    /// Postgres: what a dead instance had in flight keeps its resources waiting for this, then for
    /// `upstream.undelivered` and `barrier.settle`, and a fifth longer, since clocks may be slewed.
    /// `SQLite`: a disk whose fsync takes longer than this gets fenced requests refused meanwhile. At least 1s.
    #[schemars(extend("default" = "5s"))]
    pub lease: Option<Time>,
    /// How long a statement may take. What the store cannot decide in time is a 503.
    #[schemars(extend("default" = "5s"))]
    pub timeout: Option<Time>,
    /// How many resources are remembered that have nothing in flight.
    #[schemars(extend("default" = 1_000_000))]
    pub cached_marks: Option<u64>,
    /// Whether `serve` brings the schema of the database up to date, under a lock. `false`: it refuses to
    /// start if the schema is behind, and `fencepost migrate` is yours to run.
    #[schemars(extend("default" = true))]
    pub migrate: Option<bool>,
    /// `SQLite`: what becomes of a start that finds no store. `if-missing`: a new one is made, without any marks,
    /// and the log warns of it: every resource's first token is accepted then, however old it is. `never`: the
    /// start is refused, as it should be once there are marks; `fencepost migrate` still makes one.
    #[schemars(extend("default" = "if-missing"))]
    pub create: Option<Create>,
}

/// TLS toward Postgres. The files are read at every connect.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "StoreTls")]
#[expect(
    clippy::struct_field_names,
    reason = "the fields are those of the file"
)]
pub struct StoreTlsFile {
    /// The CAs that the server's certificate is verified by, in place of the system's: PEM. As `sslrootcert`
    /// in the URL.
    pub ca_file: Option<PathBuf>,
    /// The certificate that the proxy shows to the server, with its chain: PEM. With `key_file`. As
    /// `sslcert` in the URL.
    pub cert_file: Option<PathBuf>,
    /// Its private key: PEM, not encrypted. As `sslkey` in the URL.
    pub key_file: Option<PathBuf>,
}

/// How newer tokens wait for older requests.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Barrier")]
pub struct BarrierFile {
    /// How long a request waits for older ones of its resource before it is a 503.
    #[schemars(extend("default" = "10s"))]
    pub wait: Option<Time>,
    /// How long older exchanges may run on once a newer token waits; then they are reset, and their
    /// outcome is unknown.
    #[schemars(extend("default" = "10s"))]
    pub drain: Option<Time>,
    /// How long the upstream may go on working on a request after its last byte has arrived, with its
    /// caller or without. A promise of yours about the upstream: no newer token is let in for so long
    /// after an outcome that is unknown. Leave room: a fifth if the upstream is on another machine,
    /// whose clock may be slewed.
    #[schemars(extend("default" = "30s"))]
    pub settle: Option<Time>,
    /// How many requests of one resource may wait at once; more are a 503. Never more than
    /// `limits.in_flight_per_resource`.
    #[schemars(extend("default" = 1024))]
    pub queue: Option<u64>,
}

/// How much of a body is read, and for how long.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Body")]
pub struct BodyFile {
    /// Bodies up to this size are read before the request is judged; longer ones are judged first and
    /// streamed.
    #[schemars(extend("default" = "1MiB"))]
    pub buffer: Option<Size>,
    /// Longer bodies are a 413. `none`: no limit.
    #[schemars(extend("default" = "none"))]
    pub max: Option<Limit>,
    /// How long a client may take over its whole body where the request is judged. Where nothing is fenced
    /// nobody waits for it, and a long upload that moves is let be.
    #[schemars(extend("default" = "60s"))]
    pub timeout: Option<Time>,
    /// How long a client may pause within its body, on any route.
    #[schemars(extend("default" = "15s"))]
    pub progress_timeout: Option<Time>,
    /// A gRPC call whose client has not ended its messages within this is judged, and then streamed: such
    /// a client may wait for the answer to its first message before it sends the second one.
    #[schemars(extend("default" = "250ms"))]
    pub stream_after: Option<Time>,
}

/// How the program ends on SIGTERM.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Shutdown")]
pub struct ShutdownFile {
    /// Between becoming unready and refusing new connections.
    #[schemars(extend("default" = "0s"))]
    pub delay: Option<Time>,
    /// For all of the draining after that. Keep `delay` and this together below the grace period of
    /// whatever sends the SIGKILL (Kubernetes: 30s).
    #[schemars(extend("default" = "25s"))]
    pub deadline: Option<Time>,
}

/// Probes, metrics, and the API of the marks.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Admin")]
pub struct AdminFile {
    /// `host:port`, `unix:/path/of.sock`, or `off`. Probes and metrics are open to whoever reaches it. Keys and
    /// marks are read without a token on the loopback and over a Unix socket only.
    #[schemars(extend("default" = "127.0.0.1:7081"))]
    pub listen: Option<String>,
    /// A file that holds the bearer token of writes, of at least 16 characters. Without it there are no
    /// writes over the admin API.
    pub token_file: Option<PathBuf>,
    /// A file that holds the bearer token of reads, of at least 16 characters. Without it nobody reads keys
    /// and marks from elsewhere than the loopback, unless by the token of writes.
    pub read_token_file: Option<PathBuf>,
    /// TLS for the admin port.
    pub tls: Option<AdminTlsFile>,
    /// Whether an outage of the store makes `/readyz` fail.
    #[schemars(extend("default" = false))]
    pub ready_follows_store: Option<bool>,
}

/// TLS for the admin port: 1.2 and 1.3, HTTP/1.1. The files are read again when they change; connections that are
/// open stay as they are.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "AdminTls", extend("required" = ["cert_file", "key_file"]))]
pub struct AdminTlsFile {
    /// The certificate, with its chain behind it: PEM.
    pub cert_file: Option<PathBuf>,
    /// Its private key: PEM, not encrypted.
    pub key_file: Option<PathBuf>,
}

/// What is written to standard error.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Log")]
pub struct LogFile {
    /// `json`, or `text` for people. By default text on a terminal and JSON elsewhere.
    pub format: Option<LogFormat>,
    /// `error`, `warn`, `info`, `debug` or `trace`; also by module: `info,fencepost::marks=debug`.
    #[schemars(extend("default" = "info"))]
    pub level: Option<String>,
}
