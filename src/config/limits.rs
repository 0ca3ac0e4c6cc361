//! Limits on concurrency and time. The program's memory follows from them.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::checks::{count, seconds, time};
use super::problems::Report;
use super::settings::{LimitSettings, PeerShare, all_but_a_quarter};
use super::units::{CountOrNone, Limit, Size, Time};
use crate::routing::ResourceKey;

/// Limits of the data port.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Limits")]
pub struct LimitsFile {
    /// How many requests may be in progress or waiting; more get a 503.
    #[schemars(extend("default" = 4096))]
    pub in_flight: Option<u64>,
    /// How many of them may come from one connection. HTTP/2 clients are told, and wait or open
    /// another connection. The default is a quarter of `in_flight`.
    pub in_flight_per_connection: Option<u64>,
    /// How many of them may come from one address: an IPv4 address, or an IPv6 /64. The default is
    /// three quarters of `in_flight`, and no limit for loopback addresses. Use `none` if all
    /// clients come from one address, such as a single load balancer.
    pub in_flight_per_client: Option<CountOrNone>,
    /// How many of them may be of one resource, waiting or in flight. The default is three quarters
    /// of `in_flight`. Use `none` if there is only one resource.
    pub in_flight_per_resource: Option<CountOrNone>,
    /// How many connections may be open on the data port. For another one, the connection that has
    /// been idle longest is closed; if none is idle, the new one waits.
    #[schemars(extend("default" = 4096))]
    pub connections: Option<u64>,
    /// How many connections one address may have open. For another one, its connection that has
    /// been idle longest is closed; if none is idle, the new one is. The default is three quarters
    /// of `connections`, and no limit for loopback addresses. Use `none` if all clients come from
    /// one address.
    pub connections_per_client: Option<CountOrNone>,
    /// How many requests one HTTP/2 connection may have in progress; its client is told, and waits.
    #[schemars(extend("default" = 128))]
    pub http2_streams: Option<u64>,
    /// How long a client may take for the head of a request, and for its TLS handshake.
    #[schemars(extend("default" = "10s"))]
    pub head_timeout: Option<Time>,
    /// How long a connection may stay open without a request.
    #[schemars(extend("default" = "75s"))]
    pub idle_timeout: Option<Time>,
    /// How long a client may read nothing of a response that waits for it; then its connection is
    /// reset.
    #[schemars(extend("default" = "30s"))]
    pub write_timeout: Option<Time>,
    /// How many bytes the head of a request may have, and its trailers; more get a 431.
    #[schemars(extend("default" = "64KiB"))]
    pub header_bytes: Option<Size>,
    /// How many header lines a request may have, at most 10,000; more get a 431.
    #[schemars(extend("default" = 100))]
    pub header_count: Option<u64>,
    /// How many bytes a request's target may have; more get a 414.
    #[schemars(extend("default" = "8KiB"))]
    pub target_bytes: Option<Size>,
    /// How many bytes of bodies may be held at once, over all requests; requests beyond that get a
    /// 503.
    #[schemars(extend("default" = "256MiB"))]
    pub body_memory: Option<Size>,
    /// How many bytes a resource's key may have; longer keys get a 400. 1 to 1024.
    #[schemars(extend("default" = 1024))]
    pub key_bytes: Option<Size>,
    /// How many resources may get their first mark in a second, averaged over ten seconds. Requests
    /// for more get a 503 and may be sent again. A mark is kept for ever. `none`: no limit.
    #[schemars(extend("default" = 1000))]
    pub new_resources: Option<CountOrNone>,
    /// The same for one client: an IPv4 address, or an IPv6 /64. `none`: no number. In any case, a
    /// client's recent usage is at most three times what is left for all.
    #[schemars(extend("default" = "none"))]
    pub new_resources_per_client: Option<CountOrNone>,
    /// The minimum rate of a request's body, in bytes a second, on average. A client that falls
    /// behind by `body.progress_timeout` gets a 408. `none`: no limit. gRPC calls to an upstream
    /// that speaks HTTP/2 may be slower until others need their places.
    #[schemars(extend("default" = 512))]
    pub body_rate: Option<Limit>,
}

