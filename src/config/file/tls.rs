//! The blocks `tls`, `admin.tls` and `upstream.tls`. The files that they name are read together
//! with the configuration. So `fencepost check` reports what is wrong with them, and a reload takes
//! everything or nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::ServerConfig;
use rustls::pki_types::ServerName;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoClientAuth, NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::config::addresses::UpstreamUrl;
use crate::config::pem::{self, TlsIdentity};
use crate::config::tls_settings::{ClientAuth, TlsSettings, UpstreamTlsSettings, provider};
use crate::config::yaml::{Report, shown};

/// TLS for clients of the data port: 1.2 and 1.3, HTTP/2 and HTTP/1.1 by ALPN. The files are read
/// again when they change; open connections are not affected.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Tls", extend("required" = ["cert_file", "key_file"]))]
pub struct TlsFile {
    /// The certificate, followed by its chain: PEM.
    pub cert_file: Option<PathBuf>,
    /// Its private key: PEM, unencrypted.
    pub key_file: Option<PathBuf>,
    /// The CAs of client certificates: PEM. Without it, clients show none.
    pub client_ca_file: Option<PathBuf>,
    /// `required`: a client must show one. `optional`: a client without one passes the handshake,
    /// and has no name for `require_client`; an invalid one never passes.
    #[schemars(extend("default" = CLIENT_AUTH))]
    pub client_auth: Option<ClientAuth>,
    /// The revocation lists of these CAs: PEM, one for each CA of a chain. A certificate is refused
    /// if it is on a list, if its CA has no list here, or if that list is past its next update.
    pub crl_file: Option<PathBuf>,
}

/// TLS for the admin port: 1.2 and 1.3, HTTP/1.1. The files are read again when they change; open
/// connections are not affected.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "AdminTls", extend("required" = ["cert_file", "key_file"]))]
pub struct AdminTlsFile {
    /// The certificate, followed by its chain: PEM.
    pub cert_file: Option<PathBuf>,
    /// Its private key: PEM, unencrypted.
    pub key_file: Option<PathBuf>,
}

/// TLS to an `https://` upstream. The files are read again when they change, for new connections.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "UpstreamTls")]
pub struct UpstreamTlsFile {
    /// The CAs for the upstream's certificate, instead of the system's: PEM.
    pub ca_file: Option<PathBuf>,
    /// The client certificate, followed by its chain: PEM. With `key_file`.
    pub cert_file: Option<PathBuf>,
    /// Its private key: PEM, unencrypted.
    pub key_file: Option<PathBuf>,
    /// The name in the upstream's certificate, also sent as SNI. The default is the URL's host.
    pub server_name: Option<String>,
}

/// The default of `client_auth`.
const CLIENT_AUTH: ClientAuth = ClientAuth::Required;

/// The `admin.tls` block. `None` where it is wrong.
pub(in crate::config) fn admin(file: &AdminTlsFile, report: &mut Report) -> Option<TlsSettings> {
    let identity = identity(
        "admin.tls",
        (file.cert_file.as_deref(), file.key_file.as_deref()),
        report,
    )?;
    server("admin.tls", None, identity, &[b"http/1.1"], report)
}

