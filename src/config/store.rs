//! The checks of the store's block: where the marks live, what shares them, and its times.

use std::time::Duration;

use super::addresses;
use super::checks::{count, seconds, taken, time};
use super::dsn::Dsn;
use super::file::{StoreFile, StoreTlsFile};
use super::problems::{Report, shown};
use super::settings::{Secret, StoreSettings, StoreTarget, StoreTls};

/// Where the marks live if nobody says.
const STORE: &str = "sqlite:fencepost.db";
/// What shares marks in a store that is one proxy's own.
const NAMESPACE: &str = "default";
/// A namespace names a notification channel and stands in every row.
const NAMESPACE_MAX: usize = 63;
/// Below this, an instance would lose its lease to an ordinary pause.
const LEASE_MIN: Duration = Duration::from_secs(1);

/// The block `store`. `None` if it is wrong.
pub(super) fn settings(file: StoreFile, report: &mut Report) -> Option<StoreSettings> {
    let target = match (&file.url, file.url_file) {
        (Some(_), Some(_)) => {
            report.error(
                "store.url_file",
                "both `url` and `url_file` are given",
                "keep one of them; `url_file` keeps a password out of this file",
            );
            None
        }
        (None, Some(path)) if path.as_os_str().is_empty() => {
            report.error("store.url_file", "the path is empty", "");
            None
        }
        (None, Some(path)) => Some(StoreTarget::Postgres(Secret::File(path))),
        (Some(url), None) => taken("store.url", addresses::store(&url.0), report),
        (None, None) => taken("store.url", addresses::store(STORE), report),
    };
    let shared = matches!(target, Some(StoreTarget::Postgres(_)));
    let tls = tls(file.tls.unwrap_or_default(), shared, report);
    if let Some(StoreTarget::Postgres(Secret::Literal(url))) = &target {
        protection(url, &tls, report);
    }
    let namespace = match file.namespace {
        Some(name) => {
            namespace(&name, report);
            name
        }
        None if shared => {
            report.error(
                "store.namespace",
                "Postgres may be shared, so a namespace is required",
                "such as the name of the upstream, orders; in the file or by --namespace",
            );
            return None;
        }
        None => NAMESPACE.to_owned(),
    };
    let lease = time("store.lease", file.lease, seconds(5), report);
    if lease < LEASE_MIN {
        report.error(
            "store.lease",
            "shorter than 1s: an ordinary pause would cost an instance its lease",
            "5s is a good start",
        );
    }
    if lease > seconds(60) {
        report.warn(
            "store.lease",
            "when an instance dies, what it had in flight waits for this, `upstream.undelivered` and \
             `barrier.settle`",
            "5s is a good start",
        );
    }
    let timeout = time("store.timeout", file.timeout, seconds(5), report);
    if shared && timeout > lease {
        report.warn(
            "store.timeout",
            "longer than `store.lease`: a renewal that is slow and still within its time costs the lease",
            "the same as store.lease, or shorter",
        );
    }
    if shared && file.create.is_some() {
        report.warn(
            "store.create",
            "with Postgres it decides nothing: a namespace begins with its first proxy, and the log of a start \
             says whether it is new",
            "leave it out",
        );
    }
    if timeout < Duration::from_millis(50) {
        report.warn(
            "store.timeout",
            "too short: an ordinary commit may take longer",
            "",
        );
    }
    Some(StoreSettings {
        target: target?,
        tls,
        namespace,
        lease,
        timeout,
        cached_marks: count("store.cached_marks", file.cached_marks, 1_000_000, report),
        migrate: file.migrate.unwrap_or(true),
        create: file.create.unwrap_or_default(),
    })
}

fn tls(file: StoreTlsFile, shared: bool, report: &mut Report) -> StoreTls {
    let identity = match (file.cert_file, file.key_file) {
        (None, None) => None,
        (Some(cert), Some(key)) => Some((cert, key)),
        _ => {
            report.error(
                "store.tls",
                "only one of `cert_file` and `key_file` is given",
                "give both, or neither",
            );
            None
        }
    };
    if !shared && (file.ca_file.is_some() || identity.is_some()) {
        report.error(
            "store.tls",
            "SQLite is a file: TLS does not apply",
            "leave it out",
        );
    }
    StoreTls {
        ca_file: file.ca_file,
        identity,
    }
}

/// How the way to a server is protected, as far as the URL is known before the start.
fn protection(url: &str, tls: &StoreTls, report: &mut Report) {
    let Ok(dsn) = Dsn::parse(url) else {
        return;
    };
    let ca_named = tls.ca_file.is_some();
    if let Err((message, hint)) = dsn.protections(ca_named) {
        report.error("store.url", message, hint);
    }
    if dsn.is_open_to_others(ca_named) {
        report.warn(
            "store.url",
            "the server is not verified: an attacker on the network can read and change marks",
            "leave sslmode out, and name the server's CA (sslrootcert=FILE or store.tls.ca_file)",
        );
    }
    if tls.identity.is_some() && dsn.identity.is_some() {
        report.error(
            "store.tls",
            "sslcert is given in the URL, and `cert_file` too",
            "keep one of them",
        );
    }
}

fn namespace(name: &str, report: &mut Report) {
    let plain = name
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    if name.is_empty() || name.len() > NAMESPACE_MAX || !plain {
        report.error(
            "store.namespace",
            format!("{} cannot be a namespace", shown(name)),
            "letters, digits, `.`, `_` and `-`, 1 to 63 of them",
        );
    }
}
