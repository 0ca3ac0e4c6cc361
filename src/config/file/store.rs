//! The block `store`: where the marks live, what shares them, and its times.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::units::{Hidden, Time};
use super::values::{count, positive, taken};
use crate::config::addresses;
use crate::config::dsn::Dsn;
use crate::config::settings::{Create, Secret, StoreSettings, StoreTarget, StoreTls};
use crate::config::yaml::{Report, shown};

/// The default of `url`.
const URL: &str = "sqlite:fencepost.db";
/// The default of `namespace`, in a store that one proxy has to itself.
const NAMESPACE: &str = "default";
/// A namespace is part of the name of a notification channel, and of every row.
const NAMESPACE_MAX: usize = 63;
/// Below this, an instance would lose its lease to an ordinary pause.
const LEASE_MIN: Duration = Duration::from_secs(1);
/// Above this, an instance that dies holds up its resources for long.
const LEASE_LONG: Duration = Duration::from_mins(1);

/// The database for the marks.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Store")]
pub struct StoreFile {
    /// `sqlite:fencepost.db` (one proxy; a path, relative ones to the working directory) or
    /// `postgres://user@host/database` (any number of proxies). Across a network the server is
    /// verified (`sslmode=verify-full`), unless the URL says otherwise.
    #[schemars(extend("default" = URL))]
    pub url: Option<Hidden>,
    /// Instead of `url`: a file with the `postgres://` URL, such as a mounted secret; read at every
    /// connect.
    pub url_file: Option<PathBuf>,
    /// TLS to Postgres, unless the URL configures it.
    pub tls: StoreTlsFile,
    /// Proxies with the same namespace share marks; use one namespace per upstream. Letters,
    /// digits, `.`, `_` and `-`, at most 63. Required with Postgres.
    #[schemars(extend("default" = NAMESPACE))]
    pub namespace: Option<String>,
    /// The time for which an instance may forward without a renewal committed by the store. It
    /// renews every second, so with the default a Postgres that stalls for up to about 3 s causes
    /// no refusal. Postgres: when an instance dies, its resources wait for this, then for
    /// `upstream.undelivered` and `barrier.settle`, and a fifth longer, because clocks may run at
    /// different rates. `SQLite`: if fsyncs repeatedly take a sixth of this, fenced requests are
    /// refused. At least 1s.
    pub lease: Time,
    /// Time for one statement. A request that the store cannot decide in time gets a 503.
    pub timeout: Time,
    /// The number of cached marks of resources that have nothing in flight.
    pub cached_marks: u64,
    /// `serve` updates the schema of the database, under a lock. `false`: it does not start
    /// if the schema is behind, and you run `fencepost migrate`.
    pub migrate: bool,
    /// `SQLite`, if a start finds no store. `if-missing`: create one without marks, with a warning
    /// in the log; every resource's first token is accepted then, however old it is. `never`:
    /// refuse to start, as it should be once there are marks; `fencepost migrate` still creates
    /// one.
    #[schemars(extend("default" = Create::default()))]
    pub create: Option<Create>,
    /// `SQLite`: allow a file system in memory (tmpfs, ramfs), with a warning in the log. It loses
    /// every mark when the machine or the mount goes, and stale tokens pass then. For trials.
    pub volatile: bool,
}

impl Default for StoreFile {
    fn default() -> Self {
        Self {
            url: None,
            url_file: None,
            tls: StoreTlsFile::default(),
            namespace: None,
            lease: Time::seconds(5),
            timeout: Time::seconds(5),
            cached_marks: 1_000_000,
            migrate: true,
            create: None,
            volatile: false,
        }
    }
}

/// TLS to Postgres. The files are read at every connect.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "StoreTls")]
#[expect(
    clippy::struct_field_names,
    reason = "the fields are those of the file"
)]
pub struct StoreTlsFile {
    /// The CAs for the server's certificate, instead of the system's: PEM. Like `sslrootcert` in
    /// the URL.
    pub ca_file: Option<PathBuf>,
    /// The client certificate, followed by its chain: PEM. With `key_file`. Like `sslcert` in the
    /// URL.
    pub cert_file: Option<PathBuf>,
    /// Its private key: PEM, unencrypted. Like `sslkey` in the URL.
    pub key_file: Option<PathBuf>,
}

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
        (None, None) => taken("store.url", addresses::store(URL), report),
    };
    let shared = matches!(target, Some(StoreTarget::Postgres(_)));
    let tls = tls(file.tls, shared, report);
    if let Some(StoreTarget::Postgres(Secret::Literal(url))) = &target {
        protection(url, &tls, report);
    }
    let namespace = match file.namespace {
        Some(name) => {
            namespace(&name, report);
            name
        }
        None if shared => {
            report.with("store.url").error(
                "store.namespace",
                "Postgres may be shared, so a namespace is required",
                "such as the name of the upstream, orders; in the file or by --namespace",
            );
            return None;
        }
        None => NAMESPACE.to_owned(),
    };
    let lease = positive("store.lease", file.lease, report);
    if lease < LEASE_MIN {
        report.error(
            "store.lease",
            "shorter than 1s: an ordinary pause would cost an instance its lease",
            "5s is a good start",
        );
    }
    if lease > LEASE_LONG {
        report.warn(
            "store.lease",
            "when an instance dies, what it had in flight waits for this, `upstream.undelivered` \
             and `barrier.settle`",
            "5s is a good start",
        );
    }
    let timeout = positive("store.timeout", file.timeout, report);
    if shared && timeout > lease {
        report.with("store.url").warn(
            "store.timeout",
            "longer than `store.lease`: a renewal that is slow and still within its time costs the \
             lease",
            "the same as store.lease, or shorter",
        );
    }
    if shared {
        only_for_a_file(file.create, file.volatile, report);
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
        cached_marks: count("store.cached_marks", file.cached_marks, report),
        migrate: file.migrate,
        create: file.create.unwrap_or_default(),
        volatile: file.volatile,
    })
}

/// Warns of fields that have no effect with Postgres.
fn only_for_a_file(create: Option<Create>, volatile: bool, report: &mut Report) {
    for (path, is_given, hint) in [
        (
            "store.create",
            create.is_some(),
            "leave it out: a namespace begins with its first proxy, and the log of a start says \
             whether it is new",
        ),
        ("store.volatile", volatile, "leave it out"),
    ] {
        if is_given {
            let about = report.with("store.url");
            about.warn(path, "it has no effect with Postgres", hint);
        }
    }
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
        report.with("store.url").error(
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

/// Checks how the connection to the server is protected, if the URL is in the configuration.
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
        report.with("store.url").error(
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
