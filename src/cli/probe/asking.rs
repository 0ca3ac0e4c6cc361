//! [`Asking`]: the HTTP clients of a drill.

use std::time::Duration;

use reqwest::{Certificate, ClientBuilder, redirect};

/// How requests are sent.
pub(super) struct Asking {
    pub(super) timeout: Duration,
    /// `None`: the system's.
    pub(super) roots: Option<Vec<Certificate>>,
}

impl Asking {
    /// Ignores the proxies of the environment, follows nothing and keeps no connection: each
    /// request shows what one new client sees.
    pub(super) fn plain(&self) -> ClientBuilder {
        // reqwest takes the process's provider; an error says that there is one already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        reqwest::Client::builder()
            .no_proxy()
            .redirect(redirect::Policy::none())
            .pool_max_idle_per_host(0)
            .timeout(self.timeout)
            .user_agent(concat!("fencepost-probe/", env!("CARGO_PKG_VERSION")))
    }

    pub(super) fn client(&self) -> reqwest::Result<reqwest::Client> {
        let builder = self.plain();
        match &self.roots {
            Some(roots) => builder.tls_certs_only(roots.clone()),
            None => builder,
        }
        .build()
    }
}
