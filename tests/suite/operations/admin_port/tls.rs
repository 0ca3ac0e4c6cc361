//! TLS of the admin port: the probes and the commands speak it, and its certificate is replaced
//! without a restart.

use crate::support::client::Exchange;
use crate::support::run::run_with;
use crate::support::tls::{Ca, Files, TlsClient};
use crate::support::{Answer, Config, Proxy, Request, Store, Upstream, eventually, get, soon};

/// `None`: no handshake.
async fn send(client: &TlsClient, proxy: &Proxy, request: &Request) -> Option<Answer> {
    let wire = soon("the handshake", client.wire(proxy.admin()))
        .await
        .ok()?;
    let mut exchange = Exchange::over(wire, request);
    exchange.wire.send(&request.bytes()).await.ok()?;
    Some(exchange.finish().await)
}

#[tokio::test]
async fn probes_reads_and_commands_go_over_tls_and_a_new_certificate_is_taken() {
    let (ca, files) = (Ca::new("the test's CA"), Files::new());
    files.put_pair("tls", &ca.server(&["localhost", "127.0.0.1"]));
    let trusted = files.put("ca.crt", ca.pem());
    let upstream = Upstream::start().await;
    let config = Config::new(&upstream, &Store::sqlite()).with(&format!(
        "{{ admin: {{ tls: {{ cert_file: {}, key_file: {} }} }} }}",
        files.path("tls.crt").display(),
        files.path("tls.key").display(),
    ));
    let proxy = Proxy::start_unready(&config).await;
    let client = TlsClient::trusting(&ca);
    eventually("the proxy to be ready", || async {
        let answer = send(&client, &proxy, &get("/readyz")).await?;
        (answer.status() == 200).then_some(())
    })
    .await;
    let read = get("/v1/marks").host(Some("localhost"));
    let answer = send(&client, &proxy, &read).await.expect("a handshake");
    assert_eq!(answer.status(), 200);
    let plain = get("/livez").attempt(proxy.admin()).await;
    assert!(plain.is_err(), "plain HTTP");

    // The file says that there is TLS; here the port is the kernel's choice.
    let url = format!("https://{}", proxy.admin());
    let trusted = format!("--admin-ca={}", trusted.display());
    for (arguments, good) in [
        (&["health"][..], true),
        (&["marks", "list", &trusted], true),
        (&["marks", "list"], false),
    ] {
        let ended = run_with(&[arguments, &["--admin", &url]].concat()).await;
        assert_eq!(ended.code == Some(0), good, "{ended:?}");
    }

    let next = Ca::new("the next CA");
    files.put_pair("tls", &next.server_until(&["localhost"], 2041));
    let client = TlsClient::trusting(&next);
    let text = eventually("the new certificate to be shown", || async {
        Some(send(&client, &proxy, &get("/metrics")).await?.text())
    })
    .await;
    let series =
        "fencepost_tls_certificate_expiry_timestamp_seconds{certificate=\"admin\"} 2240611200";
    assert!(text.contains(series), "{text}");
}
