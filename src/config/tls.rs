//! TLS on either side: the blocks `tls` and `upstream.tls`. The files they name are read with the configuration, so
//! that `fencepost check` tells what is wrong with them, and a pair that cannot be used is a configuration that
//! cannot: a reload takes all of it or nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::ServerName;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use schemars::JsonSchema;
use serde::Deserialize;

use super::pem::{self, Identity};
use super::problems::{Report, shown};
use super::settings::UpstreamUrl;

/// TLS for clients of the data port: 1.2 and 1.3, HTTP/2 and HTTP/1.1 by ALPN. The files are read again
/// when they change; connections that are open stay as they are.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Tls", extend("required" = ["cert_file", "key_file"]))]
pub struct TlsFile {
    /// The certificate, with its chain behind it: PEM.
    pub cert_file: Option<PathBuf>,
    /// Its private key: PEM, not encrypted.
    pub key_file: Option<PathBuf>,
    /// The CAs whose certificates clients show: PEM. Without it clients show none.
    pub client_ca_file: Option<PathBuf>,
    /// Whether a client has to show one. `optional`: one without passes the handshake, and has no name for
    /// `require_peer`; a bad one never passes.
    #[schemars(extend("default" = "required"))]
    pub client_auth: Option<ClientAuth>,
}

/// Whether a client has to show a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ClientAuth {
    /// Without one there is no connection.
    Required,
    /// It may.
    Optional,
}

/// TLS toward an `https://` upstream. The files are read again when they change, for new connections.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "UpstreamTls")]
pub struct UpstreamTlsFile {
    /// The CAs that the upstream's certificate is verified by, in place of the system's: PEM.
    pub ca_file: Option<PathBuf>,
    /// The certificate that the proxy shows to the upstream, with its chain: PEM. With `key_file`.
    pub cert_file: Option<PathBuf>,
    /// Its private key: PEM, not encrypted.
    pub key_file: Option<PathBuf>,
    /// The name that the upstream's certificate has to have, and that is sent as SNI; by default the URL's host.
    pub server_name: Option<String>,
}

/// TLS of the data port, ready to be used.
#[derive(Clone)]
pub struct TlsSettings {
    pub config: Arc<ServerConfig>,
    /// Clients have to show a certificate, or may; `None`: they are not asked.
    pub client_auth: Option<ClientAuth>,
    /// When the certificate, or one of its chain, ends: seconds since 1970.
    pub expires: i64,
}

/// Without the key.
impl std::fmt::Debug for TlsSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsSettings")
            .field("client_auth", &self.client_auth)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

/// TLS toward the upstream, as far as it is not the default.
#[derive(Clone, Debug, Default)]
pub struct UpstreamTlsSettings {
    /// `None`: the system's.
    pub roots: Option<Arc<RootCertStore>>,
    /// What the proxy shows.
    pub identity: Option<Identity>,
    /// `None`: the URL's host.
    pub server_name: Option<ServerName<'static>>,
}

