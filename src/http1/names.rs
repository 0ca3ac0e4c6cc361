//! Names of fields, in lower case, and their usual spelling.

pub const ALLOW: &str = "allow";
pub const CONNECTION: &str = "connection";
pub const CONTENT_ENCODING: &str = "content-encoding";
pub const CONTENT_LENGTH: &str = "content-length";
pub const CONTENT_TYPE: &str = "content-type";
pub const COOKIE: &str = "cookie";
pub const DATE: &str = "date";
pub const EXPECT: &str = "expect";
pub const FORWARDED: &str = "forwarded";
pub const HOST: &str = "host";
pub const RETRY_AFTER: &str = "retry-after";
pub const TE: &str = "te";
pub const TRAILER: &str = "trailer";
pub const TRANSFER_ENCODING: &str = "transfer-encoding";
pub const UPGRADE: &str = "upgrade";
pub const USER_AGENT: &str = "user-agent";
pub const VIA: &str = "via";
pub const WWW_AUTHENTICATE: &str = "www-authenticate";

/// Writes a name in `Title-Case`.
pub(crate) fn title(name: &str, out: &mut Vec<u8>) {
    let begin = out.len();
    out.extend_from_slice(name.as_bytes());
    let mut before = b'-';
    for byte in &mut out[begin..] {
        if before == b'-' {
            byte.make_ascii_uppercase();
        }
        before = *byte;
    }
}
