//! [`SslMode`]: the parameter `sslmode` of a URL, and the [`Protection`] that it names.

use crate::config::yaml::Wrong;

const SSLMODE_HINT: &str =
    "verify-full (the default across a network), verify-ca, require, prefer, allow or disable";

/// The protection of the connection to a server.
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
    /// Encrypted, the certificate is from a CA that is named or one of the system's, and it has the
    /// host's name.
    VerifiedFull,
}

/// The URL's `sslmode`. A `forced` one has `insecure-` in its name.
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
            // libpq tries without encryption first, which a server rarely refuses.
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
