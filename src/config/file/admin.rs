//! The block `admin`: where the admin port is, and which tokens it accepts.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;

use super::tls::{self, AdminTlsFile};
use super::values::taken;
use crate::config::BearerTokens;
use crate::config::addresses;
use crate::config::settings::{ADMIN_LISTEN, AdminSettings, Listen};
use crate::config::yaml::Report;

/// Probes, metrics, and the API for marks.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Admin")]
pub struct AdminFile {
    /// `host:port`, `unix:/path/of.sock`, or `off`. Probes and metrics are open to everybody who
    /// reaches it. Keys and marks can be read without a token only on the loopback and over a Unix
    /// socket.
    pub listen: String,
    /// A file with the bearer token for writes, of at least 16 characters. Without it, writes are
    /// disabled.
    pub token_file: Option<PathBuf>,
    /// A file with the bearer token for reads, of at least 16 characters. Without it, keys and
    /// marks can be read from outside the loopback only with the token for writes.
    pub read_token_file: Option<PathBuf>,
    /// TLS for the admin port.
    pub tls: Option<AdminTlsFile>,
    /// `true`: an outage of the store makes `/readyz` fail.
    pub ready_follows_store: bool,
}

impl Default for AdminFile {
    fn default() -> Self {
        Self {
            listen: ADMIN_LISTEN.to_owned(),
            token_file: None,
            read_token_file: None,
            tls: None,
            ready_follows_store: false,
        }
    }
}

/// The block `admin`. `None` if it is wrong.
pub(super) fn settings(file: AdminFile, report: &mut Report) -> Option<AdminSettings> {
    let listen = match file.listen.as_str() {
        "off" => Some(None),
        given => taken("admin.listen", addresses::listen(given), report).map(Some),
    };
    for (at, path) in [
        ("admin.token_file", &file.token_file),
        ("admin.read_token_file", &file.read_token_file),
    ] {
        if let Some(path) = path {
            admin_token(at, path, report);
        }
    }
    let tls = match &file.tls {
        Some(block) => tls::admin(block, report).map(Some),
        None => Some(None),
    };
    let is_remote = |listen: &Option<Listen>| {
        let listen = listen.as_ref();
        listen.is_some_and(|listen| !addresses::is_local(listen))
    };
    if file.tls.is_some() && matches!(listen, Some(Some(Listen::Unix(_)))) {
        report.with("admin.listen").error(
            "admin.tls",
            "the admin port is a Unix socket: no network needs protection",
            "remove this block, or listen on host:port",
        );
    }
    let has_token = file.token_file.is_some() || file.read_token_file.is_some();
    if has_token && file.tls.is_none() && listen.as_ref().is_some_and(is_remote) {
        report.with("admin.token_file").warn(
            "admin.listen",
            "tokens sent to this address over a network can be read on their way",
            "give admin.tls, send tokens over the loopback only, or listen on 127.0.0.1",
        );
    }
    Some(AdminSettings {
        listen: listen?,
        token_file: file.token_file,
        read_token_file: file.read_token_file,
        tls: tls?,
        ready_follows_store: file.ready_follows_store,
    })
}

/// Warns of a file whose tokens are not accepted. A missing file is fine: it is read at each
/// use and may come later.
fn admin_token(at: &str, path: &Path, report: &mut Report) {
    if path.as_os_str().is_empty() {
        report.error(at, "the path is empty", "");
    } else if let Ok(content) = std::fs::read(path)
        && let Err(why) = BearerTokens::parse(&content)
    {
        report.warn(
            at,
            format!("the file {why}, so no token is accepted"),
            "openssl rand -hex 32 makes a good one; it is read without a restart",
        );
    }
}
