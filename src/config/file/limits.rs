//! The block `limits`: limits of the data port on concurrency and time. The program's memory
//! follows from them.

use schemars::JsonSchema;
use serde::Deserialize;

use super::units::{OrNone, Size, Time};
use super::values::{count, positive};
use crate::config::settings::{ClientShare, LimitSettings, all_but_a_quarter};
use crate::config::yaml::Report;
use crate::routing::ResourceKey;

/// The most that `header_count` may be. hyper makes room for as many with each request, and the
/// `http` crate panics where a message has more than 24,576.
const MAX_HEADER_COUNT: usize = 10_000;

/// The most that `header_bytes` may be.
const MAX_HEADER_BYTES: usize = 1 << 20;

/// HTTP/2 has stream ids for this many (RFC 9113, 5.1.1).
const MAX_HTTP2_STREAMS: u32 = 1 << 30;

/// The default of `http2_streams`.
const HTTP2_STREAMS: u64 = 128;

/// Limits of the data port.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Limits")]
pub struct LimitsFile {
    /// The maximum number of requests in progress or waiting; more get a 503.
    pub in_flight: u64,
    /// The maximum number of them from one connection. HTTP/2 clients are notified, and wait or
    /// open another connection. The default is a quarter of `in_flight`.
    pub in_flight_per_connection: Option<u64>,
    /// The maximum number of them from one address: an IPv4 address, or an IPv6 /64. The default is
    /// three quarters of `in_flight`, and no limit for loopback addresses. Use `none` if all
    /// clients come from one address, such as a single load balancer that is not among
    /// `trusted_proxies`.
    pub in_flight_per_client: Option<OrNone<u64>>,
    /// The maximum number of them of one resource, waiting or in flight. The default is three
    /// quarters of `in_flight`. Use `none` if there is only one resource.
    pub in_flight_per_resource: Option<OrNone<u64>>,
    /// The maximum number of open connections on the data port. For another one, the connection
    /// that has been idle longest is closed; if none is idle, the new one waits.
    pub connections: u64,
    /// The maximum number of open connections of one address. For another one, its connection that
    /// has been idle longest is closed; if none is idle, the new one is. The default is three
    /// quarters of `connections`, and no limit for loopback addresses. Connections of
    /// `trusted_proxies` do not count. Use `none` if all clients come from one address.
    pub connections_per_client: Option<OrNone<u64>>,
    /// The maximum number of requests in progress on one HTTP/2 connection; its client is notified,
    /// and waits.
    #[schemars(extend("default" = HTTP2_STREAMS))]
    pub http2_streams: Option<u64>,
    /// How long a client may take for the head of a request and for its TLS handshake.
    pub head_timeout: Time,
    /// The time for which a connection may stay open without a request.
    pub idle_timeout: Time,
    /// The time for which a client may read nothing of its response; then its connection is reset.
    pub write_timeout: Time,
    /// The maximum bytes of a request's head, and of its trailers; more get a 431.
    pub header_bytes: Size,
    /// The maximum number of header lines of a request, at most 10,000; more get a 431.
    pub header_count: u64,
    /// The maximum bytes of a request's target; more get a 414.
    pub target_bytes: Size,
    /// The maximum bytes of bodies held at once, over all requests; requests beyond that get a
    /// 503.
    pub body_memory: Size,
    /// The maximum bytes of a resource's key; longer keys get a 400. 1 to 1024.
    pub key_bytes: Size,
    /// The maximum number of resources that may get their first mark in a second, averaged over
    /// ten. Requests for more get a 503 and may be sent again. A mark is kept until it is pruned.
    /// `none`: no limit.
    pub new_resources: OrNone<u64>,
}

impl Default for LimitsFile {
    fn default() -> Self {
        Self {
            in_flight: 4096,
            in_flight_per_connection: None,
            in_flight_per_client: None,
            in_flight_per_resource: None,
            connections: 4096,
            connections_per_client: None,
            http2_streams: None,
            head_timeout: Time::seconds(10),
            idle_timeout: Time::seconds(75),
            write_timeout: Time::seconds(30),
            header_bytes: Size(64 << 10),
            header_count: 100,
            target_bytes: Size(8 << 10),
            body_memory: Size(256 << 20),
            key_bytes: Size(ResourceKey::MAX_BYTES as u64),
            new_resources: OrNone(None),
        }
    }
}

