//! Normal forms: texts of different spelling get one form in keys. The filters of a template use
//! them, and every `{host}`.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Folds case in all scripts, by characters: texts that any reader may think equal except for case
/// become equal (`Σ`, `σ` and `ς`; `ß`, `ẞ` and `ss`; the Kelvin sign and `k`). Merging too much
/// costs a refusal, merging too little a second key.
pub(crate) fn fold_case(text: &str) -> String {
    text.chars()
        .flat_map(char::to_lowercase)
        .flat_map(char::to_uppercase)
        .flat_map(char::to_lowercase)
        .collect()
}

/// A decimal integer of any size without its leading zeros and plus sign; `-0` is `0`.
pub(super) fn integer(text: &str) -> Result<String, String> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!(
            "`{}` is not a whole decimal number; send digits",
            text.escape_debug()
        ));
    }
    match digits.trim_start_matches('0') {
        "" => Ok("0".to_owned()),
        digits => Ok(format!("{sign}{digits}")),
    }
}

/// Accepts ASCII letters, digits, `-` and `_` only. Frameworks interpret names: they cut `.json`, a
/// dot or a space off the end, and take `+` for a space. A plain name has nothing to cut.
pub(super) fn plain(text: &str) -> Result<(), String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if text.is_empty() || !text.bytes().all(plain) {
        return Err(format!(
            "`{}` has more than letters, digits, `-` and `_`, and this route takes no more; send the \
             name alone",
            text.escape_debug()
        ));
    }
    Ok(())
}

/// The name in a Host header: lower case, without port and final dot (RFC 9110, 4.2.3 and 7.2).
pub(crate) fn host_name(host: &str) -> Result<String, String> {
    let wrong = || {
        format!(
            "`{}` is not a host; send `name` or `name:port`",
            host.escape_debug()
        )
    };
    let (name, port) = if let Some(rest) = host.strip_prefix('[') {
        let (address, port) = rest.split_once(']').ok_or_else(wrong)?;
        let address: Ipv6Addr = address.parse().map_err(|_| wrong())?;
        (format!("[{address}]"), port)
    } else {
        let (name, port) = host.split_at(host.find(':').unwrap_or(host.len()));
        let name = name.strip_suffix('.').unwrap_or(name);
        let inside = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
        if name.split('.').any(str::is_empty) || !name.bytes().all(inside) {
            return Err(wrong());
        }
        (name.to_ascii_lowercase(), port)
    };
    match port.strip_prefix(':') {
        None if port.is_empty() => Ok(name),
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => Ok(name),
        _ => Err(wrong()),
    }
}

/// Returns true if a Host header names an IP address or `localhost`. No other party can make these
/// names point to this machine (DNS rebinding).
pub(crate) fn is_address_or_localhost(host: &str) -> bool {
    host_name(host).is_ok_and(|name| {
        name == "localhost" || name.starts_with('[') || name.parse::<Ipv4Addr>().is_ok()
    })
}

#[cfg(test)]
mod tests;
