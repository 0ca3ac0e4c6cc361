//! The timeline: one line per event, with a column per actor and an arrow from one actor to
//! another. Writing never fails: a reader that has gone away (a closed pipe) must not change the
//! demo's result. Headings are bold and verdicts coloured on a terminal, unless `NO_COLOR` is set.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use tokio::time::Instant;

/// An actor, and the column of its lifeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    A = 1,
    B = 7,
    Lock = 14,
    /// The proxy between the workers and the API, if there is one.
    Middle = 23,
    Api = 32,
}

/// The width of all lanes.
const LANES_WIDTH: usize = 35;

/// Prints one line of text, or several.
pub(super) fn print(text: &str) {
    // Fails on a closed pipe, but the stories still have to be judged.
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// The text in a style of ECMA-48 (SGR).
fn paint(style: u8, text: &str) -> String {
    if std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        return format!("\x1b[{style}m{text}\x1b[0m");
    }
    text.to_owned()
}

/// A heading, with an empty line above it.
pub(super) fn heading(text: &str) {
    print(&format!("\n{}", paint(1, text)));
}

/// A story's end: the expected and the actual result. Returns `good`.
pub(super) fn verdict(good: bool, expected: &str, found: &str) -> bool {
    let (sign, green_or_red) = if good { ('✓', 32) } else { ('✗', 31) };
    let text = format!("  {sign} expected {expected}; found {found}");
    print(&paint(green_or_red, &text));
    good
}

/// One story's timeline. Copies share the clock.
#[derive(Clone, Copy)]
pub(super) struct Timeline {
    start: Instant,
    /// The name of the proxy between the workers and the API; empty if there is none.
    middle: &'static str,
}

impl Timeline {
    /// Starts the clock and prints the lanes' names.
    pub(super) fn start(middle: &'static str) -> Self {
        let timeline = Self {
            start: Instant::now(),
            middle,
        };
        print(timeline.names().trim_end());
        timeline
    }

    /// Something that one actor does to another, or says to it.
    pub(super) fn arrow(&self, from: Lane, to: Lane, text: &str) {
        print(&self.render(self.start.elapsed(), from, to, text));
    }

    /// Something that happens to one actor.
    pub(super) fn note(&self, at: Lane, text: &str) {
        self.arrow(at, at, text);
    }

    /// The first actor that a worker's writes come to.
    pub(super) fn entry(&self) -> Lane {
        [Lane::Middle, Lane::Api][usize::from(self.middle.is_empty())]
    }

    /// The lanes' names, each over its lifeline.
    fn names(&self) -> String {
        format!("{:11}A     B    lock{:^15}API", "", self.middle)
    }

    fn render(&self, elapsed: Duration, from: Lane, to: Lane, text: &str) -> String {
        let mut cells = [' '; LANES_WIDTH];
        for lane in [Lane::A, Lane::B, Lane::Lock, Lane::Middle, Lane::Api] {
            if lane != Lane::Middle || !self.middle.is_empty() {
                cells[lane as usize] = '│';
            }
        }
        let (start, end) = (from as usize, to as usize);
        cells[start.min(end)..=start.max(end)].fill('─');
        cells[end] = if start < end { '▶' } else { '◀' };
        cells[start] = '●';
        let lanes = String::from_iter(cells);
        format!("{:7.2} s {lanes}  {text}", elapsed.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn arrows_run_from_who_acts_to_whom() {
        let line = Timeline::start("fencepost");
        assert_eq!(
            line.names().trim_end(),
            "           A     B    lock   fencepost   API"
        );
        let at = Duration::from_millis(1234);
        assert_eq!(
            line.render(at, Lane::A, Lane::Lock, "acquire"),
            "   1.23 s  ●────────────▶        │        │    acquire"
        );
        assert_eq!(
            line.render(at, Lane::Middle, Lane::B, "412"),
            "   1.23 s  │     ◀───────────────●        │    412"
        );
        assert_eq!(
            line.render(at, Lane::Api, Lane::Api, "stalls"),
            "   1.23 s  │     │      │        │        ●    stalls"
        );
        let bare = Timeline::start("");
        assert_eq!(
            bare.render(at, Lane::B, Lane::B, "x"),
            "   1.23 s  │     ●      │                 │    x"
        );
    }
}
