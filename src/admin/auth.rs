//! Who may write: whoever knows the token in `admin.token_file`. Always asked for, on loopback too,
//! since a sidecar shares its loopback with the legacy container.

use std::path::Path;

use axum::http::{HeaderMap, StatusCode, header};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::problem::Problem;

/// A token file longer than this is not one.
const MAX_TOKEN_FILE: u64 = 4096;

/// Lets the request through if it carries the token. The file is read each time, so that a rotated
/// secret counts at once.
pub async fn authorize(token_file: Option<&Path>, headers: &HeaderMap) -> Result<(), Problem> {
    let Some(path) = token_file else {
        return Err(writes_off(
            "Set admin.token_file in the configuration to a file that holds a secret of your choice \
             (for example the output of `openssl rand -hex 32`), and send it as `Authorization: Bearer …`.",
        ));
    };
    let expected = match read_token(path).await {
        Ok(token) => token,
        Err(why) => {
            tracing::warn!(path = %path.display(), "admin.token_file: {why}; writes over the admin API are off");
            return Err(writes_off(format!("admin.token_file: {why}.")));
        }
    };
    let given = bearer(headers)?;
    // Digests are of one length, so that not even the length shows in the time taken.
    if Sha256::digest(&expected)
        .ct_eq(&Sha256::digest(given))
        .into()
    {
        Ok(())
    } else {
        Err(unauthorized(
            "The bearer token is not the one in admin.token_file.",
        ))
    }
}

/// The token without the whitespace around it; never empty.
async fn read_token(path: &Path) -> Result<Vec<u8>, String> {
    let length = tokio::fs::metadata(path)
        .await
        .map_err(|error| format!("cannot be read: {error}"))?;
    if length.len() > MAX_TOKEN_FILE {
        return Err(format!("is longer than {MAX_TOKEN_FILE} bytes"));
    }
    let content = tokio::fs::read(path)
        .await
        .map_err(|error| format!("cannot be read: {error}"))?;
    let token = content.trim_ascii();
    if token.is_empty() {
        Err("is empty".to_owned())
    } else {
        Ok(token.to_vec())
    }
}

fn bearer(headers: &HeaderMap) -> Result<&[u8], Problem> {
    let mut lines = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(line), None) = (lines.next(), lines.next()) else {
        return Err(unauthorized(
            "Send one `Authorization: Bearer …` with the token of admin.token_file.",
        ));
    };
    let line = line.as_bytes();
    let Some(space) = line.iter().position(|&byte| byte == b' ') else {
        return Err(unauthorized("The Authorization header is not `Bearer …`."));
    };
    let (scheme, token) = line.split_at(space);
    if scheme.eq_ignore_ascii_case(b"bearer") {
        Ok(token.trim_ascii())
    } else {
        Err(unauthorized("The Authorization header is not `Bearer …`."))
    }
}

fn writes_off(detail: impl Into<String>) -> Problem {
    Problem::new(
        StatusCode::FORBIDDEN,
        "writes-off",
        "Writes over the admin API are off",
        detail,
    )
}

fn unauthorized(detail: &str) -> Problem {
    Problem::new(
        StatusCode::UNAUTHORIZED,
        "unauthorized",
        "A write needs the admin token",
        detail,
    )
    .with_header(header::WWW_AUTHENTICATE, "Bearer realm=\"fencepost admin\"")
}
