//! The block `upstream`: where requests go, and how long that may take.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::tls::{self, UpstreamTlsFile};
use super::units::{Size, Time};
use super::unknown_statuses::{GRPC, HTTP, written};
use super::values::{count, positive, taken};
use crate::config::addresses;
use crate::config::settings::{UnknownStatuses, UpstreamSettings, UpstreamUrl};
use crate::config::tls_settings::UpstreamTlsSettings;
use crate::config::yaml::Report;

/// The protected upstream.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Upstream")]
pub struct UpstreamFile {
    /// `http://host:port`, `https://host`, `h2c://host:port` (HTTP/2 without TLS) or
    /// `unix:/path/of.sock`. Without a path: request targets are passed on byte for byte.
    pub url: Option<String>,
    /// The `Host` that the upstream sees: `preserve` (the client's), `rewrite` (the URL's), or a
    /// literal `host` or `host:port`.
    pub host: String,
    /// Time for the connection, from the look-up of the name to the end of the TLS handshake. The
    /// addresses of a name share it: the next one is tried when one has failed, or has not answered
    /// for 250 ms.
    pub connect_timeout: Time,
    /// Time until the head of the response. After that the outcome is unknown, and the request
    /// counts as in flight for `barrier.settle`. Not longer than that: raise both together.
    pub timeout: Time,
    /// The time for which an idle connection is kept, below the upstream's own keep-alive, so that
    /// fewer requests meet a connection that is being closed. `0s`: over HTTP/1, no connection is
    /// used twice.
    pub idle_timeout: Time,
    /// The time for which the kernel tries to deliver bytes of a fenced request that the upstream
    /// does not read (`TCP_USER_TIMEOUT`, RFC 5482). Then it drops them and resets the connection,
    /// whether the proxy runs or not. A lost packet is sent again after 0.2, 0.6, 1.4 and 3 s on a
    /// fast network: the default leaves room for these. When a proxy dies, the others wait for
    /// `store.lease`, then for this, then for `barrier.settle`. 100ms to 10m.
    pub undelivered: Time,
    /// Statuses with which a gateway before the upstream says that it does not know the outcome.
    /// The client gets the response unchanged, and the request counts as in flight for
    /// `barrier.settle`, because the upstream may still be working. Envoy uses 503 too. `[]`: none.
    /// 200 to 599.
    #[schemars(with = "Vec<u16>")]
    pub unknown_statuses: Vec<Option<u16>>,
    /// The same for gRPC, whose gateways answer with the HTTP status 200: values of `grpc-status`.
    /// 1 is `CANCELLED`, 4 `DEADLINE_EXCEEDED`, 14 `UNAVAILABLE`. A 2xx to a gRPC call without a
    /// status counts as one of these. `[]`: none. 1 to 16.
    #[schemars(with = "Vec<u16>")]
    pub unknown_grpc_statuses: Vec<Option<u16>>,
    /// `true`: speak HTTP/2 to an `https://` upstream, which must offer it by ALPN. `false`:
    /// HTTP/1.1.
    pub http2: bool,
    /// The bytes of the head of a response; over HTTP/2, 256KiB in any case. A response with a
    /// larger one is an unknown outcome. 64KiB to 16MiB.
    pub header_bytes: Size,
    /// TLS to an `https://` upstream, if the system's root certificates do not suffice, or the
    /// proxy needs a certificate of its own.
    pub tls: Option<UpstreamTlsFile>,
}

impl Default for UpstreamFile {
    fn default() -> Self {
        let unknown = UnknownStatuses::default();
        Self {
            url: None,
            host: "preserve".to_owned(),
            connect_timeout: Time::seconds(2),
            timeout: Time::seconds(10),
            idle_timeout: Time::seconds(4),
            undelivered: Time::seconds(5),
            unknown_statuses: written(&unknown.http),
            unknown_grpc_statuses: written(&unknown.grpc),
            http2: false,
            header_bytes: Size(64 << 10),
            tls: None,
        }
    }
}

/// The checks of the block. `None` if it is wrong. `settle`: that of the barrier.
pub(super) fn settings(
    file: UpstreamFile,
    settle: Duration,
    report: &mut Report,
) -> Option<UpstreamSettings> {
    if file.url.is_none() {
        report.error(
            "upstream.url",
            "no upstream is given",
            "such as http://127.0.0.1:3000, in the file or by --upstream",
        );
    }
    let url = file.url.as_deref();
    let url = url.and_then(|url| taken("upstream.url", addresses::upstream(url), report));
    let host = taken("upstream.host", addresses::host(&file.host), report);
    let timeout = positive("upstream.timeout", file.timeout, report);
    if timeout > settle && !settle.is_zero() {
        longer_than_settle("upstream.timeout".to_owned(), report);
    }
    let connect_timeout = positive("upstream.connect_timeout", file.connect_timeout, report);
    let undelivered = undelivered(file.undelivered, report);
    let (http, grpc) = (file.unknown_statuses, file.unknown_grpc_statuses);
    let unknown = UnknownStatuses {
        http: HTTP.read("upstream.unknown_statuses", http, report),
        grpc: GRPC.read("upstream.unknown_grpc_statuses", grpc, report),
    };
    if file.http2
        && url
            .as_ref()
            .is_some_and(|url| !matches!(url, UpstreamUrl::Https(_)))
    {
        report.with("upstream.url").error(
            "upstream.http2",
            "HTTP/2 over https:// is agreed on by ALPN, and this URL is not https",
            "for HTTP/2 without TLS, write h2c:// in upstream.url",
        );
    }
    let header_bytes = count("upstream.header_bytes", file.header_bytes.0, report);
    if !(64 << 10..=16 << 20).contains(&header_bytes) {
        report.error(
            "upstream.header_bytes",
            "out of range",
            "64KiB to 16MiB; a head is held in memory until it is whole",
        );
    }
    let tls = match file.tls {
        Some(block) => tls::upstream(block, url.as_ref(), report),
        None => Some(UpstreamTlsSettings::default()),
    };
    Some(UpstreamSettings {
        url: url?,
        host: host?,
        connect_timeout,
        timeout,
        idle_timeout: file.idle_timeout.0,
        undelivered,
        unknown,
        http2: file.http2,
        header_bytes,
        tls: tls?,
    })
}

/// A kernel that gives up sooner than a retransmission breaks healthy connections. After a death,
/// the others wait for this long.
fn undelivered(given: Time, report: &mut Report) -> Duration {
    let at = "upstream.undelivered";
    let undelivered = positive(at, given, report);
    let bounds = Duration::from_millis(100)..=Duration::from_mins(10);
    if !undelivered.is_zero() && !bounds.contains(&undelivered) {
        report.error(
            at,
            "out of range",
            "100ms to 10m; several seconds leave room for lost packets and a busy upstream",
        );
    }
    undelivered
}

/// Warns of a route whose upstream may answer later than `barrier.settle` allows for.
pub(super) fn longer_than_settle(at: String, report: &mut Report) {
    report.with("barrier.settle").warn(
        at,
        "the upstream is given longer than `barrier.settle` allows for: a request that breaks may \
         still take effect after a newer token has been admitted",
        "raise barrier.settle to the longest time that the upstream works on a request",
    );
}
