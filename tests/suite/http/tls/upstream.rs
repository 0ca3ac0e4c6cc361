//! TLS toward the upstream: its own CA, the proxy's certificate, its name, HTTP/2 by ALPN; and that
//! nothing is sent where one of these is not as it should be.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;

use crate::http::discretion::is_logged;
use crate::http::serve_http2;
use crate::support::bare::BareUpstream;
use crate::support::tls::{Ca, EXPIRES, Files, server};
use crate::support::{Config, Proxy, Store, Upstream, get, put};

/// A CA, and files that the proxy reads.
fn authority() -> (Ca, Files) {
    let (ca, files) = (Ca::new("the upstream's CA"), Files::new());
    files.put("ca.crt", ca.pem());
    (ca, files)
}

fn config(url: &str, files: &Files) -> Config {
    let ca = files.path("ca.crt");
    Config::to(url, &Store::sqlite()).with(&format!(
        "{{ upstream: {{ tls: {{ ca_file: {} }} }} }}",
        ca.display()
    ))
}

async fn assert_unreachable(proxy: &Proxy, says: &str) {
    for request in [put("/orders/7").token(1), get("/orders/7")] {
        let answer = proxy.send(request).await;
        let problem = answer.assert_problem(502, "upstream-unreachable");
        assert_eq!(problem["retry"], "same-token");
        // The client hears that, and the log hears why.
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert!(says.is_empty() || !detail.contains(says), "{detail}");
    }
    is_logged(proxy, says).await;
    // It is known that nothing was sent: nothing is waited for.
    let metrics = proxy.metrics().await;
    assert!(metrics.sum("fencepost_unknown_outcomes", &[]) < 0.5);
}

