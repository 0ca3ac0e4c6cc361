//! Whole responses that leave the outcome open: a gateway's 502 and 504, and responses that end
//! with their connection. The client gets them as they are, and newer tokens wait (guarantee G2).

mod grpc;

use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use super::broken::{STAYS_UNKNOWN, unknown_once};
use crate::support::nginx::Nginx;
use crate::support::postgres::free_port;
use crate::support::process::Process;
use crate::support::store::tool;
use crate::support::upstream::response;
use crate::support::{
    Config, Gate, Proxy, Request, Step, Store, Upstream, delete, fenced, forwarded, get, or_return,
    put,
};

#[tokio::test]
async fn a_gateways_502_or_504_passes_as_it_is_and_newer_tokens_wait() {
    for (status, text) in [(502, "502 Bad Gateway"), (504, "504 Gateway Timeout")] {
        let (upstream, proxy) = fenced(STAYS_UNKNOWN).await;
        upstream.next([Step::answer(text, "X-Gateway: yes\r\n", "lost it\n")]);
        let answer = proxy.send(put("/orders/7").token(41)).await;
        assert_eq!((answer.status(), answer.outcome()), (status, None));
        assert_eq!(answer.text(), "lost it\n");
        assert_eq!(answer.header("x-gateway"), Some("yes"));
        let waits = proxy.send(put("/orders/7").token(42)).await;
        waits.assert_problem(503, "older-in-flight");
        let seconds = waits.retry_after().expect("until it has settled");
        assert!((201..=300).contains(&seconds), "{seconds}");
        assert_eq!(upstream.tokens("order:7"), [41]);
        unknown_once(&proxy, 41, status).await;
        // Nothing is wrong with the connection.
        proxy.forward(put("/orders/8").token(1)).await;
        assert_eq!(upstream.connections(), 1);
    }
}

type Make = fn(&str) -> Request;

/// By their status, as the upstream and each route say, and by their end.
#[tokio::test]
async fn which_answers_leave_the_outcome_open() {
    let statuses = "
        upstream: { unknown_statuses: [503] }
        routes:
          - { path: '/orders/{id}', resource: 'order:{id}' }
          - { path: '/sure/{id}', resource: 'order:{id}', upstream: { unknown_statuses: [] } }
          - { path: '/odd/{id}', resource: 'order:{id}', upstream: { unknown_statuses: [202] } }
          - { path: '/acts/{id}', resource: 'order:{id}', safe_methods: required }
        ";
    let (upstream, proxy) = fenced(&format!("{statuses}{STAYS_UNKNOWN}")).await;
    let of = |status: &str| response(status, "", "");
    let open = "HTTP/1.1 200 OK\r\n\r\nall of it, or half";
    let old = "HTTP/1.0 200 OK\r\n\r\nall of it, or half";
    let nothing = "HTTP/1.1 204 No Content\r\n\r\n";
    let overridden = |path: &str| get(path).header("X-Method-Override", "PUT");
    let rows: [(Make, &str, &str, bool); 12] = [
        (put, "orders", &of("502 Bad Gateway"), false),
        (put, "orders", &of("500 Internal Server Error"), false),
        (put, "sure", &of("503 Service Unavailable"), false),
        (put, "odd", &of("503 Service Unavailable"), false),
        (put, "odd", &of("202 Accepted"), true),
        (put, "orders", &of("503 Service Unavailable"), true),
        // Only the end of its connection ends it.
        (put, "orders", open, true),
        (delete, "orders", old, true),
        // A read that is half has changed nothing.
        (get, "orders", open, false),
        // Where a route says that reads write, it may have.
        (get, "acts", open, true),
        (overridden, "orders", open, true),
        (put, "orders", nothing, false),
    ];
    for (row, (request, route, answer, waits)) in rows.into_iter().enumerate() {
        // Each with a resource of its own: the outcome of some stays open.
        upstream.next([Step::raw(answer), Step::Close]);
        let first = request(&format!("/{route}/{row}")).token(1);
        let passed = proxy.send(first).await;
        let found = (passed.head.word(1), passed.outcome());
        assert_eq!(found, (&answer[9..12], None), "row {row}");
        let next = proxy.send(put(&format!("/orders/{row}")).token(2)).await;
        let found = (next.status(), next.outcome());
        let refused = (503, Some("older-in-flight"));
        assert_eq!(
            found,
            if waits { refused } else { (200, None) },
            "row {row}"
        );
    }
}