impl UpstreamTlsSettings {
    /// The client's side of TLS, without ALPN.
    ///
    /// # Errors
    ///
    /// Where the system has no root certificates that can be read, and no others are given.
    pub fn client_config(&self) -> std::io::Result<ClientConfig> {
        use hyper_rustls::ConfigBuilderExt;
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(std::io::Error::other)?;
        let builder = match &self.roots {
            Some(roots) => builder.with_root_certificates(Arc::clone(roots)),
            None => builder.with_native_roots()?,
        };
        Ok(match &self.identity {
            Some(identity) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(
                Arc::clone(&identity.key),
            ))),
            None => builder.with_no_client_auth(),
        })
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The `tls` block. `None` where it is wrong.
pub(super) fn listener(file: &TlsFile, report: &mut Report) -> Option<TlsSettings> {
    let identity = pair(
        "tls",
        (file.cert_file.as_deref(), file.key_file.as_deref()),
        report,
    );
    let ca = file.client_ca_file.as_ref();
    let roots = ca.map(|file| pem::roots("tls.client_ca_file", file, report));
    if roots.is_none() && file.client_auth.is_some() {
        report.error(
            "tls.client_auth",
            "clients are asked for certificates, and no CA is named to verify them by",
            "give tls.client_ca_file, or leave client_auth out",
        );
    }
    let client_auth = file.client_auth.unwrap_or(ClientAuth::Required);
    let identity = identity?;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| report.error("tls", error.to_string(), ""))
        .ok()?;
    let client_auth = roots.is_some().then_some(client_auth);
    let builder = match roots {
        None => builder.with_no_client_auth(),
        Some(roots) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(roots?, provider());
            let verifier = match client_auth {
                Some(ClientAuth::Optional) => verifier.allow_unauthenticated(),
                _ => verifier,
            };
            let verifier = verifier
                .build()
                .map_err(|error| report.error("tls.client_ca_file", error.to_string(), ""));
            builder.with_client_cert_verifier(verifier.ok()?)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(identity.key)));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // Early data can be played again by whoever recorded it.
    config.max_early_data_size = 0;
    if client_auth.is_some() {
        // A session that is resumed shows no certificate: one that has expired meanwhile, or whose CA is gone,
        // would still get in.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Some(TlsSettings {
        config: Arc::new(config),
        client_auth,
        expires: identity.expires,
    })
}

/// The `upstream.tls` block. `None` where it is wrong.
pub(super) fn upstream(
    file: UpstreamTlsFile,
    url: Option<&UpstreamUrl>,
    report: &mut Report,
) -> Option<UpstreamTlsSettings> {
    if url.is_some_and(|url| !matches!(url, UpstreamUrl::Https(_))) {
        report.error(
            "upstream.tls",
            "the upstream's URL is not https, so there is no TLS toward it",
            "write https:// in upstream.url, or remove this block",
        );
        return None;
    }
    let roots = match &file.ca_file {
        Some(file) => Some(pem::roots("upstream.tls.ca_file", file, report)?),
        None => None,
    };
    let identity = match (file.cert_file.as_deref(), file.key_file.as_deref()) {
        (None, None) => None,
        files => Some(pair("upstream.tls", files, report)?),
    };
    let server_name = match file.server_name {
        None => None,
        Some(name) => {
            let Ok(server_name) = ServerName::try_from(name.clone()) else {
                report.error(
                    "upstream.tls.server_name",
                    format!("{} is neither a DNS name nor an IP address", shown(&name)),
                    "the name in the upstream's certificate, without a port: orders.internal",
                );
                return None;
            };
            Some(server_name)
        }
    };
    Some(UpstreamTlsSettings {
        roots,
        identity,
        server_name,
    })
}

/// A certificate and its key, both given.
fn pair(
    at: &str,
    (cert, key): (Option<&Path>, Option<&Path>),
    report: &mut Report,
) -> Option<Identity> {
    let (cert_at, key_at) = (format!("{at}.cert_file"), format!("{at}.key_file"));
    for (at, file, what) in [
        (&cert_at, cert, "the certificate"),
        (&key_at, key, "the certificate's private key"),
    ] {
        if file.is_none() {
            report.error(at, format!("{what} is missing"), "the path of a PEM file");
        }
    }
    let identity = pem::identity((&cert_at, cert?), (&key_at, key?), report)?;
    #[expect(
        clippy::disallowed_methods,
        reason = "certificates hold by the wall clock; this only warns of one that does not"
    )]
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    if identity.expires < now {
        report.warn(
            &cert_at,
            "the certificate, or one of its chain, has expired: its peers will refuse it",
            "put a new one in its place; it is read without a restart",
        );
    } else if identity.begins > now {
        report.warn(
            &cert_at,
            "the certificate, or one of its chain, is not valid yet: its peers will refuse it",
            "is the clock of this machine right?",
        );
    }
    Some(identity)
}
