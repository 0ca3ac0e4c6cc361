//! [`Expected`]: the statuses of the upstream that a drill expects.

use std::fmt;
use std::ops::RangeInclusive;

use reqwest::StatusCode;

/// Statuses that are expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Expected(RangeInclusive<u16>);

impl Expected {
    pub(super) fn has(&self, status: StatusCode) -> bool {
        self.0.contains(&status.as_u16())
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = (self.0.start(), self.0.end());
        if first == last {
            write!(f, "{first}")
        } else {
            write!(f, "{first} to {last}")
        }
    }
}

/// Reads `--expect`.
pub(super) fn expected(text: &str) -> Result<Expected, String> {
    let wrong = "write a status from 200 to 599, or a class from 2xx to 5xx";
    let (number, width) = match text.strip_suffix("xx") {
        Some(class) => (class, 100_u16),
        None => (text, 1),
    };
    let first: u16 = number.parse().map_err(|_| wrong)?;
    let first = first.saturating_mul(width);
    let range = first..=first.saturating_add(width - 1);
    if *range.start() < 200 || *range.end() > 599 {
        return Err(wrong.into());
    }
    Ok(Expected(range))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_and_a_class_are_read() {
        for (text, has, has_not) in [("204", 204, 200), ("2xx", 299, 300), ("4xx", 404, 399)] {
            let range = expected(text).expect(text);
            let status = |number| StatusCode::from_u16(number).expect("a status");
            assert!(
                range.has(status(has)) && !range.has(status(has_not)),
                "{text}"
            );
        }
        for wrong in ["", "xx", "1xx", "6xx", "100", "600", "-2xx", "20x", "2000"] {
            assert!(expected(wrong).is_err(), "{wrong}");
        }
    }
}
