//! Idempotency keys for the upstream: the same request always has the same key, whichever proxy
//! sends it and however often it was restarted, and two requests never share one.
//!
//! A key is made of a text: resource, token and operation, with a `-` between them, which is escaped
//! inside them, so that `a-b` with 7 and `a` with `b-7` differ. A caller's operation cannot be taken
//! for a digest: that begins with `%s`, which no escape does.

use std::fmt;

use percent_encoding::{AsciiSet, CONTROLS, PercentEncode, utf8_percent_encode};
use sha2::{Digest, Sha256};

use crate::config::{ClientKey, IdempotencySettings, KeyScope};
use crate::http1::Fields;
use crate::http1::head::same_name;
use crate::proxy::refusal::Refusal;
use crate::routing::{ResourceKey, Token};

/// The SHA-256 of a request's method, target and body, each behind its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestDigest([u8; 32]);

impl RequestDigest {
    /// `target` as it goes upstream, byte for byte, and the pieces of the body, of this `length`.
    #[must_use]
    pub fn of<'a>(
        method: &str,
        target: &str,
        length: u64,
        body: impl IntoIterator<Item = &'a [u8]>,
    ) -> Self {
        let mut hash = Sha256::new();
        for part in [method, target] {
            // A usize has at most 64 bits on every platform Rust knows.
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.update(length.to_be_bytes());
        for piece in body {
            hash.update(piece);
        }
        Self(hash.finalize().into())
    }
}

/// 64 lower-case hexadecimal digits.
impl fmt::Display for RequestDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut halves = self.0.as_chunks().0.iter();
        halves.try_for_each(|half| write!(f, "{:032x}", u128::from_be_bytes(*half)))
    }
}

/// The reason where the route has `required: true`, and the body was too long to be digested.
const NO_KEY: &str = "this route requires an idempotency key, and the body is too long to make one \
                      of; send X-Fencing-Operation, or a shorter body";
const EMPTY: &str = "X-Fencing-Operation is empty; name the operation, or leave the header out";

/// The key of one request: `None` if it needs a digest, there is none, and the route does
/// not require a key.
///
/// `token`: `None` where the outcome of the operation is remembered; then its key is the same for
/// every holder. `operation` is the caller's `X-Fencing-Operation`. `digest` is `None` if the body
/// was not read whole before the send.
pub fn key(
    settings: &IdempotencySettings,
    resource: &ResourceKey,
    token: Option<Token>,
    operation: Option<&str>,
    digest: Option<&RequestDigest>,
) -> Result<Option<String>, Refusal> {
    let Some(text) = render(settings, resource, token, operation, digest)? else {
        return Ok(None);
    };
    // RFC 9562, 5.8: version 8, whose other 122 bits are of the SHA-256 of the text.
    let hash: [u8; 32] = Sha256::digest(text).into();
    let key = hash.first_chunk().copied().unwrap_or_default();
    let key = uuid::Builder::from_custom_bytes(key).into_uuid();
    // RFC 9651, 3.3.3. A UUID has nothing to escape.
    Ok(Some(if settings.quoted {
        format!("\"{key}\"")
    } else {
        key.to_string()
    }))
}

/// The text of which a key is made. Different operations have different texts.
/// `None`: there is none, and the route does not require a key.
fn render(
    settings: &IdempotencySettings,
    resource: &ResourceKey,
    token: Option<Token>,
    operation: Option<&str>,
    digest: Option<&RequestDigest>,
) -> Result<Option<String>, Refusal> {
    if operation.is_some_and(str::is_empty) {
        return Err(Refusal::ambiguous(EMPTY));
    }
    let resource = escaped(resource.as_str());
    Ok(Some(match (token, settings.key, operation, digest) {
        // No token is written so.
        (None, ..) => format!("{resource}-%o-{}", escaped(operation.unwrap_or_default())),
        (Some(token), KeyScope::Epoch, ..) => format!("{resource}-{token}"),
        (Some(token), KeyScope::Operation, Some(operation), _) => {
            format!("{resource}-{token}-{}", escaped(operation))
        }
        (Some(token), KeyScope::Operation, None, Some(digest)) => {
            format!("{resource}-{token}-%sha256{digest}")
        }
        _ if settings.required => return Err(Refusal::TooLarge(NO_KEY.to_owned())),
        _ => return Ok(None),
    }))
}