/// The checks of the block.
pub(super) fn settings(file: &LimitsFile, report: &mut Report) -> LimitSettings {
    let mut bytes = |field: &str, size: Size| count(&format!("limits.{field}"), size.0, report);
    let header_bytes = bytes("header_bytes", file.header_bytes);
    let target_bytes = bytes("target_bytes", file.target_bytes);
    let body_memory = bytes("body_memory", file.body_memory);
    let key_bytes = bytes("key_bytes", file.key_bytes);
    let header_count = count("limits.header_count", file.header_count, report);
    if target_bytes > header_bytes {
        report.warn(
            "limits.target_bytes",
            "more than the whole head may have (`limits.header_bytes`)",
            "",
        );
    }
    for (field, given, most, message, hint) in [
        (
            "header_bytes",
            header_bytes,
            MAX_HEADER_BYTES,
            "too large: this much is held in memory for every connection",
            "1MiB at most",
        ),
        (
            "header_count",
            header_count,
            MAX_HEADER_COUNT,
            "too large: each request reserves room for this many",
            "10000 at most; 100 suits most upstreams",
        ),
        (
            "key_bytes",
            key_bytes,
            ResourceKey::MAX_BYTES,
            "no key is longer than 1024 bytes",
            "1024 at most; a key of 50 bytes is a long one already",
        ),
    ] {
        if given > most {
            report.error(format!("limits.{field}"), message, hint);
        }
    }
    let in_flight = count("limits.in_flight", file.in_flight, report);
    let connections = count("limits.connections", file.connections, report);
    let in_flight_per_connection = match file.in_flight_per_connection {
        None => (in_flight / 4).max(1),
        Some(given) => part(
            "limits.in_flight_per_connection",
            (given, in_flight),
            "one HTTP/2 connection can use up `limits.in_flight`: others get a 503",
            "a quarter of limits.in_flight, or leave it out",
            report,
        ),
    };
    let http2_streams = http2_streams(file.http2_streams, in_flight_per_connection, report);
    let in_flight_per_client =
        per_client("in_flight", in_flight, file.in_flight_per_client, report);
    let in_flight_per_resource = per_resource(file, in_flight, report);
    let connections_per_client = per_client(
        "connections",
        connections,
        file.connections_per_client,
        report,
    );
    let mut time = |field: &str, time: Time| positive(&format!("limits.{field}"), time, report);
    let head_timeout = time("head_timeout", file.head_timeout);
    let idle_timeout = time("idle_timeout", file.idle_timeout);
    let write_timeout = time("write_timeout", file.write_timeout);
    let new_resources = file
        .new_resources
        .0
        .and_then(|given| u32::try_from(count("limits.new_resources", given, report)).ok());
    LimitSettings {
        in_flight,
        in_flight_per_connection,
        in_flight_per_client,
        in_flight_per_resource,
        connections,
        connections_per_client,
        http2_streams,
        head_timeout,
        idle_timeout,
        write_timeout,
        header_bytes,
        header_count,
        target_bytes,
        body_memory,
        key_bytes,
        new_resources,
    }
}

/// A part of a limit. Warns of one that leaves nothing to others.
fn part(
    at: &str,
    (given, all): (u64, usize),
    message: &str,
    hint: &str,
    report: &mut Report,
) -> usize {
    let part = count(at, given, report);
    if part >= all {
        report.warn(at, message, hint);
    }
    part
}

fn http2_streams(given: Option<u64>, per_connection: usize, report: &mut Report) -> u32 {
    let at = "limits.http2_streams";
    let streams = count(at, given.unwrap_or(HTTP2_STREAMS), report);
    if given.is_some() && streams > per_connection {
        report.warn(
            at,
            format!(
                "more than one connection may have in flight: clients are told {per_connection} \
                 (`limits.in_flight_per_connection`)"
            ),
            "",
        );
    }
    let streams = u32::try_from(streams).unwrap_or(u32::MAX);
    if streams > MAX_HTTP2_STREAMS {
        report.error(
            at,
            "too large: HTTP/2 has no stream ids for this many",
            "128, or some hundreds for clients that share one connection",
        );
    }
    streams
}

fn per_client(
    limit: &str,
    all: usize,
    given: Option<OrNone<u64>>,
    report: &mut Report,
) -> Option<ClientShare> {
    let most = match given {
        None => all_but_a_quarter(all),
        Some(given) => part(
            &format!("limits.{limit}_per_client"),
            (given.0?, all),
            &format!("one address can use up `limits.{limit}`"),
            "three quarters of it at most; or `none` if all clients come from one address",
            report,
        ),
    };
    Some(ClientShare {
        most,
        of: all,
        loopback: given.is_some(),
    })
}

fn per_resource(file: &LimitsFile, in_flight: usize, report: &mut Report) -> Option<usize> {
    let Some(given) = file.in_flight_per_resource else {
        return Some(all_but_a_quarter(in_flight));
    };
    Some(part(
        "limits.in_flight_per_resource",
        (given.0?, in_flight),
        "the requests of one resource can use up `limits.in_flight`",
        "three quarters of it at most; or `none` if there is only one resource",
        report,
    ))
}

/// Warns of a queue that one resource never fills, or that leaves nothing to other resources.
pub(super) fn check_queue(limits: &LimitSettings, queue: usize, report: &mut Report) {
    match limits.in_flight_per_resource {
        Some(share) if queue > share => report.warn(
            "barrier.queue",
            format!(
                "never reached: one resource may have {share} requests \
                 (`limits.in_flight_per_resource`)"
            ),
            "",
        ),
        None if queue >= limits.in_flight => report.warn(
            "barrier.queue",
            "the requests that wait for one resource can use up `limits.in_flight`",
            "less than limits.in_flight",
        ),
        _ => {}
    }
}
