//! The charts: bars in SVG, with their numbers in words for those who do not see them.

use std::fmt::Write as _;

use maud::{Markup, html};

use super::history::HOUR;

const WIDTH: usize = 600;
const HEIGHT: usize = 60;

/// Bars for the last hour, the latest at the right. `counts`: the oldest first, per half minute.
pub(super) fn bars(title: &str, class: &str, counts: &[u64]) -> Markup {
    let most = counts.iter().copied().max().unwrap_or(0);
    let total: u64 = counts.iter().sum();
    let per_second = rate(most);
    let words = format!(
        "{title}: {total} in {} min, at most {per_second} per second",
        counts.len().div_ceil(2)
    );
    html! {
        figure {
            figcaption { (title) " " span.num { (total) } small { " max " (per_second) "/s" } }
            svg class={ "chart " (class) } viewBox={ "0 0 " (WIDTH) " " (HEIGHT) }
                preserveAspectRatio="none" role="img" aria-label=(words)
            {
                path d=(path(counts, most)) {}
            }
        }
    }
}

/// The outline of the bars. A count that is not 0 is seen, however small it is.
fn path(counts: &[u64], most: u64) -> String {
    let step = WIDTH / HOUR;
    let mut path = String::new();
    let from_right = counts.iter().rev().take(HOUR).enumerate();
    for (index, count) in from_right.filter(|(_, count)| **count > 0) {
        let height = u64::try_from(HEIGHT).unwrap_or(0);
        let tall = (count.saturating_mul(height) / most.max(1)).max(2);
        let x = WIDTH - (index + 1) * step;
        let _ = write!(path, "M{x} {HEIGHT}v-{tall}h{}v{tall}z", step - 1);
    }
    path
}

/// Requests per second, from a count of half a minute.
fn rate(count: u64) -> String {
    let tenths = count.saturating_mul(10).div_ceil(30);
    match (tenths / 10, tenths % 10) {
        (whole, _) if whole >= 10 => whole.to_string(),
        (whole, 0) => whole.to_string(),
        (whole, tenth) => format!("{whole}.{tenth}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_is_at_the_right_and_the_highest_fills_the_chart() {
        let drawn = path(&[0, 30, 60], 60);
        assert_eq!(drawn, "M595 60v-60h4v60zM590 60v-30h4v30z");
        assert_eq!(path(&[], 0), "");
        assert!(
            path(&[1, 1_000_000], 1_000_000).contains("v-2h"),
            "1 is seen"
        );
        let many = vec![1; HOUR + 1];
        assert_eq!(path(&many, 1).matches('M').count(), HOUR);
    }

    #[test]
    fn it_is_told_in_words() {
        let text = bars("Refused", "refused", &[0, 3, 0, 300]).into_string();
        assert!(
            text.contains("Refused: 303 in 2 min, at most 10 per second"),
            "{text}"
        );
        assert_eq!(
            (rate(0), rate(1), rate(45)),
            ("0".into(), "0.1".into(), "1.5".into())
        );
    }
}
