//! [`ClientPattern`]: which clients a route accepts, by the names in their certificates.

use rustls::pki_types::DnsName;

use super::yaml::{Wrong, shown};

/// One of `require_client`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientPattern {
    /// This DNS name, in lower case.
    Dns(String),
    /// Any one label, followed by this, in lower case: `.pay.svc`.
    Below(String),
    /// This URI, byte for byte.
    Uri(String),
}

impl ClientPattern {
    pub(super) fn parse(text: &str) -> Result<Self, Wrong> {
        const HINT: &str =
            "write a URI (spiffe://cluster/ns/pay/sa/worker), a DNS name, or *. and a DNS name";
        let wrong = |what: &str| Err((format!("{} {what}", shown(text)), HINT));
        if text.contains(':') {
            let as_a_whole = text
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && byte != b'*');
            return if as_a_whole && text.starts_with(|c: char| c.is_ascii_alphabetic()) {
                Ok(Self::Uri(text.to_owned()))
            } else {
                wrong("is not a URI; URIs are compared as a whole, without `*`")
            };
        }
        let name = text.strip_prefix("*.").unwrap_or(text);
        if DnsName::try_from(name).is_err() || name.ends_with('.') {
            return wrong("is not a DNS name; a `*` stands for the first label alone");
        }
        let name = name.to_ascii_lowercase();
        Ok(if text.starts_with("*.") {
            Self::Below(format!(".{name}"))
        } else {
            Self::Dns(name)
        })
    }

    /// Returns true if a DNS name of a certificate, in lower case, matches.
    #[must_use]
    pub fn takes_dns(&self, name: &str) -> bool {
        match self {
            Self::Dns(wanted) => wanted == name,
            Self::Below(suffix) => name
                .strip_suffix(suffix.as_str())
                .is_some_and(|label| !label.is_empty() && !label.contains('.')),
            Self::Uri(_) => false,
        }
    }

    /// Returns true if a URI of a certificate matches.
    #[must_use]
    pub fn takes_uri(&self, uri: &str) -> bool {
        matches!(self, Self::Uri(wanted) if wanted == uri)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> ClientPattern {
        ClientPattern::parse(text).expect("a pattern")
    }

    #[test]
    fn dns_names_are_compared_whole_and_without_case() {
        let exact = pattern("Worker.pay.svc");
        assert!(exact.takes_dns("worker.pay.svc"));
        for other in ["a.worker.pay.svc", "pay.svc", "worker.pay.svc.evil", ""] {
            assert!(!exact.takes_dns(other), "{other}");
        }
        assert!(!exact.takes_uri("worker.pay.svc"));
    }

    #[test]
    fn a_star_is_one_label() {
        let any = pattern("*.pay.svc");
        assert!(any.takes_dns("worker.pay.svc"));
        for other in [
            "pay.svc",
            ".pay.svc",
            "a.worker.pay.svc",
            "workerpay.svc",
            "worker.pay.svc.evil",
        ] {
            assert!(!any.takes_dns(other), "{other}");
        }
    }

    #[test]
    fn uris_are_compared_byte_for_byte() {
        let uri = pattern("spiffe://cluster/ns/pay/sa/worker");
        assert!(uri.takes_uri("spiffe://cluster/ns/pay/sa/worker"));
        for other in [
            "spiffe://cluster/ns/pay/sa/worker/",
            "spiffe://cluster/ns/pay/sa/Worker",
            "spiffe://cluster/ns/pay/sa",
        ] {
            assert!(!uri.takes_uri(other), "{other}");
        }
        assert!(!uri.takes_dns("spiffe://cluster/ns/pay/sa/worker"));
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for bad in [
            "",
            "*",
            "*.",
            "a.*.b",
            "w*.pay.svc",
            "*.*.svc",
            "a b",
            "pay.svc.",
            "a..b",
            "spiffe://c/*",
            "://x",
            "spiffe://a b",
        ] {
            assert!(ClientPattern::parse(bad).is_err(), "{bad}");
        }
    }
}
