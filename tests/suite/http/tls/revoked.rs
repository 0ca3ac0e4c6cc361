//! Certificates that their CA has taken back (`tls.crl_file`).

use super::{TlsRig, errors_are, is_let_in, until_let_in, until_reload_ok};
use crate::support::tls::{Ca, Credentials, TlsClient};
use crate::support::{Config, Proxy};

fn with_list(rig: &TlsRig, revoked: &[&Credentials], year: i32) -> Config {
    let list = rig.files.put("ca.crl", &rig.ca.revoking(revoked, year));
    let list = list.display();
    rig.mutual("required")
        .with(&format!("tls: {{ crl_file: {list} }}"))
}

#[tokio::test]
async fn a_certificate_that_was_taken_back_does_not_get_in() {
    let rig = TlsRig::new().await;
    let [lost, kept] = [["lost.pay.svc"], ["kept.pay.svc"]].map(|name| rig.ca.client(&name));
    let proxy = Proxy::start(&with_list(&rig, &[&lost], 2040)).await;
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let client = |own| TlsClient::of_versions(&rig.ca, &[version], Some(own));
        assert!(!is_let_in(&client(&lost), &proxy).await);
        assert!(is_let_in(&client(&kept), &proxy).await);
    }
    errors_are(&proxy, "client-certificate", 2).await;
}

#[tokio::test]
async fn the_list_is_read_again_when_it_changes() {
    let rig = TlsRig::new().await;
    let own = rig.ca.client(&["worker.pay.svc"]);
    let client = TlsClient::showing(&rig.ca, &own);
    let proxy = Proxy::start(&with_list(&rig, &[], 2040)).await;
    assert!(is_let_in(&client, &proxy).await);
    rig.files.put("ca.crl", &rig.ca.revoking(&[&own], 2040));
    until_let_in(&client, &proxy, false).await;
    // A bad list changes nothing.
    rig.files.put("ca.crl", "to be filled in\n");
    until_reload_ok(&proxy, 0.0).await;
    assert!(!is_let_in(&client, &proxy).await);
    rig.files.put("ca.crl", &rig.ca.revoking(&[], 2040));
    until_let_in(&client, &proxy, true).await;
}

#[tokio::test]
async fn where_the_lists_say_nothing_nobody_gets_in() {
    let rig = TlsRig::new().await;
    let worker = rig.named(&["worker.pay.svc"]);
    // One that should have been renewed, and one of another CA.
    let proxy = Proxy::start(&with_list(&rig, &[], 2025)).await;
    assert!(!is_let_in(&worker, &proxy).await);
    proxy.rewrite(&with_list(&rig, &[], 2040));
    until_let_in(&worker, &proxy, true).await;
    rig.files
        .put("ca.crl", &Ca::new("another CA").revoking(&[], 2040));
    until_let_in(&worker, &proxy, false).await;
    assert_eq!(rig.upstream.tokens("order:7").last(), Some(&1));
}
