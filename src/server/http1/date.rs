//! The `Date` of answers (RFC 9110, 6.6.1), written once a second in each thread.

use std::cell::RefCell;
use std::time::SystemTime;

/// The second, and its text.
type Written = (u64, [u8; LENGTH]);

const LENGTH: usize = 29;

thread_local! {
    static LATEST: RefCell<Written> = const { RefCell::new((u64::MAX, [0; LENGTH])) };
}

/// Writes the time of day.
pub(super) fn write(out: &mut Vec<u8>) {
    #[expect(
        clippy::disallowed_methods,
        reason = "the clock on the wall is what a Date tells"
    )]
    let now = SystemTime::now();
    let now = now.duration_since(SystemTime::UNIX_EPOCH);
    let second = now.map_or(0, |now| now.as_secs());
    LATEST.with_borrow_mut(|latest| {
        if latest.0 != second {
            *latest = (second, text(second));
        }
        out.extend_from_slice(&latest.1);
    });
}

/// A second after 1970 as an IMF-fixdate.
fn text(second: u64) -> [u8; LENGTH] {
    const DAYS: &[u8] = b"ThuFriSatSunMonTueWed";
    const MONTHS: &[u8] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
    let (days, of_day) = (second / 86_400, second % 86_400);
    let (year, month, day) = date(days);
    let mut text = *b"Thu, 01 Jan 1970 00:00:00 GMT";
    let name = |names: &[u8], at: u64| {
        let at = usize::try_from(at).unwrap_or(0) * 3;
        [names[at], names[at + 1], names[at + 2]]
    };
    text[..3].copy_from_slice(&name(DAYS, days % 7));
    text[8..11].copy_from_slice(&name(MONTHS, month - 1));
    for (at, number) in [
        (5, day),
        (12, year / 100),
        (14, year % 100),
        (17, of_day / 3600),
        (20, of_day / 60 % 60),
        (23, of_day % 60),
    ] {
        text[at] = digit(number / 10);
        text[at + 1] = digit(number % 10);
    }
    text
}

fn digit(number: u64) -> u8 {
    b'0' + u8::try_from(number % 10).unwrap_or(0)
}

/// Year, month and day of a day after 1970-01-01. Years begin in March here, so that a leap day is
/// the last day of its year.
fn date(days: u64) -> (u64, u64, u64) {
    const FOUR_CENTURIES: u64 = 146_097;
    /// From 0000-03-01.
    const TO_1970: u64 = 719_468;
    let days = days + TO_1970;
    let (era, day) = (days / FOUR_CENTURIES, days % FOUR_CENTURIES);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let of_month = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_as_rfc_9110_has_them() {
        for (second, expected) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (1_709_251_199, "Thu, 29 Feb 2024 23:59:59 GMT"),
            (1_735_689_599, "Tue, 31 Dec 2024 23:59:59 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
        ] {
            assert_eq!(text(second), expected.as_bytes(), "{second}");
        }
    }
}
