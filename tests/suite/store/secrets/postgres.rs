//! TLS toward a real Postgres.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;

use serde_json::json;

use super::{SECRET, migrate};
use crate::support::postgres::{Cluster, owner};
use crate::support::store::has_postgres;
use crate::support::tls::{Ca, Files};
use crate::support::{Proxy, Store, or_return, put};

/// The role that shows a certificate: its common name.
const SHOWN: &str = "common.pay.svc";

/// A server as `CloudNativePG` sets one up: passwords over TLS only, or a certificate.
struct SecretRig {
    cluster: Cluster,
    files: Files,
    ca: PathBuf,
}

impl SecretRig {
    async fn new() -> Option<Self> {
        has_postgres().then_some(())?;
        let (ca, files, cluster) = (Ca::new("the CA"), Files::new(), Cluster::start());
        for statement in [
            format!("CREATE ROLE fencepost LOGIN PASSWORD '{SECRET}'"),
            format!("CREATE ROLE \"{SHOWN}\" LOGIN"),
            "CREATE DATABASE of_password OWNER fencepost".to_owned(),
            format!("CREATE DATABASE of_certificate OWNER \"{SHOWN}\""),
        ] {
            cluster.execute("postgres", &statement).await;
        }
        cluster.stop();
        let pair = ca.server(&["localhost"]);
        let rules = format!(
            "host all postgres 127.0.0.1/32 trust\nhostssl all \"{SHOWN}\" all cert\n\
             hostssl all all all scram-sha-256\n"
        );
        let mut settings = vec!["ssl=on".to_owned()];
        for (setting, name, text) in [
            ("ssl_cert_file", "server.crt", &*pair.cert),
            ("ssl_key_file", "server.key", &pair.key),
            ("ssl_ca_file", "ca.crt", ca.pem()),
            ("hba_file", "rules", &rules),
        ] {
            let path = cluster.dir().join(name);
            std::fs::write(&path, text).expect("the directory is ours");
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("it is ours");
            if let Some((uid, gid)) = owner() {
                chown(&path, Some(uid), Some(gid)).expect("root may");
            }
            settings.push(format!("{setting}={}", path.display()));
        }
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        cluster.start_with(&settings);
        files.put_pair("client", &ca.client(&["worker.pay.svc"]));
        let ca = files.put("ca.crt", ca.pem());
        Some(Self { cluster, files, ca })
    }

    fn url(&self, user: &str, host: &str, database: &str, parameters: &str) -> String {
        let port = self.cluster.port();
        format!("postgresql://{user}@{host}:{port}/{database}?{parameters}")
    }

    /// A proxy on this store forwards, and all its sessions have TLS.
    async fn serves(&self, role: &str, store: &Store, more: &str) {
        let (_upstream, mut proxy) = Proxy::before(store, more).await;
        proxy.forward(put("/orders/7").token(5)).await;
        let server = Store::at(&self.cluster.url("postgres"));
        let sessions = format!(
            "SELECT CASE WHEN bool_and(s.ssl) THEN count(*) ELSE 0 END FROM pg_stat_ssl AS s \
             JOIN pg_stat_activity AS a USING (pid) WHERE a.usename = '{role}'"
        );
        let with_tls = server.number(&sessions).await;
        // The lanes, the heartbeat, and what listens to the others, at least.
        assert!(with_tls >= 3, "{role}: {with_tls}");
        proxy.stop().await;
    }
}

#[tokio::test]
async fn a_real_server_is_verified_and_then_told_the_password_by_url_and_by_mounted_files() {
    let rig = or_return!(SecretRig::new().await);
    let ca = rig.ca.display();
    let user = format!("fencepost:{SECRET}");
    let url = |host: &str, parameters: &str| rig.url(&user, host, "of_password", parameters);
    // The certificate has another name than this.
    let (done, said) = migrate(&url("127.0.0.1", &format!("sslrootcert={ca}")), &[]).await;
    assert!(!done && said.contains("not valid for name"), "{said}");
    let verified = format!("sslmode=verify-ca&sslrootcert={ca}");
    let (done, said) = migrate(&url("127.0.0.1", &verified), &[]).await;
    assert!(done, "{said}");
    let store = Store::at(&url("localhost", &format!("sslrootcert={ca}")));
    rig.serves("fencepost", &store, "{}").await;

    // The URL and the certificates are files, as CloudNativePG hands them out.
    let (cert, key) = (rig.files.path("client.crt"), rig.files.path("client.key"));
    let by_password = json!({ "ca_file": rig.ca });
    let by_certificate = json!({ "ca_file": rig.ca, "cert_file": cert, "key_file": key });
    for (login, role, database, tls) in [
        (&*user, "fencepost", "of_password", by_password),
        (SHOWN, SHOWN, "of_certificate", by_certificate),
    ] {
        let url = rig.url(login, "localhost", database, "");
        let url = rig.files.put("uri", url.trim_end_matches('?'));
        let store = json!({ "url": null, "url_file": url, "tls": tls });
        let more = format!("{{ store: {store} }}");
        rig.serves(role, &Store::at(""), &more).await;
    }
}
