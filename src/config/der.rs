//! The end of a certificate's validity. rustls verifies it and does not tell it.

use std::time::SystemTime;

const SEQUENCE: u8 = 0x30;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The time when a certificate expires, in seconds since 1970 (RFC 5280, 4.1).
pub(super) fn expiry(certificate: &[u8]) -> Option<i64> {
    let mut whole = certificate;
    let mut fields = content(&mut content(&mut whole)?)?;
    // The version is optional, and has a tag of its own.
    if element(&mut fields)?.0 == 0xa0 {
        element(&mut fields)?;
    }
    let [_algorithm, _issuer] = [element(&mut fields)?, element(&mut fields)?];
    let mut validity = content(&mut fields)?;
    let [_begin, end] = [element(&mut validity)?, element(&mut validity)?];
    time(end)
}

/// Takes the next element, a sequence.
fn content<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (tag, content) = element(bytes)?;
    (tag == SEQUENCE).then_some(content)
}

/// Takes the next element: its tag and its content.
fn element<'a>(bytes: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        0x81..=0x84 => {
            let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let bytes = length.iter().map(|byte| usize::from(*byte));
            (bytes.fold(0, |length, byte| length << 8 | byte), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    *bytes = rest;
    Some((*tag, content))
}

/// `YYMMDDhhmmssZ` or, as a `GeneralizedTime`, `YYYYMMDDhhmmssZ`.
fn time((tag, text): (u8, &[u8])) -> Option<i64> {
    let text = str::from_utf8(text).ok()?;
    let text = match tag {
        UTC_TIME if text < "50" => format!("20{text}"),
        UTC_TIME => format!("19{text}"),
        GENERALIZED_TIME => text.to_owned(),
        _ => return None,
    };
    let (date, time) = text.split_at_checked(8)?;
    let (year, month, day) = (date.get(..4)?, date.get(4..6)?, date.get(6..)?);
    let (hour, minute, second) = (time.get(..2)?, time.get(2..4)?, time.get(4..)?);
    let text = format!("{year}-{month}-{day}T{hour}:{minute}:{second}");
    let time = humantime::parse_rfc3339(&text).ok()?;
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    i64::try_from(since.map_or(0, |since| since.as_secs())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_both_kinds() {
        for (tag, text, expected) in [
            (UTC_TIME, "700101000001Z", Some(1)),
            (UTC_TIME, "250131120000Z", Some(1_738_324_800)),
            (GENERALIZED_TIME, "20250131120000Z", Some(1_738_324_800)),
            (GENERALIZED_TIME, "99991231235959Z", Some(253_402_300_799)),
            (UTC_TIME, "250131120000", None),
            (UTC_TIME, "2501311200Z", None),
            (UTC_TIME, "251331120000Z", None),
            (0x04, "250131120000Z", None),
        ] {
            assert_eq!(time((tag, text.as_bytes())), expected, "{text}");
        }
    }

    #[test]
    fn what_is_cut_off_has_no_dates() {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::default();
        params.not_after = rcgen::date_time_ymd(2060, 1, 31);
        let whole = params.self_signed(&key).expect("a certificate");
        let whole = whole.der();
        assert_eq!(expiry(whole), Some(2_842_732_800));
        for length in 0..whole.len() {
            assert_eq!(expiry(&whole[..length]), None);
        }
        assert_eq!(expiry(&[SEQUENCE, 0x84, 0xff, 0xff, 0xff, 0xff]), None);
    }
}
