//! Certificates and keys in PEM files, with a message and a hint for every way in which such a file
//! can be wrong.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, RootCertStore};

use super::der;
use super::yaml::{Report, Wrong};

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
    let chain = taken(cert_at, cert_file, report, certificates);
    let key = taken(key_at, key_file, report, private_key);
    let chain = chain?;
    let validity = told(cert_at, cert_file, report, validity(&chain));
    let (key, (begins, expires)) = (key?, validity?);
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
    let list = taken(at, file, report, certificates)?;
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

/// Reads lists of revoked certificates. Warns of a list that is past its next update at `now`.
pub(super) fn revocations(
    at: &str,
    file: &Path,
    now: i64,
    report: &mut Report,
) -> Option<Vec<CertificateRevocationListDer<'static>>> {
    let (lists, next_update) = taken(at, file, report, revocation_lists)?;
    if next_update < now {
        report.warn(
            at,
            format!(
                "a revocation list in {} has expired: no client is accepted",
                file.display()
            ),
            "replace it; it is read without a restart",
        );
    }
    Some(lists)
}

/// Reads a file and parses it. A problem is reported with the file's name.
fn taken<T>(
    at: &str,
    file: &Path,
    report: &mut Report,
    make: impl FnOnce(&[u8]) -> Result<T, Wrong>,
) -> Option<T> {
    if file.as_os_str().is_empty() {
        report.error(at, "the path is empty", "the path of a PEM file");
        return None;
    }
    report.reads(file);
    match std::fs::read(file) {
        Ok(bytes) => told(at, file, report, make(&bytes)),
        Err(error) => {
            report.error(
                at,
                format!("{} cannot be read: {error}", file.display()),
                "the path of a PEM file that this user may read",
            );
            None
        }
    }
}

fn told<T>(at: &str, file: &Path, report: &mut Report, made: Result<T, Wrong>) -> Option<T> {
    made.map_err(|(message, hint)| report.error(at, format!("{} {message}", file.display()), hint))
        .ok()
}

fn certificates(bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, Wrong> {
    let list: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    match list {
        Ok(list) if !list.is_empty() => Ok(list),
        Ok(_) if is_pem(bytes) => Err((
            "has no certificate in it".to_owned(),
            "a PEM file with `-----BEGIN CERTIFICATE-----`; is this the key's file?",
        )),
        Ok(_) => Err((
            "is not PEM".to_owned(),
            "a text file with `-----BEGIN CERTIFICATE-----`; from DER: openssl x509 -inform der \
             -in FILE",
        )),
        Err(error) => Err(broken(&error)),
    }
}

/// The lists, and the earliest time of a next update.
fn revocation_lists(
    bytes: &[u8],
) -> Result<(Vec<CertificateRevocationListDer<'static>>, i64), Wrong> {
    let lists: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(bytes).collect();
    let lists = lists.map_err(|error| broken(&error))?;
    if lists.is_empty() {
        return Err((
            "has no revocation list in it".to_owned(),
            "a PEM file with `-----BEGIN X509 CRL-----`; from DER: openssl crl -inform der -in \
             FILE",
        ));
    }
    let mut first = i64::MAX;
    for list in &lists {
        let Some(next) = der::next_update(list) else {
            return Err((
                "holds a revocation list that cannot be read".to_owned(),
                "write the whole file again",
            ));
        };
        let Some(next) = next else {
            return Err((
                "holds a revocation list that does not say when the next one comes".to_owned(),
                "make it with a next update (RFC 5280, 5.1.2.5): openssl ca -gencrl -crldays 7",
            ));
        };
        first = first.min(next);
    }
    Ok((lists, first))
}

fn private_key(bytes: &[u8]) -> Result<PrivateKeyDer<'static>, Wrong> {
    let holds = |text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
    if holds(b"BEGIN ENCRYPTED PRIVATE KEY") || holds(b"Proc-Type: 4,ENCRYPTED") {
        return Err((
            "is encrypted, and there is no way to enter its passphrase".to_owned(),
            "decrypt it (openssl pkey -in FILE -out NEW), and keep others from reading it by its \
             mode",
        ));
    }
    match PrivateKeyDer::from_pem_slice(bytes) {
        Ok(key) => Ok(key),
        Err(pem::Error::NoItemsFound) if is_pem(bytes) => Err((
            "has no private key in it".to_owned(),
            "a PEM file with `-----BEGIN PRIVATE KEY-----`; is this the certificate's file?",
        )),
        Err(pem::Error::NoItemsFound) => Err((
            "is not PEM".to_owned(),
            "a text file with `-----BEGIN PRIVATE KEY-----`; from DER: openssl pkey -inform der \
             -in FILE",
        )),
        Err(error) => Err(broken(&error)),
    }
}

fn is_pem(bytes: &[u8]) -> bool {
    bytes
        .windows(b"-----BEGIN ".len())
        .any(|window| window == b"-----BEGIN ")
}

fn broken(error: &pem::Error) -> Wrong {
    (
        format!("is broken PEM: {error}"),
        "write the whole file again; a line may have been cut off",
    )
}

/// The period in which all certificates of a chain are valid, in seconds since 1970.
fn validity(chain: &[CertificateDer<'_>]) -> Result<(i64, i64), Wrong> {
    let mut whole = (i64::MIN, i64::MAX);
    for certificate in chain {
        let Some((begins, expires)) = der::validity(certificate) else {
            return Err((
                "holds a certificate that is not X.509".to_owned(),
                "write the whole file again",
            ));
        };
        whole = (whole.0.max(begins), whole.1.min(expires));
    }
    Ok(whole)
}