/// The checks of the block.
pub(super) fn settings(file: &LimitsFile, report: &mut Report) -> LimitSettings {
    let header_bytes = bytes("header_bytes", file.header_bytes, 64 << 10, report);
    let target_bytes = bytes("target_bytes", file.target_bytes, 8 << 10, report);
    if target_bytes > header_bytes {
        report.warn(
            "limits.target_bytes",
            "more than the whole head may have (`limits.header_bytes`)",
            "",
        );
    }
    if header_bytes > MOST_HEAD {
        report.error(
            "limits.header_bytes",
            "too large: this much is held in memory for every connection",
            "1MiB at most",
        );
    }
    let in_flight = count("limits.in_flight", file.in_flight, 4096, report);
    let connections = count("limits.connections", file.connections, 4096, report);
    LimitSettings {
        in_flight,
        in_flight_per_connection: per_connection(file, in_flight, report),
        in_flight_per_client: per_client("in_flight", in_flight, file.in_flight_per_client, report),
        in_flight_per_resource: per_resource(file, in_flight, report),
        connections,
        connections_per_client: per_client(
            "connections",
            connections,
            file.connections_per_client,
            report,
        ),
        http2_streams: streams(file.http2_streams, report),
        head_timeout: period("head_timeout", file.head_timeout, 10, report),
        idle_timeout: period("idle_timeout", file.idle_timeout, 75, report),
        write_timeout: period("write_timeout", file.write_timeout, 30, report),
        header_bytes,
        header_count: header_count(file.header_count, report),
        target_bytes,
        body_memory: bytes("body_memory", file.body_memory, 256 << 20, report),
        key_bytes: key_bytes(file.key_bytes, report),
        new_resources: rate("new_resources", file.new_resources, Some(1000), report),
        new_resources_per_client: rate(
            "new_resources_per_client",
            file.new_resources_per_client,
            None,
            report,
        ),
        body_rate: body_rate(file.body_rate, report),
    }
}

fn key_bytes(given: Option<Size>, report: &mut Report) -> usize {
    let most = bytes("key_bytes", given, ResourceKey::MAX_BYTES, report);
    if most > ResourceKey::MAX_BYTES {
        report.error(
            "limits.key_bytes",
            "no key is longer than 1024 bytes",
            "1024 at most; a key of 50 bytes is a long one already",
        );
    }
    most
}

/// A number in a second, or its default; not zero. `None`: no limit.
fn rate(
    field: &str,
    given: Option<CountOrNone>,
    default: Option<u32>,
    report: &mut Report,
) -> Option<u32> {
    let Some(given) = given else { return default };
    let count = count(&format!("limits.{field}"), Some(given.0?), 1, report);
    u32::try_from(count).ok()
}

fn per_connection(file: &LimitsFile, in_flight: usize, report: &mut Report) -> usize {
    let at = "limits.in_flight_per_connection";
    let given = file.in_flight_per_connection;
    let share = count(at, given, (in_flight / 4).max(1), report);
    if given.is_some() && share >= in_flight {
        report.warn(
            at,
            "one HTTP/2 connection can take all places (`limits.in_flight`): others get 503",
            "a quarter of limits.in_flight, or leave it out",
        );
    }
    let streams = file
        .http2_streams
        .and_then(|given| usize::try_from(given).ok());
    if let Some(streams) = streams
        && streams > share
    {
        report.warn(
            "limits.http2_streams",
            format!(
                "more than the places of one connection: clients are told {share} \
                 (`limits.in_flight_per_connection`)"
            ),
            "",
        );
    }
    share
}