#[tokio::test]
async fn a_token_that_a_gateway_lost_stays_spent() {
    let (upstream, proxy) = fenced(
        "{ barrier: { settle: 300ms, wait: 20s },
           routes: [{ path: '/orders/{id}', resource: 'order:{id}', reuse: once }] }",
    )
    .await;
    upstream.next([Step::answer("504 Gateway Timeout", "", "")]);
    assert_eq!(proxy.send(put("/orders/7").token(1)).await.status(), 504);
    proxy.stale(put("/orders/7").token(1)).await;
    // And the next one goes once it has settled.
    proxy.forward(put("/orders/7").token(2)).await;
    assert_eq!(upstream.tokens("order:7"), [1, 2]);
}

/// nginx gives up on the service; the service goes on, and takes effect after nginx has said 504.
#[tokio::test]
async fn behind_nginx_a_newer_token_does_not_overtake_what_the_service_still_works_on() {
    let nginx = or_return!(tool("nginx"));
    let service = Upstream::start().await;
    let location = format!("proxy_pass {}; proxy_read_timeout 200ms;", service.url());
    let gateway = Nginx::start(&nginx, &location, "").await;
    let config = Config::to(&gateway.url(), &Store::sqlite());
    let proxy = Proxy::start(&config.with("barrier: { settle: 2s, wait: 20s }")).await;
    let gate = Gate::shut();
    service.on_token(41, [Step::Wait(gate.clone()), Step::ok()]);
    let lost = proxy.send(put("/orders/7").token(41)).await;
    assert_eq!((lost.status(), lost.outcome()), (504, None));
    let newer = proxy.start_request(put("/orders/7").token(42));
    proxy.waiting("order:7", 1).await;
    assert_eq!(service.tokens("order:7"), [41]);
    // Within what `settle` promises, the service is done.
    gate.open();
    forwarded(newer).await;
    assert_eq!(service.tokens("order:7"), [41, 42]);
}

/// `HAProxy` refuses a stream (`REFUSED_STREAM`: not processed, may be sent again) whose request
/// its server has read over a connection that was used before, and closed without an answer.
#[tokio::test]
async fn behind_haproxy_a_refused_stream_is_unknown_and_not_sent_again() {
    let haproxy = or_return!(tool("haproxy"));
    let service = Upstream::start().await;
    let dir = TempDir::new().expect("a temporary directory");
    let port = free_port();
    let configuration = format!(
        "global
           nbthread 1
         defaults
           mode http
           http-reuse always
         listen here
           bind 127.0.0.1:{port} proto h2
           server it {}\n",
        service.url().trim_start_matches("http://")
    );
    let file = dir.path().join("haproxy.cfg");
    std::fs::write(&file, configuration).expect("the directory is writable");
    let mut haproxy = Process::start(Command::new(haproxy).arg("-db").arg("-f").arg(&file));
    haproxy.listens_on(port).await;
    let url = format!("h2c://127.0.0.1:{port}");
    let proxy = Proxy::start(&Config::to(&url, &Store::sqlite()).with(STAYS_UNKNOWN)).await;
    proxy.forward(put("/orders/7").token(40)).await;
    service.next([Step::Close]);
    let request = put("/orders/7").token(41).body("read");
    proxy.refuse(request, 502, "outcome-unknown").await;
    // If HAProxy does otherwise one day, this line does not come.
    let refused = |line: &Value| line["reason"].to_string().contains("refused stream");
    proxy.logged("a refused stream in the log", refused).await;
    let newer = put("/orders/7").token(42);
    proxy.refuse(newer, 503, "older-in-flight").await;
    assert_eq!(service.tokens("order:7"), [40, 41]);
}