/// A part of the text with an escape for each byte that ends one, begins an escape, or is not
/// visible ASCII.
fn escaped(part: &str) -> PercentEncode<'_> {
    const ESCAPED: AsciiSet = CONTROLS.add(b' ').add(b'%').add(b'-');
    utf8_percent_encode(part, &ESCAPED)
}

/// Says if the client's own key is kept. If not, the proxy makes one.
pub fn keeps_clients(settings: &IdempotencySettings, request: &Fields) -> Result<bool, Refusal> {
    let header = &settings.header.0;
    let mut fields = request.iter();
    let sent = fields.any(|(known, _)| same_name(known, header));
    match settings.client_key {
        ClientKey::Keep => Ok(sent),
        ClientKey::Reject if sent => Err(Refusal::Ambiguous(format!(
            "this route makes its own idempotency keys; leave {header} out"
        ))),
        ClientKey::Reject | ClientKey::Replace => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn digest_of(method: &str, target: &str, body: &[u8]) -> RequestDigest {
        let (one, other) = body.split_at(body.len() / 2);
        RequestDigest::of(method, target, body.len() as u64, [one, other])
    }
    fn make(
        settings: &IdempotencySettings,
        resource: &str,
        token: i64,
        operation: Option<&str>,
        digest: Option<&RequestDigest>,
    ) -> String {
        let resource = ResourceKey::new(resource).unwrap();
        let token = Token::new(token).unwrap();
        let made = render(settings, &resource, Some(token), operation, digest);
        made.unwrap().expect("a text")
    }

    /// What every version and every proxy must make of these, for ever: an upstream remembers keys.
    /// They were made by other means: Python's `hashlib` and `uuid`.
    #[test]
    fn golden() {
        let digest = digest_of("PUT", "/orders/42?x=1", b"{\"a\":1}");
        let empty = digest_of("", "", b"");
        assert_eq!(
            digest.to_string(),
            "391f969a67c6b32e1956234a5f286228198b3516d08fba05d78b0430ecb4f765"
        );
        assert_eq!(
            empty.to_string(),
            "9d908ecfb6b256def8b49a7c504e6c889c4b0e41fe6ce3e01863dd7b61a20aa0"
        );
        let mut settings = IdempotencySettings::default();
        for (resource, operation, expected_raw, expected_uuid) in [
            (
                "order:42",
                Some("pay"),
                "order:42-7-pay",
                "83d1f83d-f4d4-8357-bbaf-1a5f2ef3aa16",
            ),
            (
                "order:a-b",
                Some("pay 1%"),
                "order:a%2Db-7-pay%201%25",
                "3359dc1c-4bf3-8165-ad03-e566559a21fd",
            ),
            (
                "é:x%3Ay",
                Some("\u{1}"),
                "%C3%A9:x%253Ay-7-%01",
                "8c439b98-113e-87f9-83e1-23f7f09c246a",
            ),
            (
                "order:42",
                None,
                "order:42-7-%sha256391f969a67c6b32e1956234a5f286228198b3516d08fba05d78b0430ecb4f765",
                "3d1e5de4-4df3-813c-b1c5-e80928a4d074",
            ),
        ] {
            assert_eq!(
                make(&settings, resource, 7, operation, Some(&digest)),
                expected_raw
            );
            let resource = ResourceKey::new(resource).unwrap();
            let token = Token::new(7).unwrap();
            for (quoted, expected) in [
                (false, expected_uuid.to_owned()),
                (true, format!("\"{expected_uuid}\"")),
            ] {
                settings.quoted = quoted;
                let key = key(&settings, &resource, Some(token), operation, Some(&digest));
                assert_eq!(key.unwrap().unwrap(), expected);
            }
        }
    }

    #[test]
    fn an_epoch_has_one_key() {
        let settings = IdempotencySettings {
            key: KeyScope::Epoch,
            ..IdempotencySettings::default()
        };
        for operation in [None, Some("pay")] {
            assert_eq!(make(&settings, "r:1", 7, operation, None), "r:1-7");
        }
    }

    #[test]
    fn without_a_key() {
        let resource = ResourceKey::new("r").unwrap();
        let mut settings = IdempotencySettings::default();
        let none = |settings: &_| key(settings, &resource, Some(Token::MAX), None, None);
        assert!(none(&settings).unwrap().is_none());
        settings.required = true;
        let too_long = none(&settings).expect_err("there is none");
        assert!(matches!(too_long, Refusal::TooLarge(why) if why == NO_KEY));
        settings.key = KeyScope::Epoch;
        assert!(none(&settings).unwrap().is_some());
        let empty = key(&settings, &resource, Some(Token::MAX), Some(""), None);
        let empty = empty.expect_err("it names nothing");
        assert!(matches!(empty, Refusal::Ambiguous(why) if why == EMPTY));
    }

    #[test]
    fn whose_key() {
        let mut settings = IdempotencySettings::default();
        let empty = Fields::default();
        for twin in ["idempotency-key", "idempotency_key"] {
            let mut theirs = Fields::default();
            theirs.append(twin, "theirs");
            for (policy, request, expected) in [
                (ClientKey::Keep, &empty, Ok(false)),
                (ClientKey::Keep, &theirs, Ok(true)),
                (ClientKey::Replace, &theirs, Ok(false)),
                (ClientKey::Reject, &empty, Ok(false)),
                (
                    ClientKey::Reject,
                    &theirs,
                    Err("this route makes its own idempotency keys; leave idempotency-key out"),
                ),
            ] {
                settings.client_key = policy;
                match (keeps_clients(&settings, request), expected) {
                    (Err(Refusal::Ambiguous(why)), Err(expected)) => assert_eq!(why, expected),
                    (kept, expected) => assert_eq!(kept.unwrap(), expected.unwrap()),
                }
            }
        }
    }

    #[test]
    fn lengths_keep_the_parts_of_a_digest_apart() {
        let mut seen = HashMap::new();
        let texts = ["", "a", "aa", "aaa"];
        for method in texts {
            for target in texts {
                for body in texts {
                    let digest = digest_of(method, target, body.as_bytes()).0;
                    assert_eq!(seen.insert(digest, (method, target, body)), None);
                }
            }
        }
    }

    proptest! {
        #[test]
        fn different_inputs_have_different_keys(
            one in ("[-a|%2 ]{1,4}", 0_i64..12, "[-a|%2s ]{1,4}"),
            two in ("[-a|%2 ]{1,4}", 0_i64..12, "[-a|%2s ]{1,4}"),
        ) {
            let settings = IdempotencySettings::default();
            let of = |(resource, token, operation): &(String, i64, String)| {
                make(&settings, resource, *token, Some(operation), None)
            };
            prop_assert_eq!(of(&one) == of(&two), one == two);
        }

        #[test]
        fn an_operation_is_never_taken_for_a_digest(operation in "(%s|%25s|s)?(ha256)?[0-9a-f]{0,3}") {
            prop_assume!(!operation.is_empty());
            let settings = IdempotencySettings::default();
            let digest = digest_of("PUT", "/", b"");
            let with_digest = make(&settings, "r", 1, None, Some(&digest));
            let copied = with_digest.strip_prefix("r-1-").unwrap();
            prop_assert_ne!(&make(&settings, "r", 1, Some(copied), None), &with_digest);
            prop_assert!(!make(&settings, "r", 1, Some(&operation), None).contains("-%s"));
        }
    }
}
