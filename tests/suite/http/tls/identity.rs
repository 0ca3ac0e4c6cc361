//! A client's identity by its certificate: the service hears it from the proxy that has verified
//! it, and from nobody else. A connection on which a certificate was shown does not last for ever.

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sha2::{Digest as _, Sha256};

use super::{TlsRig, forward};
use crate::support::tls::{Credentials, TlsClient};
use crate::support::{Proxy, Request, Upstream, fenced, get, put};

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
    let hash = Sha256::digest(&der);
    let hash: Vec<String> = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    let value = format!("Hash={}{names}", hash.concat());
    vec![("X-Forwarded-Client-Cert".to_owned(), value)]
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
            forward(&client, &proxy, &request).await;
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
async fn without_client_certificates_an_edge_may_say_it() {
    let (upstream, proxy) = fenced("{}").await;
    proxy.forward(claiming(put("/orders/7").token(1))).await;
    let said = CLAIMS.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(claims(&upstream), said);
}
