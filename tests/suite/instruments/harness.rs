//! The suite's own instruments: without a proxy in between, they must see what the tests rely on
//! them to see.

use crate::support::metrics::Metrics;
use crate::support::{Answer, Config, Gate, Request, Step, Store, Upstream, forwarded, put};

fn write(token: u64) -> Request {
    put("/orders/7")
        .token(token)
        .header("X-Fencing-Resource", "order:7")
        .body("x")
}

#[tokio::test]
async fn order_that_is_kept_is_not_blamed() {
    let upstream = Upstream::start().await;
    for token in [1, 1, 2, 5, 5] {
        write(token)
            .send(upstream.address())
            .await
            .assert_forwarded();
    }
    upstream.assert_no_overtaking();
}

#[tokio::test]
#[should_panic(expected = "arrived after")]
async fn an_older_token_that_lands_last_is_seen() {
    let upstream = Upstream::start().await;
    for token in [1, 3, 2] {
        write(token)
            .send(upstream.address())
            .await
            .assert_forwarded();
    }
    upstream.assert_no_overtaking();
}

#[tokio::test]
#[should_panic(expected = "before an older one had ended")]
async fn work_that_overlaps_is_seen() {
    let upstream = Upstream::start().await;
    let gate = Gate::shut();
    upstream.on_token(41, [Step::Wait(gate.clone()), Step::ok()]);
    let older = write(41).start(upstream.address());
    upstream.reached(1).await;
    write(42).send(upstream.address()).await.assert_forwarded();
    gate.open();
    forwarded(older).await;
    upstream.assert_no_overtaking();
}

#[tokio::test]
#[should_panic(expected = "before an older one had ended")]
async fn work_that_goes_on_after_its_caller_has_left_counts() {
    let upstream = Upstream::start().await;
    let gate = Gate::shut();
    upstream.on_token(41, [Step::Wait(gate.clone()), Step::ok()]);
    let given_up = write(41).start(upstream.address());
    upstream.reached(1).await;
    given_up.abort();
    upstream
        .until("the upstream to notice", |all| all[0].left)
        .await;
    write(42).send(upstream.address()).await.assert_forwarded();
    gate.open();
    upstream
        .until("it to end its work", |all| all[0].ended.is_some())
        .await;
    upstream.assert_no_overtaking();
}

#[tokio::test]
async fn bodies_and_trailers_are_seen_as_they_were_sent() {
    let upstream = Upstream::start().await;
    let down =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n";
    upstream.next([
        Step::raw("HTTP/1.1 103 Early Hints\r\n\r\n"),
        Step::raw(down),
    ]);
    let up = put("/a?b=%20").chunks(&[b"one", b"two"], "X-Sum: 2\r\n");
    let answer: Answer = up.send(upstream.address()).await;
    assert_eq!((answer.text().as_str(), answer.interim.len()), ("abc", 1));
    assert_eq!(answer.trailers, [("X-Sum".to_owned(), "1".to_owned())]);
    let seen = upstream.only();
    assert_eq!(
        (seen.method(), seen.target(), seen.text().as_str()),
        ("PUT", "/a?b=%20", "onetwo")
    );
    assert_eq!(seen.trailers, [("X-Sum".to_owned(), "2".to_owned())]);
}

#[tokio::test]
async fn a_break_is_an_error_and_not_an_answer() {
    let upstream = Upstream::start().await;
    for steps in [
        vec![Step::Reset],
        vec![Step::Close],
        vec![
            Step::raw("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"),
            Step::Close,
        ],
        vec![
            Step::raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"),
            Step::Reset,
        ],
    ] {
        upstream.next(steps);
        write(1)
            .attempt(upstream.address())
            .await
            .expect_err("it was broken off");
    }
}

#[test]
fn a_scrape_is_read() {
    let metrics = Metrics::parse(
        "# HELP a_total Help.\n# TYPE a_total counter\na_total{x=\"1\",y=\"a\\\"b,{}\"} 2\na_total{x=\"2\",y=\"\"} 3\nb 0.5\n",
    );
    assert!((metrics.sum("a_total", &[]) - 5.0).abs() < f64::EPSILON);
    assert!((metrics.sum("a_total", &[("y", "a\"b,{}")]) - 2.0).abs() < f64::EPSILON);
    assert!(metrics.has("b", &[]) && !metrics.has("a_total", &[("x", "3")]));
    assert_eq!(metrics.types["a_total"], "counter");
}

#[test]
fn fragments_are_laid_over_the_configuration() {
    let config = Config::to("http://a", &Store::sqlite())
        .with("{ upstream: { timeout: 1s }, routes: [{ path: /x, mode: bypass }] }")
        .route("name: it");
    let text = config.text();
    for part in ["http://a", "timeout", "/x", "name"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("/orders"), "a list is replaced: {text}");
}
