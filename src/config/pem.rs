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
use super::yaml::Report;

/// A certificate with its chain, and its key.
#[derive(Clone)]
pub struct TlsIdentity {
    pub key: Arc<CertifiedKey>,
    /// The earliest end of validity in the chain, in seconds since 1970.
    pub expires: i64,
    /// The latest beginning of validity in the chain.
    pub begins: i64,
}

/// Without the key.
impl std::fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

/// Reads a certificate and its key; both paths are those of fields in the configuration.
pub(super) fn identity(
    (cert_at, cert_file): (&str, &Path),
    (key_at, key_file): (&str, &Path),
    report: &mut Report,
) -> Option<TlsIdentity> {
    let chain = read(cert_at, cert_file, &CERTIFICATE, report);
    let key = read(key_at, key_file, &PRIVATE_KEY, report);
    let (chain, key) = (chain?, key?.into_iter().next()?);
    let Some((begins, expires)) = validity(&chain) else {
        let message = format!(
            "{} holds a certificate that is not X.509",
            cert_file.display()
        );
        report.error(cert_at, message, "write the whole file again");
        return None;
    };
    let certified = match CertifiedKey::from_der(chain, key, &ring::default_provider()) {
        Ok(certified) => certified,
        Err(rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
            report.error(
                key_at,
                format!(
                    "{} is not the key of the certificate in {}",
                    key_file.display(),
                    cert_file.display()
                ),
                "put the key beside the certificate that was made for it; the server's own \
                 certificate comes first in its file",
            );
            return None;
        }
        Err(error) => {
            let message = format!("{} cannot be used: {error}", key_file.display());
            report.error(
                key_at,
                message,
                "an RSA key of 2048 bits or more, ECDSA P-256 or P-384, or Ed25519",
            );
            return None;
        }
    };
    Some(TlsIdentity {
        key: Arc::new(certified),
        expires,
        begins,
    })
}

/// Reads the certificates of CAs.
pub(super) fn roots(at: &str, file: &Path, report: &mut Report) -> Option<Arc<RootCertStore>> {
    let list = read(at, file, &CERTIFICATE, report)?;
    let mut roots = RootCertStore::empty();
    for certificate in list {
        if let Err(error) = roots.add(certificate) {
            let message = format!(
                "{} holds a certificate that cannot be used: {error}",
                file.display()
            );
            report.error(
                at,
                message,
                "certificates of CAs only, each whole: X.509, version 3",
            );
            return None;
        }
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

/// A kind of section in PEM files.
struct PemKind {
    name: &'static str,
    hint: &'static str,
}

const CERTIFICATE: PemKind = PemKind {
    name: "certificate",
    hint: "a PEM file with `-----BEGIN CERTIFICATE-----`; from DER: openssl x509 -inform der -in FILE",
};
const PRIVATE_KEY: PemKind = PemKind {
    name: "private key",
    hint: "a PEM file with `-----BEGIN PRIVATE KEY-----`; from DER: openssl pkey -inform der -in FILE",
};
const REVOCATION_LIST: PemKind = PemKind {
    name: "revocation list",
    hint: "a PEM file with `-----BEGIN X509 CRL-----`; from DER: openssl crl -inform der -in FILE",
};

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
    let bytes = std::fs::read(file);
    let sections = bytes
        .as_ref()
        .map(|bytes| T::pem_slice_iter(bytes).collect());
    let (message, hint) = match (sections, bytes.as_deref()) {
        (Ok(Ok(sections)), _) if !Vec::is_empty(&sections) => return Some(sections),
        (Ok(Ok(_)), Ok(bytes)) if is_encrypted(bytes) => (
            "is encrypted, and there is no way to enter its passphrase".to_owned(),
            "decrypt it (openssl pkey -in FILE -out NEW), and keep others from reading it by its \
             mode",
        ),
        (Ok(Err(error)), _) => (
            format!("is broken PEM: {error}"),
            "write the whole file again; a line may have been cut off",
        ),
        (Err(error), _) => (
            format!("cannot be read: {error}"),
            "the path of a PEM file that this user may read",
        ),
        _ => (format!("has no {} in it", kind.name), kind.hint),
    };
    report.error(at, format!("{} {message}", file.display()), hint);
    None
}

fn is_encrypted(pem: &[u8]) -> bool {
    let holds = |text: &[u8]| pem.windows(text.len()).any(|window| window == text);
    holds(b"BEGIN ENCRYPTED PRIVATE KEY") || holds(b"Proc-Type: 4,ENCRYPTED")
}

/// The period in which all certificates of a chain are valid, in seconds since 1970. `None`: one of
/// them is no certificate.
fn validity(chain: &[CertificateDer<'_>]) -> Option<(i64, i64)> {
    chain
        .iter()
        .try_fold((i64::MIN, i64::MAX), |whole, certificate| {
            let (begins, expires) = der::validity(certificate)?;
            Some((whole.0.max(begins), whole.1.min(expires)))
        })
}
