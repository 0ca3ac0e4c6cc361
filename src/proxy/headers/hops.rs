//! `Max-Forwards` (RFC 9110, 7.6.2): how often an OPTIONS or TRACE may be forwarded. TRACE is never
//! forwarded here, so it is about OPTIONS.

use http::header::MAX_FORWARDS;
use http::{HeaderMap, HeaderValue};

use super::fields::{FieldError, single};

/// The number of times that the request may still be forwarded; `None`: no limit.
pub fn left(headers: &HeaderMap) -> Result<Option<u32>, FieldError> {
    let Some(line) = single(headers, &MAX_FORWARDS)? else {
        return Ok(None);
    };
    let digits = line.as_bytes().trim_ascii();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(FieldError::Malformed {
            name: MAX_FORWARDS,
            wanted: "a decimal number",
        });
    }
    let number = digits.iter().fold(0_u32, |number, digit| {
        let digit = u32::from(digit - b'0');
        number.saturating_mul(10).saturating_add(digit)
    });
    Ok(Some(number))
}

/// Counts this proxy. A number that is larger than it can count becomes the largest.
pub fn count(headers: &mut HeaderMap) {
    if let Ok(Some(left)) = left(headers) {
        headers.insert(MAX_FORWARDS, HeaderValue::from(left.saturating_sub(1)));
    }
}

#[test]
fn each_hop_is_counted() {
    let mut headers = HeaderMap::new();
    assert_eq!(left(&headers), Ok(None));
    count(&mut headers);
    assert!(headers.is_empty());
    for (line, number) in [
        ("0", 0),
        ("007", 7),
        (" 1 ", 1),
        ("99999999999999999999", u32::MAX),
    ] {
        headers.insert(MAX_FORWARDS, HeaderValue::from_static(line));
        assert_eq!(left(&headers), Ok(Some(number)), "{line}");
        count(&mut headers);
        assert_eq!(left(&headers), Ok(Some(number.saturating_sub(1))), "{line}");
    }
    for line in ["", "-1", "+1", "1.0", "1, 2", "x", "0x1"] {
        headers.insert(MAX_FORWARDS, HeaderValue::from_static(line));
        assert!(left(&headers).is_err(), "{line}");
    }
    headers.append(MAX_FORWARDS, HeaderValue::from_static("1"));
    assert!(left(&headers).is_err());
}
