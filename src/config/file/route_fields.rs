//! Checks of single fields of a route: the template of its key, its methods, the spellings that it
//! allows, and its name.

use std::collections::BTreeSet;

use http::Method;

use crate::config::yaml::{Report, nearest, shown};
use crate::routing::{
    Allow, KeyTemplate, NAMING_OTHERS, Pattern, SAFE_METHODS, Source, is_replaced,
};

/// Route labels that mean something else in metrics and logs.
const RESERVED_LABELS: [&str; 2] = ["claim", "unmatched"];

/// The template of a key.
pub(super) fn key(
    at: &str,
    template: &str,
    pattern: &Pattern,
    report: &mut Report,
) -> Option<KeyTemplate> {
    let key = match KeyTemplate::parse(template, pattern) {
        Ok(key) => key,
        Err(error) => {
            report.error(at, error, "");
            return None;
        }
    };
    for source in key.parts() {
        let Source::Header(name) = source else {
            continue;
        };
        if is_replaced(name) {
            report.error(
                at,
                format!(
                    "{source}: the proxy writes or removes this header itself, so the upstream \
                     does not act on what the client has sent"
                ),
                "name another header",
            );
            return None;
        }
        match name.as_str() {
            "x-fencing-operation" | "idempotency-key" | "traceparent" | "x-request-id" => report
                .warn(
                    at,
                    format!(
                        "{{header.{name}}} differs from request to request, so one resource gets \
                         many keys"
                    ),
                    "use a part that names the resource, not the request",
                ),
            "authorization" | "cookie" => report.warn(
                at,
                format!("{{header.{name}}} is a secret, and keys are stored and logged"),
                "use another part of the request",
            ),
            _ => {}
        }
    }
    Some(key)
}

/// The unsafe methods that are allowed.
pub(super) fn methods(
    at: &str,
    list: Vec<Option<String>>,
    report: &mut Report,
) -> Option<BTreeSet<String>> {
    if list.is_empty() {
        report.error(
            at,
            "no method is allowed",
            "leave it out to allow POST, PUT, PATCH and DELETE",
        );
        return None;
    }
    let mut methods = BTreeSet::new();
    for (i, name) in list.into_iter().enumerate() {
        let at = format!("{at}[{i}]");
        let name = name.unwrap_or_default();
        let upper = name.to_ascii_uppercase();
        let faults = [
            (
                Method::from_bytes(name.as_bytes()).is_err(),
                "is not a method",
                "such as PUT",
            ),
            (
                SAFE_METHODS.contains(&upper.as_str()),
                "is a safe method, and this list is for unsafe ones",
                "remove it; `safe_methods` says how safe ones are judged",
            ),
            (
                NAMING_OTHERS.contains(&upper.as_str()),
                "changes what its body or `Link` names, and no key covers that",
                "remove it; it is refused on all routes while one enforces",
            ),
            (
                matches!(upper.as_str(), "TRACE" | "CONNECT"),
                "is never forwarded",
                "remove it",
            ),
            (
                upper != name,
                "has lower-case letters",
                "methods are case-sensitive: write it in capitals",
            ),
        ];
        match faults.into_iter().find(|(is_wrong, ..)| *is_wrong) {
            Some((_, fault, hint)) => report.error(at, format!("{} {fault}", shown(&name)), hint),
            None if methods.contains(&name) => {
                report.warn(at, format!("{name} is listed twice"), "");
            }
            None => {
                methods.insert(name);
            }
        }
    }
    (!methods.is_empty()).then_some(methods)
}

/// The spellings that are allowed.
pub(super) fn allow(at: &str, list: Vec<Option<String>>, report: &mut Report) -> Allow {
    let mut allow = Allow::default();
    for (i, name) in list.into_iter().enumerate() {
        let Some(name) = name else { continue };
        if allow.set(&name) {
            continue;
        }
        let hint = match nearest(&name, Allow::NAMES.iter().copied()) {
            Some(meant) => format!("did you mean {meant}?"),
            None => format!("known: {}", Allow::NAMES.join(", ")),
        };
        report.error(
            format!("{at}[{i}]"),
            format!("{} cannot be allowed", shown(&name)),
            &hint,
        );
    }
    allow
}

/// Checks whether a name can be a label.
pub(super) fn label(at: &str, name: &str, report: &mut Report) -> bool {
    let wrong = if name.trim().is_empty() {
        "the name is empty"
    } else if name.chars().count() > 128 || name.chars().any(char::is_control) {
        "the name is longer than 128 characters, or has control characters"
    } else if RESERVED_LABELS.contains(&name) {
        "the name is reserved: it means something else in metrics and logs"
    } else {
        return true;
    };
    report.error(
        at,
        wrong,
        "a short word, such as orders; without a name, the path is taken",
    );
    false
}
