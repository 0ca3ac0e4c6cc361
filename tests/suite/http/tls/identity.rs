//! A client's identity by its certificate: the service hears it from the proxy that has verified
//! it, and from nobody else. A connection on which a certificate was shown does not last for ever.

use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sha2::{Digest as _, Sha256};

use super::{TlsRig, TokioExecutor, TokioIo, http_2_request, send, send_over};
use crate::support::client::Exchange;
use crate::support::tls::{Credentials, TlsClient};
use crate::support::{Config, Gate, Proxy, Request, Step, Upstream, get, put, soon};

const URI: &str = "spiffe://cluster/ns/pay/sa/worker";
const XFCC: &str = "x-forwarded-client-cert";

/// Fields in which a client may claim an identity, as proxies that end TLS write them.
const CLAIMS: [(&str, &str); 9] = [
    (
        "X-Forwarded-Client-Cert",
        "Hash=0;URI=spiffe://cluster/admin",
    ),
    ("X_Forwarded_Client_Cert", "URI=spiffe://cluster/admin"),
    ("X-SSL-Client-Verify", "SUCCESS"),
    ("X-SSL-Client-S-DN", "CN=admin"),
    ("Ssl-Client-Subject-Dn", "CN=admin"),
    ("SSL_CLIENT_CERT", "PEM"),
    ("X-Forwarded-Tls-Client-Cert-Info", "Subject=CN=admin"),
    ("Client-Cert", ":AAAA:"),
    ("X-Client-Cert-Dn", "CN=admin"),
];

fn claiming(mut request: Request) -> Request {
    for (name, value) in CLAIMS {
        request = request.header(name, value);
    }
    request
}

/// The fields of the last arrival that are of this kind.
fn claims(upstream: &Upstream) -> Vec<(String, String)> {
    let fields = upstream.last().head.headers;
    let known = |name: &str| {
        CLAIMS
            .iter()
            .any(|(known, _)| known.eq_ignore_ascii_case(name))
    };
    fields.into_iter().filter(|(name, _)| known(name)).collect()
}

fn verified(own: &Credentials, names: &str) -> Vec<(String, String)> {
    let der = CertificateDer::from_pem_slice(own.cert.as_bytes()).expect("PEM");
    let hash: Vec<String> = Sha256::digest(&der)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let hash = hash.concat();
    vec![(
        "X-Forwarded-Client-Cert".to_owned(),
        format!("Hash={hash}{names}"),
    )]
}

/// Requests by each way through the proxy.
fn requests() -> [Request; 5] {
    [
        put("/orders/7").token(1),
        get("/orders/7"),
        put("/observed/7").token(1),
        put("/bypassed/7"),
        get("/elsewhere"),
    ]
}

const ROUTES: &str = "routes:
  - { path: '/orders/{id}', resource: 'order:{id}' }
  - { path: '/observed/{id}', resource: 'observed:{id}', mode: observe }
  - { path: '/bypassed/{id}', mode: bypass }";

#[tokio::test]
async fn the_service_hears_of_a_certificate_from_the_proxy_alone() {
    let rig = TlsRig::new().await;
    let proxy = Proxy::start(&rig.mutual("optional").with(ROUTES)).await;
    let own = rig.ca.client(&["Worker.pay.svc", "b.pay.svc", URI]);
    let names = format!(";URI={URI};DNS=worker.pay.svc;DNS=b.pay.svc");
    let nameless = rig.ca.client(&[]);
    for (client, expected) in [
        (TlsClient::showing(&rig.ca, &own), verified(&own, &names)),
        (
            TlsClient::showing(&rig.ca, &nameless),
            verified(&nameless, ""),
        ),
        (rig.client(), Vec::new()),
    ] {
        for request in requests() {
            // With a word in Connection that would take ours off.
            let request = claiming(request).header("Connection", XFCC);
            send(&client, &proxy, &request).await.assert_forwarded();
            assert_eq!(claims(&rig.upstream), expected, "{request:?}");
        }
        let stream = client.clone().offering(&["h2"]).connect(proxy.data()).await;
        let request = claiming(put("/orders/7").token(1));
        let answer = request
            .http2_over(Box::new(stream.expect("a handshake")))
            .await;
        answer.assert_forwarded();
        assert_eq!(claims(&rig.upstream), expected, "over HTTP/2");
    }
}

#[tokio::test]
async fn no_key_is_made_of_what_a_client_says_of_its_certificate() {
    let rig = TlsRig::new().await;
    let routes = "routes: [{ path: '/orders/{id}', resource: '{header.x-ssl-client-s-dn}:{id}' }]";
    let (status, said) = Proxy::refused(&rig.mutual("optional").with(routes)).await;
    assert!(!status.success());
    assert!(said.contains("routes[0].resource"), "{said}");
}

