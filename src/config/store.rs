//! The block `store`: where the marks live, what shares them, and its times.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::addresses::{self, Secret, StoreTarget};
use super::dsn::Dsn;
use super::units::{Count, Hidden, Positive};
use super::yaml::{Report, shown};

/// The default of `url`.
const URL: &str = "sqlite:fencepost.db";

/// The database for the marks.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
pub struct StoreSettings {
    /// `sqlite:fencepost.db` (one proxy; a path, relative ones to the working directory) or
    /// `postgres://user@host/database` (any number of proxies). Across a network the server is
    /// verified (`sslmode=verify-full`), unless the URL says otherwise.
    #[schemars(extend("default" = URL))]
    url: Option<Hidden>,
    /// Instead of `url`: a file with the `postgres://` URL, such as a mounted secret; read at every
    /// connect.
    url_file: Option<PathBuf>,
    /// The place that these two name.
    #[serde(skip)]
    pub target: StoreTarget,
    /// TLS to Postgres, unless the URL configures it.
    pub tls: StoreTls,
    /// Proxies with the same namespace share marks; use one namespace per upstream. Letters,
    /// digits, `.`, `_` and `-`, at most 63. Required with Postgres.
    pub namespace: String,
    /// The time for which an instance may forward without a renewal committed by the store. It
    /// renews every second, so with the default a Postgres that stalls for up to about 3 s causes
    /// no refusal. Postgres: when an instance dies, its resources wait for this, then for
    /// `upstream.undelivered` and `barrier.settle`, and a fifth longer, because clocks may run at
    /// different rates. `SQLite`: if fsyncs repeatedly take a sixth of this, fenced requests are
    /// refused. At least 1s.
    pub lease: Positive,
    /// Time for one statement. A request that the store cannot decide in time gets a 503.
    pub timeout: Positive,
    /// The number of cached marks of resources that have nothing in flight.
    pub cached_marks: Count,
    /// `serve` updates the schema of the database, under a lock. `false`: it does not start
    /// if the schema is behind, and you run `fencepost migrate`.
    pub migrate: bool,
    /// `SQLite`, if a start finds no store. `if-missing`: create one without marks, with a warning
    /// in the log; every resource's first token is accepted then, however old it is. `never`:
    /// refuse to start, as it should be once there are marks; `fencepost migrate` still creates
    /// one.
    pub create: Create,
    /// `SQLite`: allow a file system in memory (tmpfs, ramfs), with a warning in the log. It loses
    /// every mark when the machine or the mount goes, and stale tokens pass then. For trials.
    pub volatile: bool,
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self {
            url: None,
            url_file: None,
            target: StoreTarget::Sqlite {
                path: PathBuf::new(),
            },
            tls: StoreTls::default(),
            namespace: "default".to_owned(),
            lease: Positive::seconds(5),
            timeout: Positive::seconds(5),
            cached_marks: Count(1_000_000),
            migrate: true,
            create: Create::IfMissing,
            volatile: false,
        }
    }
}

/// TLS to Postgres. The files are read at every connect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
pub struct StoreTls {
    /// The CAs for the server's certificate, instead of the system's: PEM. Like `sslrootcert` in
    /// the URL.
    pub ca_file: Option<PathBuf>,
    /// The client certificate, followed by its chain: PEM. With `key_file`.
    pub cert_file: Option<PathBuf>,
    /// Its private key: PEM, unencrypted.
    pub key_file: Option<PathBuf>,
}

/// The action of a start that finds no embedded store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Create {
    /// It creates one without marks, with a warning in the log.
    #[default]
    IfMissing,
    /// The start is refused.
    Never,
}

/// The address of a Postgres, and the files that TLS to it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresAddress {
    pub url: Secret,
    pub tls: StoreTls,
    /// The name of this process in `pg_stat_activity`; `None`: `fencepost`.
    pub application_name: Option<String>,
}

/// With all that TLS needs in the URL.
impl From<Secret> for PostgresAddress {
    fn from(url: Secret) -> Self {
        Self {
            url,
            tls: StoreTls::default(),
            application_name: None,
        }
    }
}

impl StoreSettings {
    pub(super) fn check(&mut self, report: &mut Report) {
        self.locate(report);
        let shared = matches!(self.target, StoreTarget::Postgres(_));
        self.tls.check(shared, report);
        if let StoreTarget::Postgres(Secret::Literal(url)) = &self.target
            && let Ok(dsn) = Dsn::parse(url)
        {
            let ca_named = self.tls.ca_file.is_some();
            if let Err(text) = dsn.protections(ca_named) {
                report.error("store.url", text);
            }
            let text = "the server is not verified: an attacker on the network can read and change \
                        marks\nleave sslmode out, and name the server's CA in store.tls.ca_file";
            report.warn_if(dsn.is_open_to_others(ca_named), "store.url", text);
        }
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        // A namespace is part of the name of a notification channel, and of every row.
        let is_name =
            matches!(self.namespace.len(), 1..=63) && self.namespace.bytes().all(is_plain);
        let text = format!(
            "{} cannot be a namespace\nletters, digits, `.`, `_` and `-`, 1 to 63 of them",
            shown(&self.namespace),
        );
        report.error_if(!is_name, "store.namespace", text);
        let is_named = report.is_given("store.namespace");
        let text = "Postgres may be shared, so a namespace is required\n\
                    such as the name of the upstream, orders; in the file or by --namespace";
        report.with("store.url");
        report.error_if(shared && !is_named, "store.namespace", text);
        let text = "shorter than 1s: an ordinary pause would cost an instance its lease\n\
                    5s is a good start";
        report.error_if(self.lease.0 < Duration::from_secs(1), "store.lease", text);
        let is_slow = shared && self.timeout.0 > self.lease.0;
        let text = "longer than `store.lease`: a slow renewal costs the lease\n\
                    the same as store.lease, or shorter";
        report.with("store.url");
        report.warn_if(is_slow, "store.timeout", text);
    }

    /// Finds the place of the marks.
    fn locate(&mut self, report: &mut Report) {
        let found = match (self.url.take(), self.url_file.take()) {
            (Some(_), Some(_)) => {
                let text = "both `url` and `url_file` are given\n\
                            keep one of them; `url_file` keeps a password out of this file";
                return report.error("store.url_file", text);
            }
            (None, Some(path)) if path.as_os_str().is_empty() => {
                return report.error("store.url_file", "the path is empty");
            }
            (None, Some(path)) => Ok(StoreTarget::Postgres(Secret::File(path))),
            (url, None) => addresses::store(url.as_ref().map_or(URL, |url| &url.0)),
        };
        match found {
            Ok(target) => self.target = target,
            Err(text) => report.error("store.url", text),
        }
    }
}

impl StoreTls {
    /// The client certificate and its key.
    #[must_use]
    pub fn identity(&self) -> Option<(&PathBuf, &PathBuf)> {
        self.cert_file.as_ref().zip(self.key_file.as_ref())
    }

    fn check(&self, shared: bool, report: &mut Report) {
        let is_half = self.cert_file.is_some() != self.key_file.is_some();
        let text = "only one of `cert_file` and `key_file` is given\ngive both, or neither";
        report.error_if(is_half, "store.tls", text);
        let text = "SQLite is a file: TLS does not apply\nleave it out";
        report.with("store.url");
        report.error_if(!shared && *self != Self::default(), "store.tls", text);
    }
}
