//! TLS of the data port: versions, protocols, certificates, and clients that do it wrong.

mod identity;
mod peers;
mod revoked;
mod rotation;
mod sockets;
mod upstream;

use std::process::Command;

use crate::support::client::Exchange;
use crate::support::store::tool;
use crate::support::tls::{Ca, EXPIRES, Files, TlsClient};
use crate::support::wire::Wire;
use crate::support::{
    Answer, Config, Proxy, Request, Store, Upstream, eventually, get, joined, or_return, put, soon,
};

/// A proxy with TLS, what stands behind it, and the files that it reads.
struct TlsRig {
    ca: Ca,
    files: Files,
    upstream: Upstream,
    store: Store,
}

impl TlsRig {
    /// `localhost` with a certificate of the CA's.
    async fn new() -> Self {
        let (ca, files) = (Ca::new("the test's CA"), Files::new());
        files.put_pair("tls", &ca.server(&["localhost"]));
        files.put("ca.crt", ca.pem());
        Self {
            ca,
            files,
            upstream: Upstream::start().await,
            store: Store::sqlite(),
        }
    }

    fn config(&self) -> Config {
        Config::new(&self.upstream, &self.store)
            .with(&format!("tls: {{ {} }}", self.files.pair("tls")))
    }

    /// Clients show certificates of the same CA.
    fn mutual(&self, client_auth: &str) -> Config {
        self.config().with(&format!(
            "{{ tls: {{ client_ca_file: {}, client_auth: {client_auth} }} }}",
            self.files.path("ca.crt").display(),
        ))
    }

    fn client(&self) -> TlsClient {
        TlsClient::trusting(&self.ca)
    }

    fn named(&self, names: &[&str]) -> TlsClient {
        TlsClient::showing(&self.ca, &self.ca.client(names))
    }
}

/// Sends a request over TLS.
async fn send(client: &TlsClient, proxy: &Proxy, request: &Request) -> Answer {
    let wire = soon("the handshake", client.wire(proxy.data())).await;
    send_over(wire.expect("a handshake"), request).await.0
}

/// As [`send`], and it is forwarded.
async fn forward(client: &TlsClient, proxy: &Proxy, request: &Request) {
    send(client, proxy, request).await.assert_forwarded();
}

async fn send_over(wire: Wire, request: &Request) -> (Answer, Wire) {
    let mut exchange = Exchange::over(wire, request);
    exchange.push(&request.bytes()).await;
    let answer = exchange.finish().await;
    (answer, exchange.wire)
}

/// Has a request forwarded over a connection, which stays open.
async fn forward_over(wire: Wire, request: &Request) -> Wire {
    let (answer, wire) = send_over(wire, request).await;
    answer.assert_forwarded();
    wire
}

/// Returns whether a client gets an answer. One with TLS 1.3 hears only after its own part of the
/// handshake that it is refused.
async fn is_let_in(client: &TlsClient, proxy: &Proxy) -> bool {
    let request = put("/orders/7").token(1);
    let attempt = async {
        let wire = client.wire(proxy.data()).await?;
        let mut exchange = Exchange::over(wire, &request);
        exchange.wire.send(&request.bytes()).await?;
        exchange.answer().await
    };
    soon("an answer, or the end", attempt).await.is_ok()
}

/// Waits until a client is let in, or is not any more.
async fn until_let_in(client: &TlsClient, proxy: &Proxy, expected: bool) {
    eventually("the new files to be in use", || async {
        (is_let_in(client, proxy).await == expected).then_some(())
    })
    .await;
}

async fn until_reload_ok(proxy: &Proxy, expected: f64) {
    let name = "fencepost_config_reload_ok";
    let near = |shown: f64| (shown - expected).abs() < 0.5;
    proxy.until_metric(name, &[], near).await;
}

/// Reads until the proxy has ended the connection.
async fn ends(wire: &mut Wire) {
    soon("the end", async {
        while matches!(wire.fill().await, Ok(true)) {}
    })
    .await;
}

const HANDSHAKE_ERRORS: &str = "fencepost_tls_handshake_errors_total";

/// They are counted after the client has been told.
async fn until_errors(proxy: &Proxy, reason: &str, least: u32) {
    let enough = |count| count >= f64::from(least);
    let reason = [("reason", reason)];
    proxy.until_metric(HANDSHAKE_ERRORS, &reason, enough).await;
}