#[tokio::test]
async fn the_upstreams_own_ca_is_in_place_of_the_systems() {
    let (ca, files) = authority();
    let offered = ["h2", "http/1.1"];
    let upstream = Upstream::start_tls(server(&ca.server(&["localhost"]), None, &offered)).await;
    let proxy = Proxy::start(&config(upstream.url(), &files)).await;
    proxy.forward(put("/orders/7").token(1)).await;
    proxy.forward(get("/orders/7")).await;
    assert_eq!(upstream.arrivals()[0].token(), Some(1));
    // Without `upstream.http2`.
    assert_eq!(upstream.last().head.word(2), "HTTP/1.1");

    // The system does not know this CA, and neither does who trusts another one.
    let by_system = Config::to(upstream.url(), &Store::sqlite());
    // A machine without root certificates does not start at all, and says so.
    if Path::new("/etc/ssl/certs/ca-certificates.crt").exists() {
        assert_unreachable(&Proxy::start(&by_system).await, "UnknownIssuer").await;
    }
    files.put("ca.crt", Ca::new("another CA").pem());
    assert_unreachable(&Proxy::start(&config(upstream.url(), &files)).await, "").await;
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn the_upstream_has_the_name_that_is_expected() {
    let (ca, files) = authority();
    let upstream = Upstream::start_tls(server(&ca.server(&["orders.internal"]), None, &[])).await;
    let config = config(upstream.url(), &files);
    assert_unreachable(&Proxy::start(&config).await, "certificate").await;
    assert_eq!(upstream.count(), 0);
    let named = config
        .clone()
        .with("{ upstream: { tls: { server_name: orders.internal } } }");
    let proxy = Proxy::start(&named).await;
    proxy.forward(put("/orders/7").token(1)).await;
    let other = config.with("{ upstream: { tls: { server_name: other.internal } } }");
    drop(proxy);
    assert_unreachable(&Proxy::start(&other).await, "certificate").await;

    // An address, for which there is no SNI.
    let upstream = Upstream::start_tls(server(&ca.server(&["127.0.0.1"]), None, &[])).await;
    let url = upstream.url().replace("localhost", "127.0.0.1");
    let proxy = Proxy::start(&super::upstream::config(&url, &files)).await;
    proxy.forward(put("/orders/7").token(1)).await;
}

#[tokio::test]
async fn the_proxy_shows_its_certificate_and_takes_a_new_one() {
    let (ca, files) = authority();
    let clients = Ca::new("the CA of clients");
    let pair = ca.server(&["localhost"]);
    let upstream = Upstream::start_tls(server(&pair, Some(&clients), &[])).await;
    let config = config(upstream.url(), &files);
    let without = Proxy::start(&config).await;
    let answer = without.send(put("/orders/7").token(1)).await;
    assert_eq!(answer.status(), 502, "{}", answer.text());
    assert_eq!(upstream.count(), 0);
    drop(without);

    // One that the upstream refuses; then, in its place, the right one.
    files.put_pair("own", &Ca::new("another CA").client(&["proxy.svc"]));
    let config = config.with(&format!("upstream: {{ tls: {{ {} }} }}", files.pair("own")));
    let proxy = Proxy::start(&config).await;
    let answer = proxy.send(get("/orders/7")).await;
    assert_eq!(answer.status(), 502, "{}", answer.text());
    files.put_pair("own", &clients.client(&["proxy.svc"]));
    proxy.until_forwarded(get("/orders/7")).await;
    proxy.forward(put("/orders/7").token(1)).await;
    let upstream = [("certificate", "upstream")];
    let shown = "fencepost_tls_certificate_expiry_timestamp_seconds";
    let shown = proxy.sum(shown, &upstream).await;
    assert!((shown - EXPIRES).abs() < 1.0, "{shown}");
}

#[tokio::test]
async fn a_handshake_that_stalls_is_no_unknown_outcome() {
    let (_, files) = authority();
    let silent = BareUpstream::start().await;
    let port = silent.address().port();
    let config = config(&format!("https://localhost:{port}"), &files)
        .with("{ upstream: { connect_timeout: 500ms } }");
    let proxy = Proxy::start(&config).await;
    assert_unreachable(&proxy, "no TLS handshake within 500ms").await;
}

#[tokio::test]
async fn http_2_is_agreed_on_by_alpn() {
    let (ca, files) = authority();
    let upstream = BareUpstream::start().await;
    let url = format!("https://localhost:{}", upstream.address().port());
    let acceptor = server(&ca.server(&["localhost"]), None, &["h2"]);
    let acceptor = TlsAcceptor::from(Arc::new(acceptor));
    let (arrived, mut arrivals) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let stream = acceptor.accept(upstream.accept().await).await;
            tokio::spawn(serve_http2(stream.expect("a handshake"), arrived.clone()));
        }
    });
    let config = config(&url, &files).with("{ upstream: { http2: true } }");
    let proxy = Proxy::start(&config).await;
    for token in [1, 2] {
        proxy.forward(put("/orders/7?a=b").token(token)).await;
    }
    proxy.stale(put("/orders/7").token(1)).await;
    proxy.forward(get("/orders/7")).await;
    for (target, token) in [
        ("/orders/7?a=b", Some("1")),
        ("/orders/7?a=b", Some("2")),
        ("/orders/7", None),
    ] {
        let (head, ..) = arrivals.recv().await.expect("a request");
        assert_eq!(head.version, http::Version::HTTP_2);
        assert_eq!(head.uri.to_string(), format!("{url}{target}"));
        let came = head
            .headers
            .get("x-fencing-token")
            .map(http::HeaderValue::as_bytes);
        assert_eq!(came, token.map(str::as_bytes));
    }
    assert!(arrivals.is_empty());
}

#[tokio::test]
async fn an_upstream_that_does_not_offer_http_2_gets_nothing() {
    let (ca, files) = authority();
    // One refuses the handshake, the other lets it pass and speaks HTTP/1.
    for (offered, says) in [
        (&["http/1.1"][..], "NoApplicationProtocol"),
        (&[], "HTTP/2 by ALPN"),
    ] {
        let upstream = Upstream::start_tls(server(&ca.server(&["localhost"]), None, offered)).await;
        let config = config(upstream.url(), &files).with("{ upstream: { http2: true } }");
        assert_unreachable(&Proxy::start(&config).await, says).await;
        assert_eq!(upstream.count(), 0);
    }
}
