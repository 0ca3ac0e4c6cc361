//! Checks of single fields of a route: the template of its key, its methods, the spellings that it
//! allows, and its name.

use std::collections::BTreeSet;

use http::Method;

use crate::config::yaml::{Report, nearest, shown};
use crate::routing::method::{NAMING_OTHERS, SAFE_METHODS};
use crate::routing::{Allow, KeyTemplate, Pattern, Source};

/// The unsafe methods of the IANA registry that a route can list
/// (<https://www.iana.org/assignments/http-methods>).
const METHODS: [&str; 23] = [
    "ACL",
    "BASELINE-CONTROL",
    "CHECKIN",
    "CHECKOUT",
    "COPY",
    "DELETE",
    "LABEL",
    "LOCK",
    "MERGE",
    "MKACTIVITY",
    "MKCALENDAR",
    "MKCOL",
    "MKREDIRECTREF",
    "MKWORKSPACE",
    "MOVE",
    "ORDERPATCH",
    "PATCH",
    "POST",
    "PROPPATCH",
    "PUT",
    "UNCHECKOUT",
    "UNLOCK",
    "UPDATE",
];

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
            report.error(at, error.to_string(), "");
            return None;
        }
    };
    for source in key.parts() {
        let Source::Header(name) = source else {
            continue;
        };
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
            "authorization" | "cookie" | "proxy-authorization" => report.warn(
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
    let count = list.len();
    for (i, name) in list.into_iter().enumerate() {
        let at = format!("{at}[{i}]");
        let Some(name) = name else {
            report.error(at, "this method is empty", "");
            continue;
        };
        let upper = name.to_ascii_uppercase();
        match upper.as_str() {
            _ if Method::from_bytes(name.as_bytes()).is_err() => {
                report.error(
                    at,
                    format!("{} is not a method", shown(&name)),
                    "such as PUT",
                );
            }
            safe if SAFE_METHODS.contains(&safe) => report.error(
                at,
                format!("{upper} is a safe method, and this list is for unsafe ones"),
                "remove it; `safe_methods` says how safe ones are judged",
            ),
            other if NAMING_OTHERS.contains(&other) => report.error(
                at,
                format!("{upper} changes what its body or `Link` names, and no key covers that"),
                "remove it; it is refused on all routes while one enforces",
            ),
            "TRACE" | "CONNECT" => {
                report.error(at, format!("{upper} is never forwarded"), "remove it");
            }
            _ if upper != name => {
                let hint = format!("methods are case-sensitive: write {upper}");
                report.error(
                    at,
                    format!("{} has lower-case letters", shown(&name)),
                    &hint,
                );
            }
            _ if !methods.insert(name.clone()) => {
                report.warn(at, format!("{name} is listed twice"), "");
            }
            _ if !METHODS.contains(&&*name) => {
                let hint = match nearest(&name, METHODS.iter().copied()) {
                    Some(meant) => format!("did you mean {meant}?"),
                    None => "leave it, if the upstream knows it".to_owned(),
                };
                report.warn(at, format!("{name} is not a registered method"), &hint);
            }
            _ => {}
        }
    }
    (count > 0 && !methods.is_empty()).then_some(methods)
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
