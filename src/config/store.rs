//! The block `store`: where the marks live, what shares them, and its times.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::addresses::{Secret, StoreTarget};
use super::dsn::Dsn;
use super::units::{Count, Hidden, Positive};
use super::yaml::{Report, blocks, shown};

blocks! {
    /// The database for the marks.
    pub struct StoreSettings {
        /// `sqlite:fencepost.db` (one proxy; a path, relative ones to the working directory) or
        /// `postgres://user@host/database` (any number of proxies). Across a network the server is
        /// verified (`sslmode=verify-full`), unless the URL says otherwise.
        #[serde(rename = "url")]
        #[schemars(extend("default" = "sqlite:fencepost.db"))]
        pub target: StoreTarget = StoreTarget::Sqlite { path: "fencepost.db".into() },
        /// Instead of `url`: a file with the `postgres://` URL, such as a mounted secret; read at
        /// every connect.
        url_file: Option<PathBuf>,
        /// TLS to Postgres, unless the URL configures it.
        pub tls: StoreTls,
        /// Proxies with the same namespace share marks; use one namespace per upstream. Letters,
        /// digits, `.`, `_` and `-`, at most 63. Required with Postgres.
        pub namespace: String = "default".to_owned(),
        /// The time for which an instance may forward without a renewal committed by the store. It
        /// renews every second, so with the default a Postgres that stalls for up to about 3 s
        /// causes no refusal. Postgres: when an instance dies, its resources wait for this, then
        /// for `upstream.undelivered` and `barrier.settle`, and a fifth longer, because clocks may
        /// run at different rates. `SQLite`: if fsyncs repeatedly take a sixth of this, fenced
        /// requests are refused. At least 1s.
        pub lease: Positive = Positive::seconds(5),
        /// Time for one statement. A request that the store cannot decide in time gets a 503.
        pub timeout: Positive = Positive::seconds(5),
        /// The number of cached marks of resources that have nothing in flight.
        pub cached_marks: Count = Count(1_000_000),
        /// `serve` updates the schema of the database, under a lock. `false`: it does not start
        /// if the schema is behind, and you run `fencepost migrate`.
        pub migrate: bool = true,
        /// `SQLite`, if a start finds no store. `if-missing`: create one without marks, with a
        /// warning in the log; every resource's first token is accepted then, however old it is.
        /// `never`: refuse to start, as it should be once there are marks; `fencepost migrate`
        /// still creates one.
        pub create: Create = Create::IfMissing,
        /// `SQLite`: allow a file system in memory (tmpfs, ramfs), with a warning in the log. It
        /// loses every mark when the machine or the mount goes, and stale tokens pass then. For
        /// trials.
        pub volatile: bool = false,
    }

    /// TLS to Postgres. The files are read at every connect.
    #[derive(PartialEq, Eq)]
    pub struct StoreTls {
        /// The CAs for the server's certificate, instead of the system's: PEM. Like `sslrootcert`
        /// in the URL.
        pub ca_file: Option<PathBuf>,
        /// The client certificate, followed by its chain: PEM. With `key_file`.
        pub cert_file: Option<PathBuf>,
        /// Its private key: PEM, unencrypted.
        pub key_file: Option<PathBuf>,
    }
}

/// The action of a start that finds no embedded store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Create {
    /// It creates one without marks, with a warning in the log.
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

impl StoreSettings {
    /// The address behind `url`, with the files for TLS.
    pub fn address(&self, url: &Secret, application_name: Option<String>) -> PostgresAddress {
        PostgresAddress {
            url: url.clone(),
            tls: self.tls.clone(),
            application_name,
        }
    }

    pub(super) fn check(&mut self, report: &mut Report) {
        if let Some(path) = self.url_file.take() {
            let at = "store.url_file";
            if report.is_given("store.url") {
                let text = "both `url` and `url_file` are given\n\
                            keep one of them; `url_file` keeps a password out of this file";
                report.error(at, text);
            } else if path.as_os_str().is_empty() {
                report.error(at, "the path is empty");
            } else {
                report.warn_of_missing(at, Some(&path));
                self.target = StoreTarget::Postgres(Secret::File(path));
            }
        }
        let shared = matches!(self.target, StoreTarget::Postgres(_));
        self.tls.check(shared, report);
        if let StoreTarget::Postgres(Secret::Literal(Hidden(url))) = &self.target {
            let text = "the server is not verified: an attacker on the network can read and change \
                        marks\nleave sslmode out, and name the server's CA in store.tls.ca_file";
            match Dsn::parse(url, self.tls.ca_file.is_some()) {
                Ok(dsn) => report.warn_if(dsn.is_open_to_others(), "store.url", text),
                Err(text) => report.error("store.url", text),
            }
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
        report.error_beside(shared && !is_named, ["store.namespace", "store.url"], text);
        let text = "shorter than 1s: an ordinary pause would cost an instance its lease\n\
                    5s is a good start";
        report.error_if(self.lease.0 < Duration::from_secs(1), "store.lease", text);
        let is_slow = shared && self.timeout.0 > self.lease.0;
        let text = "longer than `store.lease`: a slow renewal costs the lease\n\
                    the same as store.lease, or shorter";
        report.warn_beside(is_slow, ["store.timeout", "store.url"], text);
    }
}

impl StoreTls {
    /// The client certificate and its key.
    pub fn identity(&self) -> Option<(&PathBuf, &PathBuf)> {
        self.cert_file.as_ref().zip(self.key_file.as_ref())
    }

    fn check(&self, shared: bool, report: &mut Report) {
        report.warn_of_missing("store.tls.ca_file", self.ca_file.as_ref());
        report.warn_of_missing("store.tls.cert_file", self.cert_file.as_ref());
        report.warn_of_missing("store.tls.key_file", self.key_file.as_ref());
        let is_half = self.cert_file.is_some() != self.key_file.is_some();
        let text = "only one of `cert_file` and `key_file` is given\ngive both, or neither";
        report.error_if(is_half, "store.tls", text);
        let text = "SQLite is a file: TLS does not apply\nleave it out";
        let is_vain = !shared && *self != Self::default();
        report.error_beside(is_vain, ["store.tls", "store.url"], text);
    }
}