/// As [`until_errors`], and no more of them.
async fn errors_are(proxy: &Proxy, reason: &str, exactly: u32) {
    until_errors(proxy, reason, exactly).await;
    let errors = proxy.count(HANDSHAKE_ERRORS, &[("reason", reason)]).await;
    assert_eq!(errors, u64::from(exactly), "{reason}");
}

/// Sends a request over TLS and HTTP/2.
async fn send_http2(client: &TlsClient, proxy: &Proxy, token: u64) -> Answer {
    let stream = client.connect(proxy.data()).await.expect("a handshake");
    let request = put("/orders/7").token(token).body("content");
    request.http2_over(Box::new(stream)).await
}

#[tokio::test]
async fn alpn_tells_which_versions_there_are() {
    let rig = TlsRig::new().await;
    let proxy = Proxy::start(&rig.config()).await;

    let client = rig.client().offering(&["h2", "http/1.1"]);
    send_http2(&client, &proxy, 1).await.assert_forwarded();
    let arrival = rig.upstream.only();
    assert_eq!(arrival.head.get("x-forwarded-proto"), Some("https"));
    assert_eq!(arrival.text(), "content");

    // What the client sends first is what it speaks, whatever it has offered.
    for offered in [&["http/1.1"][..], &[], &["h2"]] {
        let client = rig.client().offering(offered);
        forward(&client, &proxy, &put("/orders/7").token(2)).await;
        send_http2(&client, &proxy, 2).await.assert_forwarded();
    }

    let metrics = proxy.metrics().await;
    let expiry = "fencepost_tls_certificate_expiry_timestamp_seconds";
    for (certificate, expected) in [("listener", EXPIRES), ("upstream", f64::INFINITY)] {
        let shown = metrics.sum(expiry, &[("certificate", certificate)]);
        assert!((shown - expected).abs() < 1.0 || shown.to_bits() == expected.to_bits());
    }
    assert!(metrics.sum(HANDSHAKE_ERRORS, &[]) < 0.5);

    // Nothing else is there to agree on.
    let odd = rig.client().offering(&["spdy/3"]);
    assert!(odd.connect(proxy.data()).await.is_err());
    // A client that does not trust the certificate is counted.
    let wary = TlsClient::trusting(&Ca::new("another CA"));
    assert!(wary.connect(proxy.data()).await.is_err());
    until_errors(&proxy, "refused-by-client", 1).await;
}

