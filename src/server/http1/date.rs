//! The `Date` of answers (RFC 9110, 6.6.1), written once a second in each thread.

use std::cell::RefCell;
use std::time::{Duration, SystemTime};

use crate::json_values::wall_clock;

thread_local! {
    /// The second, and its text.
    static LATEST: RefCell<(u64, String)> = const { RefCell::new((u64::MAX, String::new())) };
}

/// Writes the time of day.
pub(super) fn write(out: &mut Vec<u8>) {
    let now = wall_clock();
    let second = now.duration_since(SystemTime::UNIX_EPOCH);
    let second = second.map_or(0, |since| since.as_secs());
    LATEST.with_borrow_mut(|latest| {
        if latest.0 != second {
            let whole = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
            *latest = (second, httpdate::fmt_http_date(whole));
        }
        out.extend_from_slice(latest.1.as_bytes());
    });
}
