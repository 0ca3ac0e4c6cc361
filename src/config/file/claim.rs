//! The block `claim`: the path of the claim endpoint, and the clients that may claim.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;

use super::require_client;
use super::units::OffOr;
use super::values::entries;
use crate::config::address_range::AddressRange;
use crate::config::bearer_tokens::BearerTokens;
use crate::config::settings::{ClaimSettings, Mode, RouteSettings};
use crate::config::yaml::{Report, shown};
use crate::routing::Pattern;

/// The claim endpoint. A claim must satisfy each limit that is set.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Claim")]
pub struct ClaimFile {
    /// Its path on the data port.
    pub path: String,
    /// The clients that may claim, by the names in their certificates, as in `require_client` of a
    /// route; others get a 403. Needs `tls.client_ca_file`. A route's own `require_client` applies
    /// to claims as well.
    #[schemars(with = "Option<Vec<String>>")]
    pub require_client: Option<Vec<Option<String>>>,
    /// The addresses that may claim, single or with a prefix length: `10.1.0.0/16`, `::1`; others
    /// get a 403. The connection's address counts: behind a load balancer, all clients have its
    /// address, unless `trusted_proxies` names it.
    #[schemars(with = "Option<Vec<String>>")]
    pub addresses: Option<Vec<Option<String>>>,
    /// A file with the bearer token for claims, at least 16 characters; without the token a claim
    /// gets a 401. Each line is a token, so that an old one can stay valid beside a new one for a
    /// while. Read again when it changes.
    pub token_file: Option<PathBuf>,
}

impl Default for ClaimFile {
    fn default() -> Self {
        Self {
            path: "/.well-known/fencing/claim".to_owned(),
            require_client: None,
            addresses: None,
            token_file: None,
        }
    }
}

/// The checks of the block. `None`: claims are off, or wrong. `has_addresses`: clients have
/// addresses. `asked`: they are asked for certificates.
pub(super) fn settings(
    block: OffOr<ClaimFile>,
    has_addresses: bool,
    asked: bool,
    report: &mut Report,
) -> Option<ClaimSettings> {
    let block = block.on()?;
    let require_client =
        require_client::settings("claim.require_client", block.require_client, asked, report);
    let addresses = block
        .addresses
        .map(|list| addresses(list, has_addresses, report));
    let tokens = block.token_file.map(|file| tokens(&file, report));
    let path = path(block.path, report)?;
    Some(ClaimSettings {
        path,
        require_client,
        addresses,
        // One that cannot be read is an error, with which nothing is served.
        tokens: tokens.flatten(),
    })
}

/// Warns of routes by which every client raises marks, where only some clients may claim.
pub(super) fn ways_around<'a>(
    claim: &ClaimSettings,
    mut routes: impl Iterator<Item = &'a RouteSettings>,
    report: &mut Report,
) {
    let limits = [
        ("claim.require_client", !claim.require_client.is_empty()),
        ("claim.addresses", claim.addresses.is_some()),
        ("claim.token_file", claim.tokens.is_some()),
    ];
    let Some((at, _)) = limits.into_iter().find(|(_, given)| *given) else {
        return;
    };
    let open = routes.find(|route| route.mode == Mode::Enforce && route.require_client.is_empty());
    if let Some(open) = open {
        let hint = if claim.require_client.is_empty() {
            "give the route a require_client, or restrict who can reach the port"
        } else {
            "give the route a require_client too"
        };
        report.warn(
            at,
            format!(
                "requests with a token raise marks as claims do, and the route {} accepts them \
                 from every client",
                open.path
            ),
            hint,
        );
    }
}

fn path(path: String, report: &mut Report) -> Option<String> {
    let wrong = match Pattern::parse(&path) {
        Err(error) => error,
        Ok(pattern) if pattern.names().next().is_some() || path.contains('%') => {
            format!("{} has captures or escapes", shown(&path))
        }
        Ok(_) if path == "/" => "claims need a path of their own".to_owned(),
        Ok(_) => return Some(path),
    };
    report.error(
        "claim.path",
        wrong,
        "a plain path, such as /.well-known/fencing/claim",
    );
    None
}

fn addresses(
    list: Vec<Option<String>>,
    has_addresses: bool,
    report: &mut Report,
) -> Vec<AddressRange> {
    let at = "claim.addresses";
    if list.is_empty() {
        report.error(at, "no address may claim", "name some, or say `claim: off`");
    }
    if !has_addresses {
        report.with("listen").error(
            at,
            "clients of a Unix socket have no address",
            "remove it: `listen_mode` says who may connect; or give claim.token_file",
        );
    }
    entries(at, list, AddressRange::parse, report)
}

fn tokens(file: &Path, report: &mut Report) -> Option<BearerTokens> {
    const HINT: &str =
        "a file with a secret of your choice, such as the output of `openssl rand -hex 32`";
    let at = "claim.token_file";
    if file.as_os_str().is_empty() {
        report.error(at, "the path is empty", HINT);
        return None;
    }
    report.reads(file);
    match BearerTokens::of(std::fs::read(file)) {
        Ok(tokens) => Some(tokens),
        Err(why) => {
            report.error(at, format!("{} {why}", file.display()), HINT);
            None
        }
    }
}
