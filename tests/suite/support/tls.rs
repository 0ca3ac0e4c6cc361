//! CAs and certificates made on the spot, and both sides of TLS with them: rustls, as the program
//! has it, but set up here again; curl beside it is another library's.

use std::io::Result;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SanType, SerialNumber, date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::proxy::{mount, put};
use super::wire::Wire;

/// The end of every certificate that is not said to end otherwise: 2040-01-01.
pub const EXPIRES: f64 = 2_208_988_800.0;

/// An authority.
pub struct Ca {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A certificate and its key, as they lie in files.
#[derive(Clone)]
pub struct Credentials {
    pub cert: String,
    pub key: String,
    /// One's own among all that this process has made.
    serial: u64,
}

static SERIALS: AtomicU64 = AtomicU64::new(1);

impl Ca {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    /// Its own certificate.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// For a server of these names, addresses among them.
    pub fn server(&self, names: &[&str]) -> Credentials {
        self.server_until(names, 2040)
    }

    /// As [`Self::server`], until the first day of a year.
    pub fn server_until(&self, names: &[&str], year: i32) -> Credentials {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let params = CertificateParams::new(names).expect("names");
        self.sign(params, ExtendedKeyUsagePurpose::ServerAuth, year)
    }

    /// For a client of these names: URIs have a colon, all else is DNS.
    pub fn client(&self, names: &[&str]) -> Credentials {
        self.client_until(names, 2040)
    }

    /// As [`Self::client`], until the first day of a year.
    pub fn client_until(&self, names: &[&str], year: i32) -> Credentials {
        let mut params = CertificateParams::default();
        let name = &mut params.distinguished_name;
        name.push(DnType::CommonName, "common.pay.svc");
        let names = names.iter().map(|name| {
            let text = (*name).try_into().expect("ASCII");
            let is_uri = name.contains(':');
            if is_uri {
                SanType::URI(text)
            } else {
                SanType::DnsName(text)
            }
        });
        params.subject_alt_names = names.collect();
        self.sign(params, ExtendedKeyUsagePurpose::ClientAuth, year)
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        usage: ExtendedKeyUsagePurpose,
        until: i32,
    ) -> Credentials {
        let serial = SERIALS.fetch_add(1, Ordering::Relaxed);
        params.serial_number = Some(SerialNumber::from(serial));
        params.extended_key_usages = vec![usage];
        params.not_after = date_time_ymd(until, 1, 1);
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.issuer).expect("a certificate");
        Credentials {
            cert: cert.pem(),
            key: key.serialize_pem(),
            serial,
        }
    }

    /// Its list of revoked certificates: these, to be renewed on the first day of a year.
    pub fn revoking(&self, revoked: &[&Credentials], year: i32) -> String {
        let one = |credentials: &&Credentials| RevokedCertParams {
            serial_number: SerialNumber::from(credentials.serial),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(year, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.iter().map(one).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let signed = list.signed_by(&self.issuer).expect("a list");
        signed.pem().expect("PEM")
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.pem) {
            roots.add(certificate).expect("a CA's certificate");
        }
        roots
    }
}

fn certificates(pem: &str) -> Vec<CertificateDer<'static>> {
    let list =
        CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<std::result::Result<_, _>>();
    list.expect("PEM")
}

fn key(pem: &str) -> PrivateKeyDer<'static> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).expect("PEM")
}

fn alpn(protocols: &[&str]) -> Vec<Vec<u8>> {
    let protocols = protocols.iter();
    protocols.map(|name| name.as_bytes().to_vec()).collect()
}

/// Files that the program reads.
pub struct Files(TempDir);

impl Files {
    pub fn new() -> Self {
        Self(TempDir::new().expect("a temporary directory"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Puts a file there in one step, or in the place of the one that was there.
    pub fn put(&self, name: &str, text: &str) -> PathBuf {
        put(self.0.path(), name, text)
    }

    /// Puts a pair there: `NAME.crt` and `NAME.key`.
    pub fn put_pair(&self, name: &str, pair: &Credentials) {
        self.put(&format!("{name}.crt"), &pair.cert);
        self.put(&format!("{name}.key"), &pair.key);
    }

    /// The fields of the configuration that name the pair `NAME.crt` and `NAME.key`.
    pub fn pair(&self, name: &str) -> String {
        let path = |end: &str| self.path(&format!("{name}.{end}"));
        let (cert, key) = (path("crt"), path("key"));
        format!("cert_file: {}, key_file: {}", cert.display(), key.display())
    }

    /// Puts a version of a mounted secret there.
    pub fn mount(&self, version: &str, pair: &Credentials, ca: &str) {
        let (cert, key) = (("tls.crt", &*pair.cert), ("tls.key", &*pair.key));
        mount(self.0.path(), version, &[cert, key, ("ca.crt", ca)]);
    }
}

/// A client's side.
#[derive(Clone)]
pub struct TlsClient {
    config: ClientConfig,
}

impl TlsClient {
    /// One that trusts a CA, speaks both versions, and offers no ALPN.
    pub fn trusting(ca: &Ca) -> Self {
        Self::of_versions(ca, rustls::DEFAULT_VERSIONS, None)
    }

    /// As [`Self::trusting`], with a certificate of its own.
    pub fn showing(ca: &Ca, own: &Credentials) -> Self {
        Self::of_versions(ca, rustls::DEFAULT_VERSIONS, Some(own))
    }

    pub fn of_versions(
        ca: &Ca,
        versions: &[&'static SupportedProtocolVersion],
        own: Option<&Credentials>,
    ) -> Self {
        let builder = ClientConfig::builder_with_protocol_versions(versions);
        let builder = builder.with_root_certificates(ca.roots());
        let config = match own {
            None => builder.with_no_client_auth(),
            Some(own) => builder
                .with_client_auth_cert(certificates(&own.cert), key(&own.key))
                .expect("a pair"),
        };
        Self { config }
    }

    pub fn offering(mut self, protocols: &[&str]) -> Self {
        self.config.alpn_protocols = alpn(protocols);
        self
    }

    /// For reqwest.
    pub fn config(&self) -> ClientConfig {
        self.config.clone()
    }

    /// Shakes hands over a socket with a server that is `localhost`.
    pub async fn over<S: AsyncRead + AsyncWrite + Unpin>(&self, socket: S) -> Result<TlsStream<S>> {
        let name = ServerName::try_from("localhost").expect("a name");
        let connector = TlsConnector::from(Arc::new(self.config()));
        connector.connect(name, socket).await
    }

    pub async fn connect(&self, to: SocketAddr) -> Result<TlsStream<TcpStream>> {
        let socket = TcpStream::connect(to).await?;
        socket.set_nodelay(true)?;
        self.over(socket).await
    }

    /// A connection on which HTTP/1.1 is written by hand.
    pub async fn wire(&self, to: SocketAddr) -> Result<Wire> {
        self.connect(to).await.map(Wire::new)
    }
}

/// A server's side. `clients`: the CA whose certificates its clients have to show.
pub fn server(pair: &Credentials, clients: Option<&Ca>, protocols: &[&str]) -> ServerConfig {
    let builder = ServerConfig::builder();
    let builder = if let Some(ca) = clients {
        let verifier = WebPkiClientVerifier::builder(Arc::new(ca.roots())).build();
        builder.with_client_cert_verifier(verifier.expect("a CA"))
    } else {
        builder.with_no_client_auth()
    };
    let config = builder.with_single_cert(certificates(&pair.cert), key(&pair.key));
    let mut config = config.expect("a pair");
    config.alpn_protocols = alpn(protocols);
    config
}