#[tokio::test]
async fn without_client_certificates_an_edge_may_say_it() {
    let rig = TlsRig::new().await;
    let all: Vec<(String, String)> = CLAIMS
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec();
    let proxy = Proxy::start(&rig.config()).await;
    let request = claiming(put("/orders/7").token(1));
    send(&rig.client(), &proxy, &request)
        .await
        .assert_forwarded();
    assert_eq!(claims(&rig.upstream), all);
    let plain = Proxy::start(&Config::new(
        &rig.upstream,
        &crate::support::Store::sqlite(),
    ))
    .await;
    plain.send(request).await.assert_forwarded();
    assert_eq!(claims(&rig.upstream), all);
}

const YOUNG: &str = "tls: { client_max_age: 1s }";

/// Waits for the end of a connection without a request under way.
async fn until_closed(exchange: &mut Exchange) {
    let rest = soon("the end of the connection", exchange.wire.some()).await;
    assert!(rest.is_ok_and(|rest| rest.is_empty()), "nothing but an end");
}

#[tokio::test]
async fn a_connection_with_a_certificate_grows_old_and_ends_between_requests() {
    let rig = TlsRig::new().await;
    let proxy = Proxy::start(&rig.mutual("optional").with(YOUNG)).await;
    let worker = rig.named(&["worker.pay.svc"]);
    let connect = |client: &TlsClient| {
        let client = client.clone();
        let to = proxy.data();
        async move { client.wire(to).await.expect("a handshake") }
    };
    // One with a request under way when its time comes, one that is idle by then, and one without a
    // certificate.
    let gate = Gate::shut();
    rig.upstream
        .on_token(2, [Step::Wait(gate.clone()), Step::ok()]);
    let (slow, idle, other) = (
        connect(&worker).await,
        connect(&worker).await,
        connect(&rig.client()).await,
    );
    let request = put("/orders/1").token(1);
    let (answer, idle) = send_over(idle, &request).await;
    answer.assert_forwarded();
    let (answer, other) = send_over(other, &put("/orders/3").token(1)).await;
    answer.assert_forwarded();
    let at_work = put("/orders/2").token(2);
    let mut slow = Exchange::over(slow, &at_work);
    slow.wire.send(&at_work.bytes()).await.expect("it is taken");
    until_closed(&mut Exchange::over(idle, &request)).await;
    gate.open();
    let answer = slow.finish().await;
    answer.assert_forwarded();
    assert_eq!(answer.header("connection"), Some("close"));
    until_closed(&mut slow).await;
    let (answer, _) = send_over(other, &put("/orders/3").token(2)).await;
    answer.assert_forwarded();
    assert_eq!(answer.header("connection"), None);
}

#[tokio::test]
async fn an_old_connection_of_http_2_says_goodbye() {
    let rig = TlsRig::new().await;
    let proxy = Proxy::start(&rig.mutual("required").with(YOUNG)).await;
    let client = rig.named(&["worker.pay.svc"]).offering(&["h2"]);
    let stream = client.connect(proxy.data()).await.expect("a handshake");
    let handshake =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.expect("HTTP/2");
    let connection = tokio::spawn(connection);
    let answer = sender
        .send_request(http_2_request("PUT", "/orders/7", 1))
        .await;
    assert_eq!(answer.expect("an answer").status(), 200);
    let ended = soon("the end of the connection", connection).await;
    ended.expect("no panic").expect("an end without an error");
    assert!(sender.is_closed());
}

#[tokio::test]
async fn what_does_not_end_on_an_old_connection_is_cut() {
    let rig = TlsRig::new().await;
    let config = rig.mutual("required").with(YOUNG).route("upgrade: allow");
    let proxy = Proxy::start(&config).await;
    let worker = rig.named(&["worker.pay.svc"]);
    // An exchange without an end.
    rig.upstream.on_token(1, [Step::Wait(Gate::shut())]);
    let request = put("/orders/1").token(1);
    let wire = worker.wire(proxy.data()).await.expect("a handshake");
    let mut exchange = Exchange::over(wire, &request);
    exchange
        .wire
        .send(&request.bytes())
        .await
        .expect("it is taken");
    // A tunnel.
    let switched =
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    rig.upstream.on_token(2, [Step::raw(switched), Step::Echo]);
    let opening = get("/orders/2")
        .header("Connection", "Upgrade")
        .header("Upgrade", "websocket")
        .token(2);
    let wire = worker.wire(proxy.data()).await.expect("a handshake");
    let mut tunnel = Exchange::over(wire, &opening);
    tunnel
        .wire
        .send(&opening.bytes())
        .await
        .expect("it is taken");
    assert_eq!(tunnel.any_head().await.word(1), "101");
    for exchange in [&mut tunnel, &mut exchange] {
        let ended = tokio::time::timeout(Duration::from_secs(20), exchange.wire.some()).await;
        let ended = ended.expect("an end in time");
        assert!(ended.is_err() || ended.is_ok_and(|rest| rest.is_empty()));
    }
    // Neither is known to be over.
    proxy
        .until_metric("fencepost_unknown_outcomes", &[], |count| count > 0.5)
        .await;
}
