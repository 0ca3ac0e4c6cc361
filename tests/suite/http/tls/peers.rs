//! `require_client`: who is let in on a route, by the names in a client's certificate. Access
//! control beside the fencing: nothing gets around it, whatever the mode, the method or the
//! spelling.

use super::{TlsRig, forward, send};
use crate::support::{Answer, Config, Proxy, Request, Upstream, get, post, put};

const URI: &str = "spiffe://cluster/ns/pay/sa/worker";

fn guarded(rig: &TlsRig, peers: &str) -> Config {
    let config = rig.mutual("optional").with("{ unmatched: refuse }");
    config.route(&format!("{{ require_client: {peers} }}"))
}

/// Asserts that it was refused because it lacks a name, and that nothing was forwarded.
#[track_caller]
fn assert_refused(answer: &Answer, upstream: &Upstream, before: usize) {
    let problem = answer.assert_problem(403, "client-refused");
    assert_eq!(problem["retry"], "never");
    assert_eq!(upstream.count(), before, "nothing was forwarded");
}

/// A name is the certificate's, and not a header's.
fn claiming(request: Request) -> Request {
    request
        .header("X-Forwarded-Client-Cert", format!("URI={URI}"))
        .header("X-SSL-Client-Verify", "SUCCESS")
        .header("X-Client-Cert-Dn", "CN=billing.pay.svc")
}

#[tokio::test]
async fn only_the_named_peers_are_let_in() {
    let rig = TlsRig::new().await;
    let peers = format!("[{URI:?}, 'Billing.pay.svc', '*.batch.svc']");
    let proxy = Proxy::start(&guarded(&rig, &peers)).await;
    let mut token = 0;
    for names in [
        &[URI][..],
        &["billing.pay.svc"],
        &["BILLING.Pay.svc"],
        &["nightly.batch.svc"],
        &["spiffe://cluster/ns/other/sa/x", "other.svc", "a.batch.svc"],
    ] {
        token += 1;
        let write = put("/orders/7").token(token);
        forward(&rig.named(names), &proxy, &write).await;
    }
    let let_in = rig.upstream.count();
    for names in [
        // The common name says common.pay.svc, and is no name.
        &[][..],
        &["spiffe://cluster/ns/pay/sa/worker/"],
        &["spiffe://cluster/ns/pay/sa/work"],
        &["other.pay.svc"],
        &["batch.svc"],
        &["a.b.batch.svc"],
        &["*.batch.svc"],
        &["billing.pay.svc.evil"],
        &["x.billing.pay.svc"],
    ] {
        for request in [
            put("/orders/7").token(9),
            get("/orders/7"),
            post("/orders/7"),
        ] {
            let answer = send(&rig.named(names), &proxy, &claiming(request)).await;
            assert_refused(&answer, &rig.upstream, let_in);
        }
    }
    let nobody = claiming(put("/orders/7").token(9));
    let nobody = send(&rig.client(), &proxy, &nobody).await;
    assert_refused(&nobody, &rig.upstream, let_in);
    let mark = proxy.token("order:7").await;
    assert_eq!(mark, Some(token), "the mark is as it was");
    let refused = [("outcome", "client-refused"), ("route", "/orders/{id}")];
    assert_eq!(proxy.count("fencepost_requests_total", &refused).await, 28);
    // gRPC hears PERMISSION_DENIED.
    let call = claiming(post("/orders/7").token(9))
        .header("Content-Type", "application/grpc")
        .header("TE", "trailers");
    let client = rig.named(&["other.pay.svc"]).offering(&["h2"]);
    let stream = client.connect(proxy.data()).await.expect("a handshake");
    let answer = call.http2_over(Box::new(stream)).await;
    let seen = (
        answer.status(),
        answer.header("grpc-status"),
        answer.outcome(),
    );
    assert_eq!(seen, (200, Some("7"), Some("client-refused")));
    assert_eq!(rig.upstream.count(), let_in);
}

#[tokio::test]
async fn the_log_names_the_peer() {
    let rig = TlsRig::new().await;
    let proxy = Proxy::start(&guarded(&rig, "[worker.pay.svc]")).await;
    let other = rig.named(&["other.pay.svc", URI]);
    send(&other, &proxy, &put("/orders/7").token(1)).await;
    let worker = rig.named(&["worker.pay.svc"]);
    send(&worker, &proxy, &put("/orders/7").token(2)).await;
    send(&worker, &proxy, &put("/orders/7").token(1)).await;
    for (outcome, name) in [
        ("client-refused", format!("{URI}, other.pay.svc")),
        ("stale-token", "worker.pay.svc".to_owned()),
    ] {
        let line = proxy.log_of("outcome", outcome).await;
        assert_eq!(line["client_name"], name, "{line}");
    }
}

