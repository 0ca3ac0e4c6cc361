//! Certificates and keys in PEM files, with a message and a hint for every way in which such a file
//! can be wrong.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, RootCertStore};

use super::der;
use super::yaml::{Report, Wrong};

/// A certificate with its chain, and its key.
#[derive(Clone, Debug)]
pub struct TlsIdentity {
    pub key: Arc<CertifiedKey>,
    /// The earliest end of validity in the chain, in seconds since 1970.
    pub expires: i64,
}

/// Reads a certificate and its key; both paths are those of fields in the configuration.
pub(super) fn identity(
    (cert_at, cert_file): (&str, &Path),
    (key_at, key_file): (&str, &Path),
    report: &mut Report,
) -> Option<TlsIdentity> {
    let chain: Option<Vec<CertificateDer<'_>>> = read(cert_at, cert_file, &CERTIFICATE, report);
    let key = read(key_at, key_file, &PRIVATE_KEY, report);
    let (chain, key) = (chain?, key?.into_iter().next()?);
    let (cert_file, key_file) = (cert_file.display(), key_file.display());
    // `None` is less than every time.
    let Some(expires) = chain.iter().map(|one| der::expiry(one)).min().flatten() else {
        let message = format!("{cert_file} holds a certificate that is not X.509");
        report.error(cert_at, message, "write the whole file again");
        return None;
    };
    let (message, hint) = match CertifiedKey::from_der(chain, key, &ring::default_provider()) {
        Ok(key) => {
            let key = Arc::new(key);
            return Some(TlsIdentity { key, expires });
        }
        Err(rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => (
            format!("{key_file} is not the key of the certificate in {cert_file}"),
            "put the key beside the certificate that was made for it; the server's own \
             certificate comes first in its file",
        ),
        Err(error) => (
            format!("{key_file} cannot be used: {error}"),
            "an RSA key of 2048 bits or more, ECDSA P-256 or P-384, or Ed25519",
        ),
    };
    report.error(key_at, message, hint);
    None
}

/// Reads the certificates of CAs.
pub(super) fn roots(at: &str, file: &Path, report: &mut Report) -> Option<Arc<RootCertStore>> {
    let mut certificates = read(at, file, &CERTIFICATE, report)?.into_iter();
    let mut roots = RootCertStore::empty();
    if let Err(error) = certificates.try_for_each(|certificate| roots.add(certificate)) {
        let file = file.display();
        let message = format!("{file} holds a certificate that cannot be used: {error}");
        let hint = "certificates of CAs only, each whole: X.509, version 3";
        report.error(at, message, hint);
        return None;
    }
    Some(Arc::new(roots))
}

/// Reads lists of revoked certificates. rustls checks what is in them.
pub(super) fn revocations(
    at: &str,
    file: &Path,
    report: &mut Report,
) -> Option<Vec<CertificateRevocationListDer<'static>>> {
    read(at, file, &REVOCATION_LIST, report)
}

/// A kind of section in PEM files: its name, and a hint for a file that has none.
type PemKind = (&'static str, &'static str);

const CERTIFICATE: PemKind = (
    "certificate",
    "a PEM file with `-----BEGIN CERTIFICATE-----`; from DER: openssl x509 -inform der -in FILE",
);
const PRIVATE_KEY: PemKind = (
    "private key",
    "a PEM file with `-----BEGIN PRIVATE KEY-----`; from DER: openssl pkey -inform der -in FILE",
);
const REVOCATION_LIST: PemKind = (
    "revocation list",
    "a PEM file with `-----BEGIN X509 CRL-----`; from DER: openssl crl -inform der -in FILE",
);

/// Reads the sections of one kind, at least one. A problem is reported with the file's name.
fn read<T: PemObject>(
    at: &str,
    file: &Path,
    kind: &PemKind,
    report: &mut Report,
) -> Option<Vec<T>> {
    if file.as_os_str().is_empty() {
        report.error(at, "the path is empty", "the path of a PEM file");
        return None;
    }
    report.reads(file);
    sections(file, kind)
        .map_err(|(message, hint)| {
            report.error(at, format!("{} {message}", file.display()), hint);
        })
        .ok()
}

fn sections<T: PemObject>(file: &Path, (name, hint): &PemKind) -> Result<Vec<T>, Wrong> {
    let bytes = std::fs::read(file).map_err(|error| {
        let message = format!("cannot be read: {error}");
        (message, "the path of a PEM file that this user may read")
    })?;
    let sections: Result<Vec<T>, _> = T::pem_slice_iter(&bytes).collect();
    let sections = sections.map_err(|error| {
        let message = format!("is broken PEM: {error}");
        let hint = "write the whole file again; a line may have been cut off";
        (message, hint)
    })?;
    if sections.is_empty() && is_encrypted(&bytes) {
        return Err((
            "is encrypted, and there is no way to enter its passphrase".to_owned(),
            "decrypt it (openssl pkey -in FILE -out NEW), and keep others from reading it by its \
             mode",
        ));
    }
    if sections.is_empty() {
        return Err((format!("has no {name} in it"), hint));
    }
    Ok(sections)
}

fn is_encrypted(pem: &[u8]) -> bool {
    let holds = |text: &[u8]| pem.windows(text.len()).any(|window| window == text);
    holds(b"BEGIN ENCRYPTED PRIVATE KEY") || holds(b"Proc-Type: 4,ENCRYPTED")
}
