//! Tokens, in all formats: the parser against a second reading of its definition, and against the
//! spellings that may never pass.

use fencepost::routing::{Token, TokenFormat};

use crate::{Seen, Verdict, hold, target};

target!("token", &real);

/// The function under test: the number, or the text for the client.
pub type Parse = dyn Fn(TokenFormat, &[u8]) -> Result<i64, String>;

const FORMATS: [TokenFormat; 4] = [
    TokenFormat::Decimal,
    TokenFormat::Hex,
    TokenFormat::AfterHash,
    TokenFormat::PrefixHex16,
];

/// Characters that may stand neither before a token nor behind it. None of them is white space of
/// HTTP.
const STRANGERS: [&[u8]; 13] = [
    b"+",
    b"-",
    b"\xa0",
    b"\xc2\xa0",
    b"\xef\xbb\xbf",
    b"\x0b",
    b"\x0c",
    b"\n",
    b"\r",
    b"\0",
    b"\"",
    b"'",
    b"_",
];

fn real(format: TokenFormat, raw: &[u8]) -> Result<i64, String> {
    format.parse(raw).map(Token::get)
}

pub fn check_of(parse: &Parse, raw: &[u8]) -> Verdict {
    let mut seen = Seen::Refused;
    for format in FORMATS {
        let number = match parse(format, raw) {
            Ok(number) => number,
            Err(message) => {
                hold!(
                    expected(format, raw).is_none(),
                    "{format:?} refuses {}: {message}",
                    raw.escape_ascii()
                );
                hold!(
                    message.contains("expected: ") && message.contains(format.as_str()),
                    "a refusal that does not say what is expected: {message}"
                );
                continue;
            }
        };
        seen = Seen::Accepted;
        let shown = raw.escape_ascii();
        hold!(
            expected(format, raw) == Some(number),
            "{format:?} reads {shown} as {number}, and it is {:?}",
            expected(format, raw)
        );
        canonical(parse, number)?;
        let text = trim(raw);
        for around in [&b" "[..], b"\t", b" \t "] {
            let wide = [around, text, around].concat();
            hold!(
                parse(format, &wide) == Ok(number),
                "{format:?}: white space around {shown} changes it"
            );
        }
        for stranger in STRANGERS {
            let before = [stranger, text].concat();
            // A name may stand before a `#`, and whatever one likes behind a prefix.
            hold!(
                format == TokenFormat::AfterHash || parse(format, &before).is_err(),
                "{format:?} takes {}",
                before.escape_ascii()
            );
            let behind = [text, stranger].concat();
            hold!(
                format == TokenFormat::PrefixHex16 || parse(format, &behind).is_err(),
                "{format:?} takes {}",
                behind.escape_ascii()
            );
        }
        // As an intermediary joins two lines of one field.
        for joint in [&b","[..], b", "] {
            let twice = [text, joint, text].concat();
            hold!(
                parse(format, &twice).is_err(),
                "{format:?} takes a list: {}",
                twice.escape_ascii()
            );
        }
    }
    Ok(seen)
}

/// The text that goes upstream and into the store is read back as the same number, and orders as it
/// did.
fn canonical(parse: &Parse, number: i64) -> Result<(), String> {
    let Some(token) = Token::new(number) else {
        return Err(format!("{number} is a token"));
    };
    let text = token.to_string();
    hold!(
        text == "0" || text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0'),
        "{text} is not canonical"
    );
    hold!(
        parse(TokenFormat::Decimal, text.as_bytes()) == Ok(number),
        "{text} is not read back"
    );
    if let Some(next) = number.checked_add(1) {
        let later = parse(TokenFormat::Decimal, next.to_string().as_bytes());
        hold!(
            later.is_ok_and(|later| later > number && Token::new(later) > Some(token)),
            "{next} is not newer than {number}"
        );
    }
    Ok(())
}

/// The formats' definitions once more, by other means.
fn expected(format: TokenFormat, raw: &[u8]) -> Option<i64> {
    let text = trim(raw);
    match format {
        TokenFormat::Decimal => decimal(text),
        TokenFormat::Hex => {
            let text = std::str::from_utf8(text).ok()?;
            let digits = text
                .strip_prefix("0x")
                .or_else(|| text.strip_prefix("0X"))
                .unwrap_or(text);
            hexadecimal(digits)
        }
        TokenFormat::AfterHash => {
            if text.iter().any(|b| *b == b',' || *b < 0x20 || *b == 0x7f) {
                return None;
            }
            let mut pieces = text.split(|b| *b == b'#');
            let last = pieces.next_back()?;
            pieces.next()?;
            decimal(last)
        }
        TokenFormat::PrefixHex16 => {
            let second = |piece: &[u8]| prefix(trim(piece)).is_some();
            if text.split(|b| *b == b',').skip(1).any(second) {
                return None;
            }
            hexadecimal(prefix(text)?)
        }
    }
}

fn trim(raw: &[u8]) -> &[u8] {
    let inside = |b: &u8| *b != b' ' && *b != b'\t';
    match (raw.iter().position(inside), raw.iter().rposition(inside)) {
        (Some(first), Some(last)) => &raw[first..=last],
        _ => b"",
    }
}

fn decimal(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    let digits = (1..=19).contains(&text.len()) && text.chars().all(|c| c.is_ascii_digit());
    i64::try_from(text.parse::<u128>().ok().filter(|_| digits)?).ok()
}

fn hexadecimal(text: &str) -> Option<i64> {
    let digits = (1..=16).contains(&text.len()) && text.chars().all(|c| c.is_ascii_hexdigit());
    i64::try_from(u128::from_str_radix(text, 16).ok().filter(|_| digits)?).ok()
}

fn prefix(text: &[u8]) -> Option<&str> {
    let first = std::str::from_utf8(text.get(..16)?).ok()?;
    first
        .chars()
        .all(|c| c.is_ascii_hexdigit())
        .then_some(first)
}