#[tokio::test]
async fn it_holds_where_nothing_is_fenced() {
    for mode in ["bypass", "observe"] {
        let rig = TlsRig::new().await;
        let config = guarded(&rig, "[worker.pay.svc]")
            .route(&format!("{{ mode: {mode} }}"))
            .with("{ unmatched: safe-only }");
        let proxy = Proxy::start(&config).await;
        let other = rig.named(&["other.pay.svc"]);
        for request in [
            put("/orders/7").token(1),
            put("/orders/7"),
            get("/orders/7"),
            get("/orders/7;a"),
            get("/orders/7")
                .header("Connection", "upgrade")
                .header("Upgrade", "websocket"),
        ] {
            let answer = send(&other, &proxy, &request).await;
            assert_refused(&answer, &rig.upstream, 0);
        }
        // Spellings that the upstream may take for the guarded path, though no route enforces.
        for target in ["//orders/7", "/x/../orders/7", "/orders%2F7"] {
            for request in [put(target).token(1), get(target)] {
                // 403 where it can be told which route is meant.
                let answer = send(&other, &proxy, &request).await;
                assert!(matches!(answer.status(), 400 | 403), "{}", answer.text());
            }
        }
        // An unlisted write goes around no guard: `/orders/7/` may be taken for its path.
        let answer = send(&other, &proxy, &put("/orders/7/").token(1)).await;
        answer.assert_problem(404, "no-route");
        assert_eq!(rig.upstream.count(), 0, "{mode}");
        let worker = rig.named(&["worker.pay.svc"]);
        let answer = send(&worker, &proxy, &put("/orders/7").token(1)).await;
        assert_eq!(answer.status(), 200, "{mode}: {}", answer.text());
    }
}

fn claim(header: &str, value: &str, token: u64) -> Request {
    post("/.well-known/fencing/claim")
        .header(header, value)
        .token(token)
}

#[tokio::test]
async fn a_claim_has_to_satisfy_the_route_it_names() {
    let rig = TlsRig::new().await;
    let config = guarded(&rig, "[worker.pay.svc]").with(
        "{ routes: [
            { path: '/orders/{id}', resource: 'order:{id}', require_client: [worker.pay.svc] },
            { path: '/open/{id}', resource: 'open:{id}' },
            { path: '/both/{id}', resource: 'open:{id}', require_client: [worker.pay.svc] },
        ] }",
    );
    let proxy = Proxy::start(&config).await;
    let (worker, other) = (
        rig.named(&["worker.pay.svc"]),
        rig.named(&["other.pay.svc"]),
    );
    for (header, value, key) in [
        ("X-Fencing-Target", "PUT /orders/7", "order:7"),
        ("X-Fencing-Resource", "order:8", "order:8"),
        // A guarded route can yield this key, too.
        ("X-Fencing-Resource", "open:7", "open:7"),
    ] {
        let answer = send(&other, &proxy, &claim(header, value, 5)).await;
        assert_refused(&answer, &rig.upstream, 0);
        assert_eq!(proxy.token(key).await, None);
        let answer = send(&worker, &proxy, &claim(header, value, 5)).await;
        assert_eq!(answer.status(), 204, "{}", answer.text());
        assert_eq!(proxy.token(key).await, Some(5));
    }
    let answer = send(&other, &proxy, &claim("X-Fencing-Target", "PUT /open/7", 6)).await;
    assert_eq!(answer.status(), 204, "{}", answer.text());
}

/// `claim.require_client` is for claims alone, and comes on top of the routes'.
#[tokio::test]
async fn only_the_named_peers_may_claim() {
    let rig = TlsRig::new().await;
    let config = rig.mutual("optional");
    let proxy = Proxy::start(&config.with("claim: { require_client: [locks.pay.svc] }")).await;
    let claim = claim("X-Fencing-Target", "PUT /orders/7", 9);
    for client in [rig.client(), rig.named(&["worker.pay.svc"])] {
        let answer = send(&client, &proxy, &claim).await;
        assert_refused(&answer, &rig.upstream, 0);
    }
    assert_eq!(proxy.token("order:7").await, None);
    let answer = send(&rig.named(&["locks.pay.svc"]), &proxy, &claim).await;
    assert_eq!(answer.status(), 204);
    let write = put("/orders/7").token(9);
    forward(&rig.named(&["worker.pay.svc"]), &proxy, &write).await;
}
