//! [`SslMode`]: the parameter `sslmode` of a URL, and the [`Protection`] that it names.

use crate::config::problems::Wrong;

const SSLMODE_HINT: &str =
    "verify-full (the default across a network), verify-ca, require, prefer, allow or disable";

/// How the way to a server is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Not at all: a socket, this machine, or by request.
    Plain,
    /// Encrypted where the server offers it. Nothing is verified.
    IfOffered,
    /// Encrypted. Nothing is verified.
    Encrypted,
    /// Encrypted, and the certificate is from a CA that is named.
    VerifiedCa,
    /// As that, or from one of the system's CAs; and it has the host's name.
    VerifiedFull,
}

/// The URL's `sslmode`. `forced` ones say in their name what they do to a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SslMode {
    pub protection: Protection,
    pub forced: bool,
}

impl SslMode {
    /// Reads an `sslmode`.
    pub(super) fn parse(value: &str) -> Result<Self, Wrong> {
        let (value, forced) = match value.strip_prefix("insecure-") {
            Some(value) => (value, true),
            None => (value, false),
        };
        let protection = match value {
            "disable" => Protection::Plain,
            // libpq tries without encryption first, which a server seldom refuses.
            "allow" if !forced => Protection::Plain,
            "prefer" => Protection::IfOffered,
            "require" => Protection::Encrypted,
            "verify-ca" if !forced => Protection::VerifiedCa,
            "verify-full" if !forced => Protection::VerifiedFull,
            _ => return Err(("unknown sslmode".to_owned(), SSLMODE_HINT)),
        };
        Ok(Self { protection, forced })
    }
}
