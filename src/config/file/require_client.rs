//! The list `require_client`, of a route and of the claim endpoint.

use super::values::entries;
use crate::config::client_pattern::ClientPattern;
use crate::config::yaml::Report;

/// The clients that are listed; none if the list is absent. `asked`: clients are asked for
/// certificates.
pub(super) fn settings(
    at: &str,
    list: Option<Vec<Option<String>>>,
    asked: bool,
    report: &mut Report,
) -> Vec<ClientPattern> {
    let Some(list) = list else {
        return Vec::new();
    };
    if list.is_empty() {
        report.error(
            at,
            "no client is allowed",
            "list some, or leave it out to allow every client",
        );
    } else if !asked {
        report.error(
            at,
            "clients are not asked for certificates, so none has a name",
            "give `tls` with a client_ca_file",
        );
    }
    entries(at, list, ClientPattern::parse, report)
}
