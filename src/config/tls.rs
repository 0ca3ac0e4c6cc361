//! The blocks `tls`, `admin.tls` and `upstream.tls`, and what they become: [`TlsSettings`] of a
//! listener, [`UpstreamTlsSettings`] for the upstream. The files that they name are read together
//! with the configuration. So `fencepost check` reports what is wrong with them, and a reload takes
//! everything or nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoClientAuth, NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use webpki::{EndEntityCert, KeyUsage};

use super::addresses::UpstreamUrl;
use super::yaml::{Report, blocks, shown};

/// TLS of the data port, ready to be used.
#[derive(Clone, Debug)]
pub struct TlsSettings {
    pub config: Arc<ServerConfig>,
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
        let roots = match &self.roots {
            Some(roots) => Arc::clone(roots),
            None => Arc::new(native_roots()?),
        };
        let builder = ClientConfig::builder().with_root_certificates(roots);
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

blocks! {
    /// TLS for clients of the data port: 1.2 and 1.3, HTTP/2 and HTTP/1.1 by ALPN. The files are
    /// read again when they change; open connections are not affected.
    #[schemars(extend("required" = ["cert_file", "key_file"]))]
    pub struct TlsFile {
        /// The certificate, followed by its chain: PEM.
        pub cert_file: Option<PathBuf>,
        /// Its private key: PEM, unencrypted.
        pub key_file: Option<PathBuf>,
        /// The CAs of client certificates: PEM. Without it, clients show none.
        pub client_ca_file: Option<PathBuf>,
        /// `required`: a client must show one. `optional`: a client without one passes the
        /// handshake, and has no name for `require_client`; an invalid one never passes.
        pub client_auth: ClientAuth = ClientAuth::Required,
        /// The revocation lists of these CAs: PEM, one for each CA of a chain. A certificate is
        /// refused if it is on a list, if its CA has no list here, or if that list is past its next
        /// update.
        pub crl_file: Option<PathBuf>,
    }

    /// TLS for the admin port: 1.2 and 1.3, HTTP/1.1. The files are read again when they change;
    /// open connections are not affected.
    #[schemars(extend("required" = ["cert_file", "key_file"]))]
    pub struct AdminTlsFile {
        /// The certificate, followed by its chain: PEM.
        pub cert_file: Option<PathBuf>,
        /// Its private key: PEM, unencrypted.
        pub key_file: Option<PathBuf>,
    }

    /// TLS to an `https://` upstream. The files are read again when they change, for new
    /// connections.
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
}

/// The `admin.tls` block. `None` where it is wrong.
pub(super) fn admin(file: &AdminTlsFile, report: &mut Report) -> Option<TlsSettings> {
    let identity = identity("admin.tls", [&file.cert_file, &file.key_file], report)?;
    Some(server(Arc::new(NoClientAuth), identity, &[b"http/1.1"]))
}

/// The `tls` block. `None` where it is wrong.
pub(super) fn listener(file: &TlsFile, report: &mut Report) -> Option<TlsSettings> {
    let identity = identity("tls", [&file.cert_file, &file.key_file], report);
    for name in ["client_auth", "crl_file"] {
        let at = format!("tls.{name}");
        let is_given = report.is_given(&at);
        let text = format!(
            "this concerns client certificates, and no CA is named to verify them\n\
             give tls.client_ca_file, or leave {name} out"
        );
        report.error_if(file.client_ca_file.is_none() && is_given, &at, text);
    }
    let verifier = match &file.client_ca_file {
        Some(ca_file) => verifier(ca_file, file, report)?,
        None => Arc::new(NoClientAuth),
    };
    Some(server(verifier, identity?, &[b"h2", b"http/1.1"]))
}

fn verifier(
    ca_file: &Path,
    file: &TlsFile,
    report: &mut Report,
) -> Option<Arc<dyn ClientCertVerifier>> {
    let roots = roots("tls.client_ca_file", ca_file, report);
    let crl = file.crl_file.as_ref();
    let crls = crl.map(|crl| read("tls.crl_file", crl, "revocation list", report));
    let mut verifier = WebPkiClientVerifier::builder(roots?);
    if file.client_auth == ClientAuth::Optional {
        verifier = verifier.allow_unauthenticated();
    }
    if let Some(crls) = crls {
        // A list past its next update does not show what was revoked since.
        verifier = verifier.with_crls(crls?).enforce_revocation_expiration();
    }
    let verifier = verifier.build();
    (verifier.map_err(|error| report.error("tls.crl_file", error.to_string()))).ok()
}

/// The server's side of TLS. `protocols`: those that it offers.
fn server(
    verifier: Arc<dyn ClientCertVerifier>,
    identity: TlsIdentity,
    protocols: &[&[u8]],
) -> TlsSettings {
    let are_asked = verifier.offer_client_auth();
    let builder = ServerConfig::builder().with_client_cert_verifier(verifier);
    let resolver = SingleCertAndKey::from(identity.key);
    let mut config = builder.with_cert_resolver(Arc::new(resolver));
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    // An attacker who recorded early data can replay it.
    config.max_early_data_size = 0;
    if are_asked {
        // A session that is resumed shows no certificate: one that has expired meanwhile, or whose
        // CA is gone, would still get in.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    TlsSettings {
        config: Arc::new(config),
        expires: identity.expires,
    }
}

/// The `upstream.tls` block. `None` where it is wrong.
pub(super) fn upstream(
    file: UpstreamTlsFile,
    url: Option<&UpstreamUrl>,
    report: &mut Report,
) -> Option<UpstreamTlsSettings> {
    if url.is_some_and(|url| !matches!(url, UpstreamUrl::Https(_))) {
        let text = "the upstream's URL is not https, so there is no TLS to it\n\
                    write https:// in upstream.url, or remove this block";
        report.error_beside(true, ["upstream.tls", "upstream.url"], text);
        return None;
    }
    let mut settings = UpstreamTlsSettings::default();
    if let Some(file) = &file.ca_file {
        settings.roots = Some(roots("upstream.tls.ca_file", file, report)?);
    }
    if file.cert_file.is_some() || file.key_file.is_some() {
        let identity = identity("upstream.tls", [&file.cert_file, &file.key_file], report)?;
        settings.identity = Some(identity);
    }
    if let Some(name) = file.server_name {
        settings.server_name = ServerName::try_from(name.clone()).ok();
        let is_bad = settings.server_name.is_none();
        let text = format!(
            "{} is neither a DNS name nor an IP address\n\
             the name in the upstream's certificate, without a port: orders.internal",
            shown(&name),
        );
        report.error_if(is_bad, "upstream.tls.server_name", text);
    }
    Some(settings)
}

/// A certificate with its chain, and its key.
#[derive(Clone, Debug)]
pub struct TlsIdentity {
    pub key: Arc<CertifiedKey>,
    /// The earliest end of validity in the chain, in seconds since 1970.
    pub expires: i64,
}

/// Reads the fields `cert_file` and `key_file` of a block.
fn identity(
    at: &str,
    [cert_file, key_file]: [&Option<PathBuf>; 2],
    report: &mut Report,
) -> Option<TlsIdentity> {
    let (cert_at, key_at) = (format!("{at}.cert_file"), format!("{at}.key_file"));
    let missing = format!("the path is missing or empty\n{PEM_HINT}");
    for (at, file) in [(&cert_at, cert_file), (&key_at, key_file)] {
        let is_empty = file.as_ref().is_none_or(|file| file.as_os_str().is_empty());
        report.error_if(is_empty, at, &*missing);
    }
    let (cert_file, key_file) = (cert_file.as_ref()?, key_file.as_ref()?);
    let chain: Option<Vec<CertificateDer<'_>>> = read(&cert_at, cert_file, "certificate", report);
    let key = read(&key_at, key_file, "private key", report);
    let (chain, key) = (chain?, key?.into_iter().next()?);
    let (cert_file, key_file) = (cert_file.display(), key_file.display());
    // `None` is less than every time.
    let Some(expires) = chain.iter().map(expiry).min().flatten() else {
        let fault = "holds a certificate that is not X.509, version 3\nwrite the whole file again";
        report.error(cert_at, format!("{cert_file} {fault}"));
        return None;
    };
    let key = CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(|error| {
        let text = format!(
            "{key_file} is not the key of the certificate in {cert_file}: {error}\n\
             RSA of 2048 bits or more, ECDSA P-256 or P-384, or Ed25519",
        );
        report.error(key_at, text);
    });
    Some(TlsIdentity {
        key: Arc::new(key.ok()?),
        expires,
    })
}

/// Reads the certificates of CAs.
fn roots(at: &str, file: &Path, report: &mut Report) -> Option<Arc<RootCertStore>> {
    let mut certificates = read(at, file, "certificate", report)?.into_iter();
    let mut roots = RootCertStore::empty();
    if let Err(error) = certificates.try_for_each(|certificate| roots.add(certificate)) {
        let file = file.display();
        let hint = "certificates of CAs only, each whole: X.509, version 3";
        let fault = format!("holds a certificate that cannot be used: {error}\n{hint}");
        report.error(at, format!("{file} {fault}"));
        return None;
    }
    Some(Arc::new(roots))
}

const PEM_HINT: &str = "the path of a whole PEM file that this user may read; from DER: openssl x509 \
                        (or pkey, or crl) -inform der -in FILE; to decrypt a key: openssl pkey -in \
                        FILE -out NEW";

/// Reads the PEM sections of one kind, and reports what is wrong with the file.
fn read<T: PemObject>(at: &str, file: &Path, name: &str, report: &mut Report) -> Option<Vec<T>> {
    report.sources.note(file);
    pem(file, name).map_err(|text| report.error(at, text)).ok()
}

/// Reads the PEM sections of one kind, at least one. `name`: that of the kind. The error is a
/// message and a hint.
pub fn pem<T: PemObject>(file: &Path, name: &str) -> Result<Vec<T>, String> {
    let fault = match std::fs::read(file) {
        Err(error) => format!("cannot be read: {error}"),
        Ok(pem) => match T::pem_slice_iter(&pem).collect::<Result<Vec<T>, _>>() {
            Err(error) => format!("is broken PEM: {error}"),
            Ok(sections) if !sections.is_empty() => return Ok(sections),
            Ok(_) if String::from_utf8_lossy(&pem).contains("ENCRYPTED") => {
                "is encrypted, and there is no way to enter its passphrase".to_owned()
            }
            Ok(_) => format!("has no {name} in it"),
        },
    };
    Err(format!("{} {fault}\n{PEM_HINT}", file.display()))
}

/// The time when a certificate expires, in seconds since 1970. A check against a later time names it.
fn expiry(certificate: &CertificateDer<'_>) -> Option<i64> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    let later = UnixTime::since_unix_epoch(Duration::MAX);
    let usage = KeyUsage::server_auth();
    match certificate.verify_for_usage(&[], &[], &[], later, usage, None, None) {
        Err(webpki::Error::CertExpired { not_after, .. }) => not_after.as_secs().try_into().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_off_has_no_dates() {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::default();
        params.not_after = rcgen::date_time_ymd(2060, 1, 31);
        let whole = params.self_signed(&key).expect("a certificate");
        let whole = whole.der();
        assert_eq!(expiry(whole), Some(2_842_732_800));
        for length in 0..whole.len() {
            assert_eq!(expiry(&whole[..length].into()), None);
        }
        assert_eq!(
            expiry(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff][..].into()),
            None
        );
        // A `UTCTime`, and long ago.
        params.not_after = rcgen::date_time_ymd(2025, 1, 31);
        let expired = params.self_signed(&key).expect("a certificate");
        assert_eq!(expiry(expired.der()), Some(1_738_281_600));
    }
}
