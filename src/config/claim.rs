//! The block `claim`: the path of the claim endpoint, and the clients that may claim.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::address_range::AddressRange;
use super::bearer_tokens::BearerTokens;
use super::client_pattern::ClientPattern;
use super::judging::Mode;
use super::route::{RouteSettings, check_clients};
use super::units::word;
use super::yaml::{Report, Wrong, shown};
use crate::routing::Pattern;

/// The claim endpoint. A claim must satisfy each limit that is set.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Claim")]
pub struct ClaimSettings {
    /// Its path on the data port.
    #[schemars(with = "String", extend("default" = ClaimPath::DEFAULT))]
    pub path: ClaimPath,
    /// The clients that may claim, by the names in their certificates, as in `require_client` of a
    /// route; others get a 403. Needs `tls.client_ca_file`. A route's own `require_client` applies
    /// to claims as well.
    #[schemars(with = "Option<Vec<String>>")]
    pub require_client: Vec<ClientPattern>,
    /// The addresses that may claim, single or with a prefix length: `10.1.0.0/16`, `::1`; others
    /// get a 403. The connection's address counts: behind a load balancer, all clients have its
    /// address, unless `trusted_proxies` names it.
    #[schemars(with = "Option<Vec<String>>")]
    pub addresses: Option<Vec<AddressRange>>,
    /// A file with the bearer token for claims, at least 16 characters; without the token a claim
    /// gets a 401. Each line is a token, so that an old one can stay valid beside a new one for a
    /// while. Read again when it changes.
    token_file: Option<PathBuf>,
    /// The tokens of that file; `None`: no token is asked for.
    #[serde(skip)]
    pub tokens: Option<BearerTokens>,
}

impl Default for ClaimSettings {
    fn default() -> Self {
        Self {
            path: ClaimPath(ClaimPath::DEFAULT.to_owned()),
            require_client: Vec::new(),
            addresses: None,
            token_file: None,
            tokens: None,
        }
    }
}

/// The path of the claim endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimPath(pub String);

impl ClaimPath {
    const DEFAULT: &str = "/.well-known/fencing/claim";
}

word!(ClaimPath, ClaimPath::parse);

impl ClaimPath {
    fn parse(text: &str) -> Result<Self, Wrong> {
        let wrong = match Pattern::parse(text) {
            Err(error) => error,
            Ok(pattern) if pattern.names().next().is_some() || text.contains('%') => {
                format!("{} has captures or escapes", shown(text))
            }
            Ok(_) if text == "/" => "claims need a path of their own".to_owned(),
            Ok(_) => return Ok(Self(text.to_owned())),
        };
        Err((wrong, "a plain path, such as /.well-known/fencing/claim"))
    }
}

impl ClaimSettings {
    /// `has_addresses`: clients have addresses. `are_named`: they are asked for certificates.
    pub(super) fn check(&mut self, has_addresses: bool, are_named: bool, report: &mut Report) {
        check_clients(
            "claim.require_client",
            &self.require_client,
            are_named,
            report,
        );
        report.error_if(
            self.addresses.as_ref().is_some_and(Vec::is_empty),
            "claim.addresses",
            "no address may claim",
            "name some, or say `claim: off`",
        );
        report.with("listen").error_if(
            self.addresses.is_some() && !has_addresses,
            "claim.addresses",
            "clients of a Unix socket have no address",
            "remove it: `listen_mode` says who may connect; or give claim.token_file",
        );
        let Some(file) = &self.token_file else { return };
        report.reads(file);
        match BearerTokens::of(std::fs::read(file)) {
            Ok(tokens) => self.tokens = Some(tokens),
            Err(why) => report.error(
                "claim.token_file",
                format!("the file `{}` {why}", file.display()),
                "a file with a secret of your choice, such as the output of `openssl rand -hex 32`",
            ),
        }
    }

    /// Warns of routes by which every client raises marks, where only some clients may claim.
    pub(super) fn check_ways_around(&self, routes: &[RouteSettings], report: &mut Report) {
        let limits = [
            ("claim.require_client", !self.require_client.is_empty()),
            ("claim.addresses", self.addresses.is_some()),
            ("claim.token_file", self.token_file.is_some()),
        ];
        let Some((at, _)) = limits.into_iter().find(|(_, given)| *given) else {
            return;
        };
        let is_open =
            |route: &&RouteSettings| route.mode == Mode::Enforce && route.require_client.is_empty();
        if let Some(open) = routes.iter().find(is_open) {
            report.warn(
                at,
                format!(
                    "requests with a token raise marks as claims do, and the route {} accepts them \
                     from every client",
                    open.path
                ),
                "give the route a require_client, or restrict who can reach the port",
            );
        }
    }
}