fn per_client(
    limit: &str,
    all: usize,
    given: Option<CountOrNone>,
    report: &mut Report,
) -> Option<PeerShare> {
    let Some(given) = given else {
        return Some(PeerShare {
            most: all_but_a_quarter(all),
            of: all,
            loopback: false,
        });
    };
    let at = format!("limits.{limit}_per_client");
    let most = count(&at, Some(given.0?), 1, report);
    if most >= all {
        report.warn(
            at,
            format!("one address can take all places (`limits.{limit}`)"),
            "three quarters of it at most; or `none`, where all clients come by one address",
        );
    }
    Some(PeerShare {
        most,
        of: all,
        loopback: true,
    })
}

fn per_resource(file: &LimitsFile, in_flight: usize, report: &mut Report) -> Option<usize> {
    let Some(given) = file.in_flight_per_resource else {
        return Some(all_but_a_quarter(in_flight));
    };
    let at = "limits.in_flight_per_resource";
    let share = count(at, Some(given.0?), 1, report);
    if share >= in_flight {
        report.warn(
            at,
            "the requests of one resource can take all places (`limits.in_flight`)",
            "three quarters of it at most; or `none`, where there is one resource only",
        );
    }
    Some(share)
}

/// Warns of a queue that one resource never fills, or that takes the places of all others.
pub(super) fn queue(limits: &LimitSettings, queue: Option<usize>, report: &mut Report) {
    let Some(queue) = queue else { return };
    match limits.in_flight_per_resource {
        Some(share) if queue > share => report.warn(
            "barrier.queue",
            format!(
                "never reached: the requests of one resource have {share} places \
                 (`limits.in_flight_per_resource`)"
            ),
            "",
        ),
        None if queue >= limits.in_flight => report.warn(
            "barrier.queue",
            "the requests that wait at one resource can take all places (`limits.in_flight`)",
            "less than limits.in_flight",
        ),
        _ => {}
    }
}

fn body_rate(given: Option<Limit>, report: &mut Report) -> Option<u64> {
    let Some(given) = given else {
        return Some(BODY_RATE);
    };
    let rate = given.0?;
    if rate == 0 {
        report.error(
            "limits.body_rate",
            "must be greater than zero",
            "such as 512, or none",
        );
    }
    Some(rate.max(1))
}

/// Bytes a second. GPRS brings 1,000 and more.
const BODY_RATE: u64 = 512;

/// The most that `header_count` may be. hyper makes room for as many with each request, and the
/// `http` crate panics where a message has more than 24,576.
const MOST_HEADERS: usize = 10_000;

fn header_count(given: Option<u64>, report: &mut Report) -> usize {
    let at = "limits.header_count";
    let lines = count(at, given, 100, report);
    if lines > MOST_HEADERS {
        report.error(
            at,
            "too large: each request reserves room for this many",
            "10000 at most; 100 suits most services",
        );
    }
    lines
}

/// The most that `header_bytes` may be.
const MOST_HEAD: usize = 1 << 20;

/// The most that HTTP/2 has numbers for (RFC 9113, 5.1.1).
const MOST_STREAMS: u32 = 1 << 30;

fn streams(given: Option<u64>, report: &mut Report) -> u32 {
    let count = count("limits.http2_streams", given, 128, report);
    let streams = u32::try_from(count).unwrap_or(u32::MAX);
    if streams > MOST_STREAMS {
        report.error(
            "limits.http2_streams",
            "too large: HTTP/2 has no stream ids for this many",
            "128, or some hundreds for clients that share one connection",
        );
    }
    streams
}

fn period(field: &str, given: Option<Time>, default: u64, report: &mut Report) -> Duration {
    time(&format!("limits.{field}"), given, seconds(default), report)
}

fn bytes(field: &str, given: Option<Size>, default: usize, report: &mut Report) -> usize {
    let given = given.map(|size| size.0);
    count(&format!("limits.{field}"), given, default, report)
}
