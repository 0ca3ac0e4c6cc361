//! Certificates, keys and CAs are replaced while the program runs: connections live on, new ones
//! get the new ones, and what is bad changes nothing.

use super::{TlsRig, forward, forward_over, is_let_in, until_let_in, until_reload_ok};
use crate::support::tls::{Ca, EXPIRES, TlsClient};
use crate::support::{Config, Proxy, put, soon};

const EXPIRY: &str = "fencepost_tls_certificate_expiry_timestamp_seconds";
/// 2041-01-01.
const LATER: f64 = 2_240_611_200.0;

async fn until_expiry(proxy: &Proxy, expected: f64) {
    let listener = [("certificate", "listener")];
    let near = |shown: f64| (shown - expected).abs() < 1.0;
    proxy.until_metric(EXPIRY, &listener, near).await;
}

#[tokio::test]
async fn a_new_certificate_is_for_new_connections_and_open_ones_live_on() {
    let rig = TlsRig::new().await;
    let proxy = Proxy::start(&rig.config()).await;
    let open = rig.client().wire(proxy.data()).await.expect("a handshake");
    let open = forward_over(open, &put("/orders/7").token(1)).await;

    // By another CA, so that a client can tell the two apart. First the certificate alone: a pair
    // that does not fit is never in use.
    let next = Ca::new("the next CA");
    let pair = next.server_until(&["localhost"], 2041);
    rig.files.put("tls.crt", &pair.cert);
    rig.files.put("tls.key", &pair.key);
    until_expiry(&proxy, LATER).await;
    until_reload_ok(&proxy, 1.0).await;
    forward(
        &TlsClient::trusting(&next),
        &proxy,
        &put("/orders/7").token(2),
    )
    .await;
    assert!(rig.client().connect(proxy.data()).await.is_err());

    forward_over(open, &put("/orders/7").token(3)).await;
    assert_eq!(rig.upstream.tokens("order:7"), [1, 2, 3]);
}

#[tokio::test]
async fn a_mounted_secret_is_swapped_whole() {
    let rig = TlsRig::new().await;
    let files = crate::support::tls::Files::new();
    files.mount("first", &rig.ca.server(&["localhost"]), rig.ca.pem());
    let config = Config::new(&rig.upstream, &rig.store).with(&format!(
        "tls: {{ {}, client_ca_file: {} }}",
        files.pair("tls"),
        files.path("ca.crt").display()
    ));
    let proxy = Proxy::start(&config).await;
    let old = rig.named(&["worker.pay.svc"]);
    let open = old.wire(proxy.data()).await.expect("a handshake");
    let open = forward_over(open, &put("/orders/7").token(1)).await;

    let next = Ca::new("the next CA");
    files.mount(
        "second",
        &next.server_until(&["localhost"], 2041),
        next.pem(),
    );
    until_expiry(&proxy, LATER).await;
    let new = TlsClient::showing(&next, &next.client(&["worker.pay.svc"]));
    forward(&new, &proxy, &put("/orders/7").token(2)).await;
    // Its certificate is of the CA that was.
    let old_on_new = TlsClient::showing(&next, &rig.ca.client(&["worker.pay.svc"]));
    assert!(!is_let_in(&old_on_new, &proxy).await);
    forward_over(open, &put("/orders/7").token(3)).await;
}

#[tokio::test]
async fn no_session_outlives_the_ca_it_began_under() {
    let rig = TlsRig::new().await;
    let proxy = Proxy::start(&rig.mutual("required")).await;
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        rig.files.put("ca.crt", rig.ca.pem());
        let own = rig.ca.client(&["worker.pay.svc"]);
        // It keeps its sessions, and offers them again.
        let client = TlsClient::of_versions(&rig.ca, &[version], Some(&own));
        until_let_in(&client, &proxy, true).await;
        for _ in 0..3 {
            assert!(is_let_in(&client, &proxy).await);
        }
        rig.files.put("ca.crt", Ca::new("the next CA").pem());
        until_let_in(&client, &proxy, false).await;
    }
}

#[tokio::test]
async fn what_is_bad_changes_nothing_and_is_told() {
    let rig = TlsRig::new().await;
    let proxy = Proxy::start(&rig.mutual("required")).await;
    let worker = rig.named(&["worker.pay.svc"]);
    let good = rig.ca.server_until(&["localhost"], 2041);
    let (cert, key, ca) = (
        std::fs::read_to_string(rig.files.path("tls.crt")).expect("it is there"),
        std::fs::read_to_string(rig.files.path("tls.key")).expect("it is there"),
        rig.ca.pem().to_owned(),
    );
    for (name, bad, whole) in [
        ("tls.key", good.key.as_str(), key.as_str()),
        ("tls.crt", "to be filled in\n", &cert),
        ("ca.crt", "", &ca),
    ] {
        rig.files.put(name, bad);
        until_reload_ok(&proxy, 0.0).await;
        assert!(is_let_in(&worker, &proxy).await, "{name}");
        until_expiry(&proxy, EXPIRES).await;
        rig.files.put(name, whole);
        until_reload_ok(&proxy, 1.0).await;
    }
    // One that is gone, too.
    std::fs::remove_file(rig.files.path("tls.key")).expect("it is there");
    until_reload_ok(&proxy, 0.0).await;
    assert!(is_let_in(&worker, &proxy).await);
    rig.files.put_pair("tls", &good);
    until_expiry(&proxy, LATER).await;
    until_reload_ok(&proxy, 1.0).await;
    let logs = format!("{:?}", proxy.logs());
    for part in [
        "is not the key of",
        "has no certificate in it",
        "cannot be read",
    ] {
        assert!(logs.contains(part), "{part}");
    }
    assert!(!logs.contains(&key[40..80]), "no key is ever told");
}

#[tokio::test]
async fn files_that_a_bad_configuration_names_are_watched_too() {
    let rig = TlsRig::new().await;
    let proxy = Proxy::start(&rig.config()).await;
    let pair = rig.ca.server_until(&["localhost"], 2041);
    rig.files.put("new.crt", &pair.cert);
    let config = rig
        .config()
        .with(&format!("tls: {{ {} }}", rig.files.pair("new")));
    proxy.rewrite(&config);
    until_reload_ok(&proxy, 0.0).await;
    assert!(is_let_in(&rig.client(), &proxy).await);
    // The configuration is as it was; what was missing has come.
    rig.files.put("new.key", &pair.key);
    until_expiry(&proxy, LATER).await;
    until_reload_ok(&proxy, 1.0).await;
    // A reload does not turn TLS off.
    proxy.rewrite(&Config::new(&rig.upstream, &rig.store));
    until_reload_ok(&proxy, 0.0).await;
    assert!(is_let_in(&rig.client(), &proxy).await);
    let plain = soon("an end", put("/orders/7").token(1).attempt(proxy.data())).await;
    assert!(plain.is_err());
}
