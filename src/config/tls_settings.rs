//! TLS, ready to use: [`TlsSettings`] of a listener, [`UpstreamTlsSettings`] for the upstream.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::pem::TlsIdentity;

/// TLS of the data port, ready to be used.
#[derive(Clone, Debug)]
pub struct TlsSettings {
    pub config: Arc<ServerConfig>,
    /// `None`: clients are not asked for certificates.
    pub clients: Option<ClientAuth>,
    /// When the certificate, or one of its chain, ends: seconds since 1970.
    pub expires: i64,
}

/// The requirement for client certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientAuth {
    /// Connections without a certificate are refused.
    Required,
    /// Clients may show one.
    Optional,
}

/// TLS to the upstream, where it differs from the default.
#[derive(Clone, Debug, Default)]
pub struct UpstreamTlsSettings {
    /// `None`: the system's.
    pub roots: Option<Arc<RootCertStore>>,
    /// The proxy's own certificate and key.
    pub identity: Option<TlsIdentity>,
    /// `None`: the URL's host.
    pub server_name: Option<ServerName<'static>>,
}

impl UpstreamTlsSettings {
    /// The client's side of TLS, without ALPN.
    ///
    /// # Errors
    ///
    /// If no CA is given, and the system has no root certificates that can be read.
    pub fn client_config(&self) -> std::io::Result<ClientConfig> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(std::io::Error::other)?;
        let roots = match &self.roots {
            Some(roots) => Arc::clone(roots),
            None => Arc::new(native_roots()?),
        };
        let builder = builder.with_root_certificates(roots);
        Ok(match &self.identity {
            Some(TlsIdentity { key, .. }) => {
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(key))))
            }
            None => builder.with_no_client_auth(),
        })
    }
}

/// The system's root certificates; those that cannot be read are left out.
fn native_roots() -> std::io::Result<RootCertStore> {
    let loaded = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(loaded.certs);
    if roots.is_empty() {
        let why = format!("no root certificates found (errors: {:?})", loaded.errors);
        return Err(std::io::Error::new(std::io::ErrorKind::NotFound, why));
    }
    Ok(roots)
}

/// The cryptography of both sides.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
