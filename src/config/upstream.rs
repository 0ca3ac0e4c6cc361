//! The checks of the block `upstream`: where requests go, and how long that may take.

use std::time::Duration;

use super::addresses;
use super::checks::{count, seconds, taken, time};
use super::file::UpstreamFile;
use super::parts;
use super::problems::Report;
use super::settings::{HostPolicy, UnknownStatuses, UpstreamSettings, UpstreamUrl};
use super::tls;
use super::tls_settings::UpstreamTlsSettings;
use super::units::Time;

/// Each is a descriptor, and those of one upstream share its address and port.
const MAX_HTTP2_CONNECTIONS: usize = 10_000;

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
    let host = match file.host.as_deref() {
        Some(host) => taken("upstream.host", addresses::host(host), report),
        None => Some(HostPolicy::Preserve),
    };
    let timeout = time("upstream.timeout", file.timeout, seconds(30), report);
    if timeout > settle && !settle.is_zero() {
        longer_than_settle("upstream.timeout".to_owned(), report);
    }
    let connect_timeout = time(
        "upstream.connect_timeout",
        file.connect_timeout,
        seconds(2),
        report,
    );
    let idle_timeout = time(
        "upstream.idle_timeout",
        file.idle_timeout,
        seconds(4),
        report,
    );
    let undelivered = undelivered(file.undelivered, report);
    let unknown = parts::unknown_statuses(
        "upstream",
        (file.unknown_statuses, file.unknown_grpc_statuses),
        &UnknownStatuses::default(),
        report,
    );
    let http2 = file.http2.unwrap_or(false);
    if http2
        && url
            .as_ref()
            .is_some_and(|url| !matches!(url, UpstreamUrl::Https(_)))
    {
        report.error(
            "upstream.http2",
            "without TLS there is no ALPN to agree on HTTP/2 by",
            "h2c:// in upstream.url speaks it without TLS; for https:// leave this in",
        );
    }
    let http2_connections = http2_connections(file.http2_connections, report);
    let tls = match file.tls {
        Some(block) => tls::upstream(block, url.as_ref(), report),
        None => Some(UpstreamTlsSettings::default()),
    };
    Some(UpstreamSettings {
        url: url?,
        host: host?,
        connect_timeout,
        timeout,
        idle_timeout,
        undelivered,
        unknown,
        http2,
        http2_connections,
        tls: tls?,
    })
}

/// A kernel that gives up sooner than a retransmission breaks healthy connections. After a death,
/// the others wait for this long.
fn undelivered(given: Option<Time>, report: &mut Report) -> Duration {
    let at = "upstream.undelivered";
    let undelivered = time(at, given, seconds(10), report);
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

fn http2_connections(given: Option<u64>, report: &mut Report) -> usize {
    let at = "upstream.http2_connections";
    let connections = count(at, given, 64, report);
    if connections > MAX_HTTP2_CONNECTIONS {
        report.error(
            at,
            "more connections than one address has ports to spare for",
            "1 to 10000; 64 carry 6,400 requests at once where the upstream allows 100 streams each",
        );
    }
    connections
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
