//! Where the holder's token comes from. It is read once: whoever reads it again later may get the
//! token of the next holder, and a zombie would pass with it.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use clap::Args;
use http::HeaderValue;

use crate::routing::TokenFormat;

/// The source of the token: the one flag that is given.
#[derive(Debug, Default, Args)]
#[group(required = true, multiple = false)]
pub struct TokenSource {
    /// The holder's token.
    #[arg(long, value_name = "TOKEN", help_heading = "Token (one of)")]
    token: Option<String>,
    /// Environment variable with the token, such as `ETCD_LOCK_REV`.
    #[arg(long, value_name = "NAME", help_heading = "Token (one of)")]
    token_env: Option<String>,
    /// File with the token. Read at start and on SIGHUP only: reading it at any other time could
    /// pick up the next holder's token.
    #[arg(long, value_name = "FILE", help_heading = "Token (one of)")]
    token_file: Option<PathBuf>,
}

impl TokenSource {
    /// Whether SIGHUP makes it be read again.
    pub(super) fn follows_hangup(&self) -> bool {
        self.token_file.is_some()
    }

    pub(super) async fn read(&self) -> anyhow::Result<HeaderValue> {
        let (text, source) = if let Some(name) = &self.token_env {
            let text = std::env::var_os(name).map(|text| text.to_string_lossy().into_owned());
            let text = text.with_context(|| format!("no environment variable {name}"));
            (text, format!("--token-env {name}"))
        } else if let Some(path) = &self.token_file {
            let text = tokio::fs::read_to_string(path).await;
            let source = format!("--token-file {}", path.display());
            (text.map_err(anyhow::Error::from), source)
        } else {
            let text = self
                .token
                .clone()
                .context("no source of the token is given");
            (text, "--token".to_owned())
        };
        text.and_then(|text| value(&text)).context(source)
    }
}

/// A token as a field's value. Only the fencepost knows which format its route expects.
fn value(text: &str) -> anyhow::Result<HeaderValue> {
    let text = text.trim();
    ensure!(!text.is_empty(), "the token is empty");
    ensure!(
        text.bytes().all(|byte| byte.is_ascii_graphic()),
        "the token has spaces, line breaks or other characters that no token has: {text:?}"
    );
    ensure!(
        TokenFormat::ALL
            .iter()
            .any(|format| format.parse(text.as_bytes()).is_ok()),
        "{text:?} is no token: a token is a number up to 2^63-1 (41), hexadecimal digits (0x29), a name \
         with `#` and a number (lock#42), or begins with 16 hexadecimal digits"
    );
    Ok(HeaderValue::from_str(text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_token_is_one_word() {
        let read = |text: &str| {
            let given = TokenSource {
                token: Some(text.into()),
                ..TokenSource::default()
            };
            async move { given.read().await.map_err(|error| format!("{error:#}")) }
        };
        assert_eq!(read(" 41\n").await.expect("a token"), "41");
        for (text, why) in [
            ("", "empty"),
            ("4 1", "spaces"),
            ("4\n1", "line breaks"),
            ("é", "other"),
            ("xyz", "no token"),
        ] {
            let error = read(text).await.expect_err("it is none");
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }
}