#[tokio::test]
async fn reqwest_and_curl_get_in() {
    let rig = TlsRig::new().await;
    let proxy = Proxy::start(&rig.config()).await;
    let at = proxy.data();
    let url = format!("https://localhost:{}/orders/7", at.port());

    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(rig.client().config())
        .resolve("localhost", at)
        .build()
        .expect("a client");
    let answer = client.put(&url).header("x-fencing-token", "1").body("a");
    let answer = soon("the answer", answer.send()).await.expect("an answer");
    assert_eq!(answer.status(), 200);

    let curl = or_return!(tool("curl"));
    for (token, flags, version) in [
        (2, &["--http1.1", "--tls-max", "1.2"][..], "1.1"),
        (3, &["--http1.1", "--tlsv1.3"], "1.1"),
        (4, &["--http2"], "2"),
    ] {
        let mut command = Command::new(&curl);
        command
            .args(["-sS", "-X", "PUT", "-d", "a", "-o", "/dev/null"])
            .args(["-w", "%{http_code} %{http_version}", "--noproxy", "*"])
            .args(["--resolve", &format!("localhost:{}:{}", at.port(), at.ip())])
            .args(["-H", &format!("X-Fencing-Token: {token}")])
            .arg("--cacert")
            .arg(rig.files.path("ca.crt"))
            .args(flags)
            .arg(&url);
        let output = tokio::task::spawn_blocking(move || command.output());
        let output = joined(output).await.expect("it runs");
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            format!("200 {version}"),
            "{flags:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[tokio::test]
async fn a_client_shows_the_right_certificate_or_is_not_let_in() {
    let rig = TlsRig::new().await;
    let expired = rig.ca.client_until(&["worker.pay.svc"], 2020);
    let stranger = Ca::new("another CA").client(&["worker.pay.svc"]);
    // A server's certificate is not one for a client.
    let server = rig.ca.server(&["worker.pay.svc"]);
    for (client_auth, none) in [("required", Some(None)), ("optional", None)] {
        let proxy = Proxy::start(&rig.mutual(client_auth)).await;
        let good = rig.named(&["worker.pay.svc"]);
        assert!(is_let_in(&good, &proxy).await);
        assert_eq!(is_let_in(&rig.client(), &proxy).await, none.is_none());
        let forwarded = rig.upstream.count();
        let bad = [&expired, &stranger, &server]
            .map(Some)
            .into_iter()
            .chain(none);
        let mut refused = u32::from(none.is_some());
        for own in bad {
            for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
                let client = TlsClient::of_versions(&rig.ca, &[version], own);
                assert!(!is_let_in(&client, &proxy).await, "{version:?}");
                refused += 1;
            }
        }
        assert_eq!(rig.upstream.count(), forwarded, "nothing was forwarded");
        errors_are(&proxy, "client-certificate", refused).await;
        assert!(is_let_in(&good, &proxy).await);
    }
}

#[tokio::test]
async fn what_is_no_tls_or_stalls_is_ended_and_holds_up_nobody() {
    let rig = TlsRig::new().await;
    let config = rig.config().with("{ limits: { head_timeout: 3s } }");
    let proxy = Proxy::start(&config).await;
    let mut wires = Vec::new();
    for bytes in [
        put("/orders/7").token(1).bytes(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        vec![0; 4096],
        // The head of a record that says that the longest there can be follows.
        b"\x16\x03\x01\xff\xff".to_vec(),
        // The first bytes of a hello, and no more; nothing at all.
        b"\x16\x03\x01\x01\x00\x01\x00".to_vec(),
        Vec::new(),
    ] {
        let mut wire = Wire::connect(proxy.data()).await.expect("it listens");
        wire.send(&bytes).await.expect("the bytes are taken");
        wires.push(wire);
    }
    forward(&rig.client(), &proxy, &put("/orders/7").token(1)).await;
    for wire in &mut wires {
        ends(wire).await;
    }
    until_errors(&proxy, "protocol", 4).await;
    until_errors(&proxy, "timeout", 2).await;
    proxy.until_reached("head-timeout", 2).await;
    assert_eq!(rig.upstream.count(), 1);
}

#[tokio::test]
async fn a_handshake_in_progress_does_not_delay_the_stop() {
    let rig = TlsRig::new().await;
    // Longer than the test waits.
    let config = rig
        .config()
        .with("{ limits: { head_timeout: 10m }, shutdown: { deadline: 10m } }");
    let mut proxy = Proxy::start(&config).await;
    let silent = Wire::connect(proxy.data()).await.expect("it listens");
    // The connection before this one has been accepted when this one is answered.
    forward(&rig.client(), &proxy, &get("/orders/7")).await;
    proxy.stop().await;
    drop(silent);
}

#[tokio::test]
async fn check_and_start_name_the_file_and_what_is_wrong_with_it() {
    let rig = TlsRig::new().await;
    let pair = rig.ca.server(&["localhost"]);
    let files = &rig.files;
    files.put("empty", "");
    files.put("text", "to be filled in\n");
    files.put("other.key", &rig.ca.server(&["localhost"]).key);
    files.put(
        "encrypted.key",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
    );
    files.put("cut.crt", &pair.cert[..pair.cert.len() - 40]);
    files.put(
        "odd.crt",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    );
    for (field, file, says) in [
        ("cert_file", "missing", "cannot be read: No such file"),
        ("key_file", "missing", "cannot be read: No such file"),
        ("client_ca_file", "missing", "cannot be read: No such file"),
        ("cert_file", "empty", "has no certificate in it"),
        ("cert_file", "text", "has no certificate in it"),
        ("key_file", "text", "has no private key in it"),
        ("client_ca_file", "text", "has no certificate in it"),
        ("cert_file", "tls.key", "has no certificate in it"),
        ("client_ca_file", "tls.key", "has no certificate in it"),
        ("key_file", "tls.crt", "has no private key in it"),
        ("key_file", "encrypted.key", "is encrypted"),
        ("key_file", "other.key", "is not the key of the certificate"),
        ("cert_file", "cut.crt", "broken PEM"),
        ("cert_file", "odd.crt", "not X.509"),
        ("client_ca_file", "odd.crt", "cannot be used"),
    ] {
        let path = files.path(file);
        let config = rig
            .config()
            .with(&format!("{{ tls: {{ {field}: {} }} }}", path.display()));
        let (field, path) = (format!("tls.{field}: "), path.to_string_lossy());
        let said = Proxy::refused_for(&config, &[&field, &path, says, "hint: "]).await;
        assert_eq!(said.matches("error: ").count(), 1, "{field} {file}: {said}");
    }
}
