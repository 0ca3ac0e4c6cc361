//! [`BearerTokens`]: the tokens of a file, one on each line, kept as digests.

use std::io;

use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

/// A longer file is not a token file.
const MAX_TOKEN_FILE: usize = 4096;
/// A shorter token can be guessed.
const MIN_TOKEN: usize = 16;

/// Digests of the tokens. A client has to show one of them.
#[derive(Clone)]
pub struct BearerTokens(Vec<[u8; 32]>);

impl std::fmt::Debug for BearerTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BearerTokens({})", self.0.len())
    }
}

impl BearerTokens {
    /// The tokens in a file that was read. The error says what is wrong with it.
    pub fn of(file: io::Result<Vec<u8>>) -> Result<Self, String> {
        Self::parse(&file.map_err(|error| format!("cannot be read: {error}"))?)
    }

    /// The tokens in the content of a file.
    pub fn parse(content: &[u8]) -> Result<Self, String> {
        if content.len() > MAX_TOKEN_FILE {
            return Err(format!("is longer than {MAX_TOKEN_FILE} bytes"));
        }
        let lines = content.split(|byte| *byte == b'\n');
        let tokens: Vec<_> = lines
            .map(<[u8]>::trim_ascii)
            .filter(|token| !token.is_empty())
            .collect();
        if tokens.is_empty() {
            return Err("is empty".to_owned());
        }
        if tokens.iter().any(|token| token.len() < MIN_TOKEN) {
            return Err(format!("has a token of fewer than {MIN_TOKEN} characters"));
        }
        let digests = tokens.into_iter().map(|token| Sha256::digest(token).into());
        Ok(Self(digests.collect()))
    }

    /// Returns true if this is one of them. All are compared, in a time that reveals nothing about
    /// them.
    #[must_use]
    pub fn take(&self, token: &[u8]) -> bool {
        let given: [u8; 32] = Sha256::digest(token).into();
        let found = self.0.iter().map(|token| token.ct_eq(&given));
        found.fold(Choice::from(0), |found, one| found | one).into()
    }
}

/// The one bearer token of a request (RFC 6750, 2.1).
#[must_use]
pub fn bearer<'a>(mut lines: impl Iterator<Item = &'a [u8]>) -> Option<&'a [u8]> {
    let (Some(line), None) = (lines.next(), lines.next()) else {
        return None;
    };
    let (scheme, token) = line.split_at_checked(line.iter().position(|byte| *byte == b' ')?)?;
    scheme
        .eq_ignore_ascii_case(b"bearer")
        .then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_token() {
        let tokens =
            BearerTokens::parse(b" 0123456789abcdef \r\n\nfedcba9876543210\n").expect("two");
        for good in ["0123456789abcdef", "fedcba9876543210"] {
            assert!(tokens.take(good.as_bytes()));
        }
        for bad in [
            "",
            "0123456789abcde",
            "0123456789abcdefg",
            "0123456789abcdef\nfedcba9876543210",
        ] {
            assert!(!tokens.take(bad.as_bytes()), "{bad}");
        }
        for bad in [
            &b""[..],
            b"\n \n",
            b"0123456789abcde",
            b"0123456789abcdef\nshort",
            &[b'x'; 5000],
        ] {
            assert!(BearerTokens::parse(bad).is_err());
        }
        assert!(!format!("{tokens:?}").contains("0123"));
    }
}
