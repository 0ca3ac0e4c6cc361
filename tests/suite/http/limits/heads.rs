//! Heads: how long they may be, how many lines they may have, and how long their targets may be,
//! from small limits up to the most that can be configured.

use crate::support::{Config, Proxy, Request, Store, Upstream, fenced, put};

/// The library panics beyond 24,576 lines, and makes room for as many with each.
#[tokio::test]
async fn more_header_lines_than_the_library_can_hold_are_not_configured() {
    let upstream = Upstream::start().await;
    for count in ["10001", "30000", "4294967295"] {
        let limits = format!("limits: {{ header_bytes: 1MiB, header_count: {count} }}");
        let config = Config::new(&upstream, &Store::sqlite()).with(&limits);
        Proxy::refused_for(&config, &["limits.header_count", "10000 at most"]).await;
    }
}

/// With a target of this length.
fn target(length: usize) -> Request {
    put(&format!("/orders/7?{}", "x".repeat(length - 10))).token(1)
}

/// With so many lines. Host, token and length are three.
fn lines(count: usize) -> Request {
    (3..count).fold(put("/orders/7").token(1), |put, _| put.header("X", "y"))
}

/// With a head of so many bytes.
fn bytes(length: usize) -> Request {
    let bare = put("/orders/7").token(1).header("X", "");
    let pad = length - bare.head_bytes().len();
    put("/orders/7").token(1).header("X", "x".repeat(pad))
}

/// A limit, the request that has so much of it, how much may be, and its label.
type Case = (&'static str, fn(usize) -> Request, usize, &'static str);

const LIMITS: [Case; 6] = [
    ("target_bytes: 100", target, 100, "target-bytes"),
    ("target_bytes: 60KiB", target, 60 << 10, "target-bytes"),
    ("header_count: 5", lines, 5, "header-count"),
    (
        "header_bytes: 1MiB, header_count: 10000",
        lines,
        10_000,
        "header-count",
    ),
    ("header_bytes: 1KiB", bytes, 1 << 10, "header-bytes"),
    ("header_bytes: 1MiB", bytes, 1 << 20, "header-bytes"),
];

/// Beyond the limits by default: `tests/edge/limits.toml`.
#[tokio::test]
async fn limits_reach_as_far_as_they_say() {
    for (limits, with, most, limit) in LIMITS {
        let (upstream, proxy) = fenced(&format!("limits: {{ {limits} }}")).await;
        proxy.forward(with(most)).await;
        let (status, kind) = match limit {
            "target-bytes" => (414, "target-too-long"),
            _ => (431, "head-too-large"),
        };
        proxy.refuse(with(most + 1), status, kind).await;
        assert_eq!(upstream.count(), 1, "{limits}");
        assert_eq!(proxy.reached(limit).await, 1, "{limits}");
    }
}
