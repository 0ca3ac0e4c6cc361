//! The one form that texts of different spelling have in keys: what the filters of a template do,
//! and what every `{host}` goes through.

use std::net::Ipv6Addr;

/// Folds case in all scripts, by characters: what differs in case only, for any reader that knows
/// of case, comes out equal (`Σ`, `σ` and `ς`; `ß`, `ẞ` and `ss`; the Kelvin sign and `k`). Merging
/// too much costs a refusal, merging too little a second key.
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

/// Takes ASCII letters, digits, `-` and `_` only. Frameworks read more into a name than its text:
/// they cut `.json` off its end, or a dot, or a space, and take `+` for a space. A plain name has
/// nothing to cut.
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn case() {
        for (a, b) in [
            ("Order", "oRDER"),
            ("ΑΣ", "ας"),
            ("ΑΣ", "ασ"),
            ("STRASSE", "straße"),
            ("straẞe", "strasse"),
            ("É", "é"),
            ("\u{212a}", "k"),
            ("Ж", "ж"),
        ] {
            assert_eq!(fold_case(a), fold_case(b), "{a} {b}");
        }
        assert_eq!(fold_case("ABC-12"), "abc-12");
        assert_ne!(fold_case("a"), fold_case("b"));
    }

    #[test]
    fn folding_again_changes_nothing() {
        for sign in '\0'..='\u{1ffff}' {
            let text = sign.to_string();
            let folded = fold_case(&text);
            assert_eq!(fold_case(&folded), folded, "{text}");
            assert_eq!(fold_case(&text.to_uppercase()), folded, "{text}");
            assert_eq!(fold_case(&text.to_lowercase()), folded, "{text}");
        }
    }

    #[test]
    fn plain_names() {
        for text in [
            "7",
            "a",
            "Z",
            "-",
            "_",
            "007",
            "-7",
            "7f3b6c1e-0000-4000-8000-000000000000",
        ] {
            assert_eq!(plain(text), Ok(()), "{text}");
        }
        for text in [
            "",
            "7.json",
            "7.",
            ".7",
            "7 ",
            " 7",
            "7+",
            "+7",
            "7;x",
            "7,8",
            "7:8",
            "7~",
            "7%",
            "a/b",
            "é",
            "e\u{301}",
            "\u{212a}",
            "٤",
            "７",
            "7\u{200b}",
            "7\0",
            "7\n",
            "{7}",
            "7'",
        ] {
            assert!(plain(text).is_err(), "{text:?}");
        }
        for byte in 0..=u8::MAX {
            let text = format!("a{}", char::from(byte));
            let taken = byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            assert_eq!(plain(&text).is_ok(), taken, "{text:?}");
        }
    }

    #[test]
    fn integers() {
        for (text, expected) in [
            ("0", "0"),
            ("7", "7"),
            ("007", "7"),
            ("+7", "7"),
            ("-7", "-7"),
            ("-007", "-7"),
            ("-0", "0"),
            ("000", "0"),
            (
                "123456789012345678901234567890",
                "123456789012345678901234567890",
            ),
        ] {
            assert_eq!(integer(text).as_deref(), Ok(expected));
        }
        for text in [
            "", "+", "-", "--1", "+-1", "1.0", "1e3", "0x1", " 1", "1 ", "1_0", "٤", "a",
        ] {
            assert!(integer(text).is_err(), "{text}");
        }
    }

    #[test]
    fn hosts() {
        for (host, expected) in [
            ("example.com", "example.com"),
            ("Example.COM", "example.com"),
            ("example.com:80", "example.com"),
            ("example.com:", "example.com"),
            ("example.com.", "example.com"),
            ("example.com.:8080", "example.com"),
            ("127.0.0.1:7080", "127.0.0.1"),
            ("my_service", "my_service"),
            ("[::1]", "[::1]"),
            ("[0:0::1]:80", "[::1]"),
            ("[FE80::A]", "[fe80::a]"),
        ] {
            assert_eq!(host_name(host).as_deref(), Ok(expected));
        }
        for host in [
            "",
            ".",
            "a..b",
            ".a",
            "a b",
            "a@b",
            "a/b",
            "a%41",
            "é",
            "a:b",
            "a:80:81",
            "::1",
            "[::1",
            "[]",
            "[zz]",
            "[::1]80",
            "[::1]:x",
            "a,b",
            "example.com..",
        ] {
            assert!(host_name(host).is_err(), "{host}");
        }
    }

    proptest! {
        #[test]
        fn forms_are_final(text in "[-+0-9a-zA-Z.:\\[\\]]{0,12}") {
            for form in [integer, host_name] {
                if let Ok(normal) = form(&text) {
                    prop_assert_eq!(form(&normal), Ok(normal));
                }
            }
        }
    }
}
