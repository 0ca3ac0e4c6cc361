//! The timeline: one line per event, with a column per actor and an arrow from one actor to
//! another. Writing never fails: a reader that has gone away (a closed pipe) must not change the
//! demo's result.

use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// An actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    A,
    B,
    Lock,
    /// The proxy between the workers and the API, if there is one.
    Middle,
    Api,
}

/// Each lane with the column of its lifeline, and its colour.
const LANES: [(Lane, usize, &str); 5] = [
    (Lane::A, 1, "33"),
    (Lane::B, 7, "36"),
    (Lane::Lock, 14, "35"),
    (Lane::Middle, 23, "34"),
    (Lane::Api, 32, "37"),
];

/// The width of all lanes.
const LANES_WIDTH: usize = 35;

// Colours, as SGR parameters.
const DIM: &str = "2";
const BOLD: &str = "1";
pub(super) const PLAIN: &str = "";
/// Of a refusal that protects.
pub(super) const GOOD: &str = "32";
/// Of harm done.
pub(super) const BAD: &str = "31";

/// Prints one line of text, or several.
pub(super) fn print(text: &str) {
    // Fails on a closed pipe, but the stories still have to be judged.
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Standard output.
#[derive(Clone, Copy)]
pub(super) struct Screen {
    colour: bool,
}

impl Screen {
    /// In colour if it is a terminal and `NO_COLOR` is not set.
    pub(super) fn stdout() -> Self {
        let declined = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        let colour = std::io::stdout().is_terminal() && !declined && !dumb;
        Self { colour }
    }

    /// A heading, with an empty line above it.
    pub(super) fn heading(self, text: &str) {
        print(&format!("\n{}", self.paint(BOLD, text)));
    }

    fn paint(self, colour: &str, text: &str) -> String {
        if !self.colour || colour.is_empty() || text.is_empty() {
            return text.to_owned();
        }
        format!("\x1b[{colour}m{text}\x1b[0m")
    }

    /// A story's end: the expected and the actual result. Returns `good`.
    pub(super) fn verdict(self, good: bool, expected: &str, found: &str) -> bool {
        let (sign, colour) = if good { ('✓', GOOD) } else { ('✗', BAD) };
        let text = format!("  {sign} expected {expected}; found {found}");
        print(&self.paint(colour, &text));
        good
    }
}

/// One story's timeline. Cheap to clone; clones share the clock.
#[derive(Clone)]
pub(super) struct Timeline {
    screen: Screen,
    start: Instant,
    /// The name of the proxy between the workers and the API; empty if there is none.
    middle: &'static str,
    /// A's lifeline is dotted while it is stalled.
    stalled: Arc<AtomicBool>,
}

impl Timeline {
    /// Starts the clock and prints the lanes' names.
    pub(super) fn start(screen: Screen, middle: &'static str) -> Self {
        let timeline = Self {
            screen,
            start: Instant::now(),
            middle,
            stalled: Arc::default(),
        };
        print(&screen.paint(BOLD, timeline.names().trim_end()));
        timeline
    }

    /// Something that one actor does to another, or says to it.
    pub(super) fn arrow(&self, from: Lane, to: Lane, colour: &str, text: &str) {
        print(&self.render(self.start.elapsed(), from, to, colour, text));
    }

    /// Something that happens to one actor.
    pub(super) fn note(&self, at: Lane, colour: &str, text: &str) {
        self.arrow(at, at, colour, text);
    }

    /// From now on A stands still, or goes on.
    pub(super) fn set_stalled(&self, stalled: bool) {
        self.stalled.store(stalled, Ordering::Relaxed);
    }

    /// The first actor that a worker's writes come to.
    pub(super) fn entry(&self) -> Lane {
        if self.middle.is_empty() {
            Lane::Api
        } else {
            Lane::Middle
        }
    }

    /// The lanes' names, each over its lifeline.
    fn names(&self) -> String {
        format!("{:11}A     B    lock{:^15}API", "", self.middle)
    }

    fn render(&self, elapsed: Duration, from: Lane, to: Lane, colour: &str, text: &str) -> String {
        let mut cells = [(' ', PLAIN); LANES_WIDTH];
        for (lane, column, _) in LANES {
            let lifeline = match lane {
                Lane::Middle if self.middle.is_empty() => ' ',
                Lane::A if self.stalled.load(Ordering::Relaxed) => '┊',
                _ => '│',
            };
            cells[column] = (lifeline, DIM);
        }
        let (_, start, actor) = LANES[from as usize];
        let (_, end, _) = LANES[to as usize];
        cells[start.min(end)..=start.max(end)].fill(('─', actor));
        cells[end] = (if start < end { '▶' } else { '◀' }, actor);
        cells[start] = ('●', actor);

        let mut line = format!("{:7.2} s ", elapsed.as_secs_f64());
        for run in cells.chunk_by(|left, right| left.1 == right.1) {
            let letters: String = run.iter().map(|cell| cell.0).collect();
            line += &self.screen.paint(run[0].1, &letters);
        }
        line + "  " + &self.screen.paint(colour, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(colour: bool, middle: &'static str) -> Timeline {
        Timeline::start(Screen { colour }, middle)
    }

    #[tokio::test]
    async fn arrows_run_from_who_acts_to_whom() {
        let line = timeline(false, "fencepost");
        assert_eq!(
            line.names().trim_end(),
            "           A     B    lock   fencepost   API"
        );
        let at = Duration::from_millis(1234);
        assert_eq!(
            line.render(at, Lane::A, Lane::Lock, PLAIN, "acquire"),
            "   1.23 s  ●────────────▶        │        │    acquire"
        );
        assert_eq!(
            line.render(at, Lane::Middle, Lane::B, GOOD, "412"),
            "   1.23 s  │     ◀───────────────●        │    412"
        );
        line.set_stalled(true);
        assert_eq!(
            line.render(at, Lane::Api, Lane::Api, PLAIN, "stalls"),
            "   1.23 s  ┊     │      │        │        ●    stalls"
        );
        let bare = timeline(false, "");
        assert_eq!(
            bare.render(at, Lane::B, Lane::B, PLAIN, "x"),
            "   1.23 s  │     ●      │                 │    x"
        );
    }

    #[tokio::test]
    async fn colour_is_escape_codes_or_none_at_all() {
        let at = Duration::ZERO;
        let plain = timeline(false, "").render(at, Lane::A, Lane::Api, BAD, "x");
        assert!(!plain.contains('\x1b'), "{plain:?}");
        let coloured = timeline(true, "").render(at, Lane::A, Lane::Api, BAD, "x");
        assert!(coloured.ends_with("\x1b[31mx\x1b[0m"), "{coloured:?}");
    }

    #[test]
    fn a_lane_is_found_by_its_number() {
        for (number, (lane, ..)) in LANES.into_iter().enumerate() {
            assert_eq!(lane as usize, number);
        }
    }
}
