//! The checks of the block `admin`: where the admin port is, and which tokens it takes.

use std::path::Path;

use super::addresses;
use super::checks::listen;
use super::file::AdminFile;
use super::problems::Report;
use super::settings::{AdminSettings, Listen, MIN_ADMIN_TOKEN};
use super::tls;

/// Where the admin port is if nobody says.
const ADMIN_LISTEN: &str = "127.0.0.1:7081";

/// The block `admin`. `None` if it is wrong.
pub(super) fn settings(file: AdminFile, report: &mut Report) -> Option<AdminSettings> {
    let listen = match file.listen.as_deref() {
        Some("off") => Some(None),
        given => listen("admin.listen", given, ADMIN_LISTEN, report).map(Some),
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
        report.error(
            "admin.tls",
            "the admin port is a Unix socket: no network needs protection",
            "remove this block, or listen on host:port",
        );
    }
    let has_token = file.token_file.is_some() || file.read_token_file.is_some();
    if has_token && file.tls.is_none() && listen.as_ref().is_some_and(is_remote) {
        report.warn(
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
        ready_follows_store: file.ready_follows_store.unwrap_or(false),
    })
}

/// Warns of a token that will let nobody in. A file that is not there yet may come: it is read at
/// each use.
fn admin_token(at: &str, path: &Path, report: &mut Report) {
    if path.as_os_str().is_empty() {
        report.error(at, "the path is empty", "");
    } else if std::fs::read(path).is_ok_and(|token| token.trim_ascii().len() < MIN_ADMIN_TOKEN) {
        report.warn(
            at,
            format!("the token has less than {MIN_ADMIN_TOKEN} characters: it lets nobody in"),
            "openssl rand -hex 32 makes a good one; it is read without a restart",
        );
    }
}
