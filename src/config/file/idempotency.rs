//! The idempotency block of a route, and the template of its key.
//!
//! An upstream drops a second request with a key that it has seen. If two different writes could
//! share a key, one of them would be lost. So a template names at least the resource and the token,
//! and something separates two variables.

use http::HeaderName;
use schemars::JsonSchema;
use serde::Deserialize;

use super::units::OffOr;
use crate::config::settings::{
    ClientKey, IdempotencyPart, IdempotencySettings, IdempotencyTemplate,
};
use crate::config::yaml::{Report, nearest, shown};
use crate::routing::is_replaced;

/// The `Idempotency-Key` that is sent upstream.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Idempotency")]
pub struct IdempotencyFile {
    /// The header's name.
    pub header: String,
    /// The key is a UUID of version 8, of the SHA-256 of this text. `{resource}` and `{token}`, and `{operation}` (the caller's `X-Fencing-Operation`, or else
    /// the digest) or `{digest}` (of method, target and body). `{resource}-{token}` alone: one key
    /// per epoch.
    pub key: String,
    /// `true`: refuse a request that yields no key (its body is longer than `body.buffer`, and
    /// it names no operation).
    pub required: bool,
    /// `true`: send it as a string of RFC 9651, in double quotes.
    pub quoted: bool,
    /// The treatment of a key that the client sends itself.
    pub client_key: ClientKey,
}

impl Default for IdempotencyFile {
    fn default() -> Self {
        Self {
            header: "Idempotency-Key".to_owned(),
            key: "{resource}-{token}-{operation}".to_owned(),
            required: false,
            quoted: false,
            client_key: ClientKey::Keep,
        }
    }
}

const VARIABLES: [(&str, IdempotencyPart); 4] = [
    ("resource", IdempotencyPart::Resource),
    ("token", IdempotencyPart::Token),
    ("operation", IdempotencyPart::Operation),
    ("digest", IdempotencyPart::Digest),
];

/// Headers that mean something else, besides those that [`is_replaced`].
const TAKEN: [&str; 6] = [
    "authorization",
    "content-encoding",
    "content-type",
    "host",
    "traceparent",
    "tracestate",
];

/// Checks a route's block. `None` where it is off or wrong.
pub(super) fn settings(
    path: &str,
    block: OffOr<IdempotencyFile>,
    report: &mut Report,
) -> Option<IdempotencySettings> {
    let block = block.on()?;
    let header = header_name(&block.header)
        .map_err(|(message, hint)| report.error(format!("{path}.header"), message, hint));
    let key = template(&block.key)
        .map_err(|(message, hint)| report.error(format!("{path}.key"), message, &hint));
    Some(IdempotencySettings {
        header: header.ok()?,
        key: key.ok()?,
        required: block.required,
        quoted: block.quoted,
        client_key: block.client_key,
    })
}

/// The name of the header in lower case.
fn header_name(text: &str) -> Result<String, (String, &'static str)> {
    let Ok(name) = text.parse::<HeaderName>() else {
        return Err((
            format!("{} is not a header name", shown(text)),
            "letters, digits and dashes: Idempotency-Key",
        ));
    };
    let name = name.as_str().to_owned();
    let is_taken = TAKEN.contains(&name.as_str()) || is_replaced(&name);
    if is_taken || name.starts_with("x-fencing-") || name.contains('_') {
        return Err((
            format!("{} cannot carry an idempotency key", shown(text)),
            "use a header that has no other meaning, without underscores: Idempotency-Key",
        ));
    }
    Ok(name)
}

/// Reads `{resource}-{token}-{operation}`.
pub(super) fn template(text: &str) -> Result<IdempotencyTemplate, (String, String)> {
    let known = || "the variables are {resource}, {token}, {operation} and {digest}".to_owned();
    let mut parts: Vec<IdempotencyPart> = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let brace = rest.find(['{', '}']).unwrap_or(rest.len());
        let (literal, tail) = rest.split_at(brace);
        if !literal.is_empty() {
            if !literal
                .bytes()
                .all(|b| (0x21..=0x7e).contains(&b) && b != b'"' && b != b'\\')
            {
                return Err((
                    format!("{} has a character that cannot stand in a key", shown(text)),
                    "visible ASCII without quotes and backslashes".to_owned(),
                ));
            }
            parts.push(IdempotencyPart::Literal(literal.to_owned()));
        }
        if tail.is_empty() {
            break;
        }
        let Some((name, behind)) = tail.strip_prefix('{').and_then(|t| t.split_once('}')) else {
            return Err((format!("{} has an unmatched brace", shown(text)), known()));
        };
        let Some((_, part)) = VARIABLES.iter().find(|(variable, _)| *variable == name) else {
            let meant = nearest(name, VARIABLES.iter().map(|(variable, _)| *variable));
            let hint = meant.map_or_else(known, |meant| format!("did you mean {{{meant}}}?"));
            return Err((format!("there is no variable `{{{name}}}`"), hint));
        };
        if !matches!(parts.last(), None | Some(IdempotencyPart::Literal(_))) {
            return Err((
                format!("`{{{name}}}` follows another variable with nothing between them"),
                "two different requests could yield the same key: put a `-` between".to_owned(),
            ));
        }
        parts.push(part.clone());
        rest = behind;
    }
    for (needed, why) in [
        (
            IdempotencyPart::Resource,
            "`{resource}` is not in it: writes to two resources could share a key, and the upstream would drop one",
        ),
        (
            IdempotencyPart::Token,
            "`{token}` is not in it: writes of two holders could share a key, and the upstream would drop one",
        ),
    ] {
        if !parts.contains(&needed) {
            return Err((
                why.to_owned(),
                "such as {resource}-{token}-{operation}".to_owned(),
            ));
        }
    }
    Ok(IdempotencyTemplate { parts })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_read_in_order() {
        let read = template("a{resource}-{token}-{operation}").expect("it is good");
        assert_eq!(
            read.parts,
            [
                IdempotencyPart::Literal("a".into()),
                IdempotencyPart::Resource,
                IdempotencyPart::Literal("-".into()),
                IdempotencyPart::Token,
                IdempotencyPart::Literal("-".into()),
                IdempotencyPart::Operation,
            ]
        );
    }

    #[test]
    fn templates_that_lose_writes_are_refused() {
        for bad in [
            "",
            "key",
            "{token}",
            "{resource}",
            "{resource}{token}",
            "{resource}-{tokn}",
            "{resource-{token}",
            "{resource}-{token}}",
            "{resource} {token}",
            "{resource}\"{token}",
        ] {
            assert!(template(bad).is_err(), "{bad}");
        }
        let (_, hint) = template("{resource}-{tokn}").expect_err("no such variable");
        assert_eq!(hint, "did you mean {token}?");
    }

    #[test]
    fn the_header_must_be_free() {
        assert_eq!(
            header_name("Idempotency-Key").as_deref(),
            Ok("idempotency-key")
        );
        for bad in ["", "a b", "Host", "X-Fencing-Token", "Idempotency_Key"] {
            assert!(header_name(bad).is_err(), "{bad}");
        }
    }
}
