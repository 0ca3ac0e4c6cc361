//! The client of the demo: for the workers, and for what the stories ask by themselves.

use std::time::Duration;

/// How long any one request of the demo may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// A client as the workers use it: it ignores the proxy settings of the environment.
pub(super) fn client() -> reqwest::Client {
    // reqwest wants a TLS provider even where nothing speaks TLS; another caller may have set one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .no_proxy()
        .timeout(PATIENCE)
        .build()
        .expect("a client without certificates or proxies has nothing that can fail")
}
