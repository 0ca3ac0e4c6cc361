//! The block `upstream`: where requests go, and how long that may take.

use std::sync::Arc;
use std::time::Duration;

use super::addresses::{HostPolicy, UpstreamUrl};
use super::tls::{self, UpstreamTlsFile, UpstreamTlsSettings};
use super::units::{Count, Positive, Size, Status, Time};
use super::yaml::{Report, blocks};

blocks! {
    /// The protected upstream.
    pub struct UpstreamSettings {
        /// `http://host:port`, `https://host`, `h2c://host:port` (HTTP/2 without TLS) or
        /// `unix:/path/of.sock`. Without a path: request targets are passed on byte for byte.
        pub url: UpstreamUrl = UpstreamUrl::Http(String::new()),
        /// The `Host` that the upstream sees: `preserve` (the client's), `rewrite` (the URL's), or
        /// a literal `host` or `host:port`.
        #[schemars(extend("default" = "preserve"))]
        pub host: HostPolicy = HostPolicy::Preserve,
        /// Time for the connection, from the look-up of the name to the end of the TLS handshake.
        /// The addresses of a name share it: the next one is tried when one has failed, or has not
        /// answered for 250 ms.
        pub connect_timeout: Positive = Positive::seconds(2),
        /// Time until the head of the response. After that the outcome is unknown, and the request
        /// counts as in flight for `barrier.settle`. Not longer than that: raise both together.
        pub timeout: Positive = Positive::seconds(10),
        /// The time for which an idle connection is kept, below the upstream's own keep-alive, so
        /// that fewer requests meet a connection that is being closed. `0s`: no connection is used
        /// twice.
        pub idle_timeout: Time = Time::seconds(4),
        /// The time for which the kernel tries to deliver bytes of a fenced request that the
        /// upstream does not read (`TCP_USER_TIMEOUT`, RFC 5482). Then it drops them and resets the
        /// connection, whether the proxy runs or not. A lost packet is sent again after 0.2, 0.6,
        /// 1.4 and 3 s on a fast network: the default leaves room for these. When a proxy dies, the
        /// others wait for `store.lease`, then for this, then for `barrier.settle`. 100ms to 10m.
        pub undelivered: Positive = Positive::seconds(5),
        /// Statuses with which a gateway before the upstream says that it does not know the
        /// outcome. The client gets the response unchanged, and the request counts as in flight for
        /// `barrier.settle`, because the upstream may still be working. Envoy uses 503 too. `[]`:
        /// none. 200 to 599.
        // Gateways answer with these when they have lost the upstream (RFC 9110, 15.6.3 and 15.6.5).
        // Envoy and gRPC's own libraries turn that, and a call that was given up, into CANCELLED,
        // `DEADLINE_EXCEEDED`, UNAVAILABLE:
        // <https://grpc.github.io/grpc/core/md_doc_statuscodes.html>
        pub unknown_statuses: Vec<FinalStatus> = [502, 504].map(Count).into(),
        /// The same for gRPC, whose gateways answer with the HTTP status 200: values of
        /// `grpc-status`. 1 is `CANCELLED`, 4 `DEADLINE_EXCEEDED`, 14 `UNAVAILABLE`. A 2xx to a
        /// gRPC call without a status counts as one of these. `[]`: none. 1 to 16.
        pub unknown_grpc_statuses: Vec<Status<1, 16>> = [1, 4, 14].map(Count).into(),
        /// `true`: speak HTTP/2 to an `https://` upstream, which must offer it by ALPN. `false`:
        /// HTTP/1.1.
        pub http2: bool = false,
        /// The bytes of the head of a response; over HTTP/2, 256KiB in any case. A response with a
        /// larger one is an unknown outcome. 64KiB to 16MiB.
        pub header_bytes: Size<{ 64 << 10 }, { 16 << 20 }> = Size(64 << 10),
        /// TLS to an `https://` upstream, if the system's root certificates do not suffice, or the
        /// proxy needs a certificate of its own.
        #[serde(rename = "tls")]
        pub(super) tls_files: Option<UpstreamTlsFile>,
        /// TLS, ready to use.
        #[serde(skip)]
        pub tls: UpstreamTlsSettings,
    }
}

/// The status of a final response.
pub(super) type FinalStatus = Status<200, 599>;

/// Statuses with which a gateway says that it does not know the outcome of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnknownStatuses {
    pub http: Arc<[u16]>,
    /// Values of `grpc-status`, which come in an HTTP response with 200.
    pub grpc: Arc<[u16]>,
}

impl UnknownStatuses {
    pub(super) fn of(http: &[FinalStatus], grpc: &[Status<1, 16>]) -> Self {
        Self {
            http: http.iter().map(|status| status.status()).collect(),
            grpc: grpc.iter().map(|status| status.status()).collect(),
        }
    }
}

impl UpstreamSettings {
    /// `settle`: that of the barrier.
    pub(super) fn check(&mut self, settle: Duration, report: &mut Report) {
        let is_missing = self.url == UpstreamUrl::Http(String::new());
        let is_https = matches!(self.url, UpstreamUrl::Https(_));
        let text = "no upstream is given\n\
                    such as http://127.0.0.1:3000, in the file or by --upstream";
        report.error_if(is_missing, "upstream.url", text);
        fits_settle("upstream.timeout", self.timeout, settle, report);
        // A kernel that gives up sooner than a retransmission breaks healthy connections. After a
        // death, the others wait for this long.
        let bounds = Duration::from_millis(100)..=Duration::from_mins(10);
        let is_odd = !bounds.contains(&self.undelivered.0);
        let text = "out of range\n\
                    100ms to 10m; several seconds leave room for lost packets and a busy upstream";
        report.error_if(is_odd, "upstream.undelivered", text);
        let is_vain = self.http2 && !is_https && !is_missing;
        let text = "HTTP/2 over https:// is agreed on by ALPN, and this URL is not https\n\
                    for HTTP/2 without TLS, write h2c:// in upstream.url";
        report.error_beside(is_vain, ["upstream.http2", "upstream.url"], text);
        if let Some(files) = self.tls_files.take() {
            let url = (!is_missing).then_some(&self.url);
            self.tls = tls::upstream(files, url, report).unwrap_or_default();
        }
    }
}

/// Warns of a time after which the upstream may still work on what has been given up.
pub(super) fn fits_settle(at: &str, timeout: Positive, settle: Duration, report: &mut Report) {
    let text = "the upstream is given longer than `barrier.settle`, so an old request may still take \
                effect\nraise barrier.settle to the longest time that the upstream works on one";
    report.warn_beside(timeout.0 > settle, [at, "barrier.settle"], text);
}
