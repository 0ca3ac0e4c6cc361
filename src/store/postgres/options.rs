//! Turns a URL and the files of TLS into the driver's options, one set per host of the URL. The
//! order in which the hosts are tried stands in [`super::connect`].
//!
//! The driver takes options that are not set from the environment (`PGPASSWORD`, `PGSSLMODE`,
//! `~/.pgpass`). Here every option is set, so that only the configuration counts. The few variables
//! that no option overrides are refused.
//!
//! Each connect hands the driver the CAs that certificates are verified by: those that are named,
//! or else the system's. The driver adds none of its own: see `vendor/webpki-roots`.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use sqlx::postgres::{PgConnectOptions, PgSslMode};

use crate::config::dsn::{Dsn, Host};
use crate::config::{PostgresAddress, Secret, StoreTls, pem};
use crate::store::StoreError;

/// With roots of its own, the driver would accept certificates of CAs that no setting names.
const _: () = assert!(webpki_roots::TLS_SERVER_ROOTS.is_empty());

/// The directory of the server's socket in distributions. Not `/tmp`, where anybody may put one.
const SOCKETS: &str = "/var/run/postgresql";

/// The options for each host. The files are read each time, since a mounted secret may have
/// changed. Blocks on the file system. No error holds a piece of the URL.
pub(super) fn read(address: &PostgresAddress) -> Result<Vec<PgConnectOptions>, StoreError> {
    let dsn = dsn(address)?;
    let mut base = base(&dsn, &address.tls)?;
    if dsn.hosts.iter().any(Host::is_verified) {
        base = with_roots(base, &dsn, &address.tls)?;
    }
    Ok(dsn.hosts.iter().map(|host| at(&base, host)).collect())
}

/// True if a machine on the way to a server can read and change the traffic.
pub(super) fn is_open_to_others(address: &PostgresAddress) -> bool {
    dsn(address).is_ok_and(|dsn| dsn.is_open_to_others())
}

fn dsn(address: &PostgresAddress) -> Result<Dsn, StoreError> {
    let url = match &address.url {
        Secret::Literal(url) => url.0.clone(),
        Secret::File(path) => text("store.url_file", path)?,
    };
    let dsn = Dsn::parse(url.trim(), address.tls.ca_file.is_some());
    dsn.map_err(|why| unfit("store.url", &why))
}

fn unfit(what: &str, why: &str) -> StoreError {
    StoreError::Unfit(format!("{what}: {}", why.replace('\n', "; ")))
}

/// All but the host.
fn base(dsn: &Dsn, tls: &StoreTls) -> Result<PgConnectOptions, StoreError> {
    let mut options = PgConnectOptions::new_without_pgpass();
    let mut taken = vec!["PGOPTIONS"];
    match tls.identity() {
        Some((cert, key)) => {
            for (what, path) in [("store.tls.cert_file", cert), ("store.tls.key_file", key)] {
                text(what, path)?;
            }
            options = options.ssl_client_cert(cert).ssl_client_key(key);
        }
        None => taken.extend(["PGSSLCERT", "PGSSLKEY"]),
    }
    if dsn.user.is_none() {
        taken.push("PGUSER");
    }
    if let Some(name) = taken
        .into_iter()
        .find(|name| std::env::var_os(name).is_some())
    {
        return Err(StoreError::Unfit(format!(
            "the environment has {name}, which would change how the store is reached: unset it, and put the \
             setting into store.url. fencepost reads no PG variables"
        )));
    }
    // Without a user the driver sends `anonymous`: it does not look up who runs the process. Like
    // libpq: a database of the user's name.
    let user = dsn
        .user
        .clone()
        .unwrap_or_else(|| options.get_username().to_owned());
    options = options
        .database(dsn.database.as_deref().unwrap_or(&user))
        .username(&user)
        .password(dsn.password.as_ref().map_or("", |password| &*password.0));
    Ok(options)
}

fn at(base: &PgConnectOptions, host: &Host) -> PgConnectOptions {
    let options = base.clone().port(host.port).ssl_mode(host.mode);
    let file = Path::new(SOCKETS).join(format!(".s.PGSQL.{}", host.port));
    let socket = match &*host.name {
        "" if file.exists() => SOCKETS,
        "" => return options.host("localhost"),
        name if host.is_socket() => name,
        name => return options.host(name),
    };
    let options = options.host("localhost").socket(socket);
    options.ssl_mode(PgSslMode::Disable)
}

/// Adds the CAs that a certificate is verified by.
fn with_roots(
    options: PgConnectOptions,
    dsn: &Dsn,
    tls: &StoreTls,
) -> Result<PgConnectOptions, StoreError> {
    let (what, path) = match (dsn.root.as_deref(), &tls.ca_file) {
        (Some(path), _) if path != "system" => ("sslrootcert", Path::new(path)),
        (_, Some(path)) => ("store.tls.ca_file", path.as_path()),
        _ => return Ok(options.ssl_root_cert_from_pem(system_roots()?)),
    };
    // The errors of the driver name no file.
    let found = pem::<CertificateDer<'_>>(path, "certificate");
    found.map_err(|why| unfit(what, &why))?;
    Ok(options.ssl_root_cert(path))
}

/// The system's CAs that the driver can use.
fn system_roots() -> Result<Vec<u8>, StoreError> {
    let mut pem = String::new();
    for certificate in rustls_native_certs::load_native_certs().certs {
        if RootCertStore::empty().add(certificate.clone()).is_ok() {
            pem.push_str("-----BEGIN CERTIFICATE-----\n");
            pem.push_str(&STANDARD.encode(&certificate));
            pem.push_str("\n-----END CERTIFICATE-----\n");
        }
    }
    if pem.is_empty() {
        return Err(StoreError::Unfit(
            "the system has no CAs to verify the server by: name the server's (sslrootcert=FILE in store.url, or \
             store.tls.ca_file)"
                .into(),
        ));
    }
    Ok(pem.into_bytes())
}

fn text(what: &str, path: &Path) -> Result<String, StoreError> {
    std::fs::read_to_string(path).map_err(|error| {
        StoreError::Unfit(format!("{what} {} cannot be read: {error}", path.display()))
    })
}