/// The `tls` block. `None` where it is wrong.
pub(in crate::config) fn listener(file: &TlsFile, report: &mut Report) -> Option<TlsSettings> {
    let identity = identity(
        "tls",
        (file.cert_file.as_deref(), file.key_file.as_deref()),
        report,
    );
    let Some(ca_file) = &file.client_ca_file else {
        for (name, given) in [
            ("client_auth", file.client_auth.is_some()),
            ("crl_file", file.crl_file.is_some()),
        ] {
            if given {
                report.error(
                    format!("tls.{name}"),
                    "this concerns client certificates, and no CA is named to verify them",
                    &format!("give tls.client_ca_file, or leave {name} out"),
                );
            }
        }
        return server("tls", None, identity?, &[b"h2", b"http/1.1"], report);
    };
    let roots = pem::roots("tls.client_ca_file", ca_file, report);
    let crl = file.crl_file.as_ref();
    let crls = crl.map(|file| pem::revocations("tls.crl_file", file, report));
    let auth = file.client_auth.unwrap_or(CLIENT_AUTH);
    let mut verifier = WebPkiClientVerifier::builder_with_provider(roots?, provider());
    if auth == ClientAuth::Optional {
        verifier = verifier.allow_unauthenticated();
    }
    let mut at = "tls.client_ca_file";
    if let Some(crls) = crls {
        // A list past its next update does not show what was revoked since.
        verifier = verifier.with_crls(crls?).enforce_revocation_expiration();
        at = "tls.crl_file";
    }
    let verifier = verifier.build();
    let verifier = verifier.map_err(|error| report.error(at, error.to_string(), ""));
    let clients = Some((auth, verifier.ok()?));
    server("tls", clients, identity?, &[b"h2", b"http/1.1"], report)
}

/// The server's side of TLS. `protocols`: those that it offers.
fn server(
    at: &str,
    clients: Option<(ClientAuth, Arc<dyn ClientCertVerifier>)>,
    identity: TlsIdentity,
    protocols: &[&[u8]],
    report: &mut Report,
) -> Option<TlsSettings> {
    let builder = ServerConfig::builder_with_provider(provider());
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| report.error(at, error.to_string(), ""));
    let (auth, verifier) = clients.unzip();
    let verifier = verifier.unwrap_or_else(|| Arc::new(NoClientAuth));
    let builder = builder.ok()?.with_client_cert_verifier(verifier);
    let resolver = SingleCertAndKey::from(identity.key);
    let mut config = builder.with_cert_resolver(Arc::new(resolver));
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    // An attacker who recorded early data can replay it.
    config.max_early_data_size = 0;
    if auth.is_some() {
        // A session that is resumed shows no certificate: one that has expired meanwhile, or whose
        // CA is gone, would still get in.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Some(TlsSettings {
        config: Arc::new(config),
        clients: auth,
        expires: identity.expires,
    })
}

/// The `upstream.tls` block. `None` where it is wrong.
pub(in crate::config) fn upstream(
    file: UpstreamTlsFile,
    url: Option<&UpstreamUrl>,
    report: &mut Report,
) -> Option<UpstreamTlsSettings> {
    if url.is_some_and(|url| !matches!(url, UpstreamUrl::Https(_))) {
        report.with("upstream.url").error(
            "upstream.tls",
            "the upstream's URL is not https, so there is no TLS to it",
            "write https:// in upstream.url, or remove this block",
        );
        return None;
    }
    let mut settings = UpstreamTlsSettings::default();
    if let Some(file) = &file.ca_file {
        settings.roots = Some(pem::roots("upstream.tls.ca_file", file, report)?);
    }
    if file.cert_file.is_some() || file.key_file.is_some() {
        let identity = identity(
            "upstream.tls",
            (file.cert_file.as_deref(), file.key_file.as_deref()),
            report,
        )?;
        settings.identity = Some(identity);
    }
    if let Some(name) = file.server_name {
        settings.server_name = ServerName::try_from(name.clone()).ok();
        report.error_if(
            settings.server_name.is_none(),
            "upstream.tls.server_name",
            format!("{} is neither a DNS name nor an IP address", shown(&name)),
            "the name in the upstream's certificate, without a port: orders.internal",
        );
    }
    Some(settings)
}

/// A certificate and its key, both given.
fn identity(
    at: &str,
    (cert, key): (Option<&Path>, Option<&Path>),
    report: &mut Report,
) -> Option<TlsIdentity> {
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
    if now.is_ok_and(|now| i64::try_from(now.as_secs()).is_ok_and(|now| identity.expires < now)) {
        report.warn(
            &cert_at,
            "the certificate, or one of its chain, has expired: the other side will refuse it",
            "replace it; it is read without a restart",
        );
    }
    Some(identity)
}
