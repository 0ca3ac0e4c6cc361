//! The timeline: one line per event, with a column per actor and an arrow from one actor to
//! another. Writing never fails: a reader that has gone away (a closed pipe) must not change the
//! demo's result. Colours are for a terminal, unless `NO_COLOR` is set.

use std::io::Write as _;
use std::time::Duration;

use console::Style;
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
    (Lane::A, 1, "yellow"),
    (Lane::B, 7, "cyan"),
    (Lane::Lock, 14, "magenta"),
    (Lane::Middle, 23, "blue"),
    (Lane::Api, 32, "white"),
];

/// The width of all lanes.
const LANES_WIDTH: usize = 35;

// Styles, by their names.
const DIM: &str = "dim";
const BOLD: &str = "bold";
pub(super) const PLAIN: &str = "";
/// Of a refusal that protects.
pub(super) const GOOD: &str = "green";
/// Of harm done.
pub(super) const BAD: &str = "red";

/// Prints one line of text, or several.
pub(super) fn print(text: &str) {
    // Fails on a closed pipe, but the stories still have to be judged.
    let _ = writeln!(std::io::stdout(), "{text}");
}

fn paint(style: &str, text: &str) -> String {
    let style = Style::from_dotted_str(style);
    style.apply_to(text).to_string()
}

/// A heading, with an empty line above it.
pub(super) fn heading(text: &str) {
    print(&format!("\n{}", paint(BOLD, text)));
}

/// A story's end: the expected and the actual result. Returns `good`.
pub(super) fn verdict(good: bool, expected: &str, found: &str) -> bool {
    let (sign, style) = if good { ('✓', GOOD) } else { ('✗', BAD) };
    let text = format!("  {sign} expected {expected}; found {found}");
    print(&paint(style, &text));
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
        print(&paint(BOLD, timeline.names().trim_end()));
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
            line += &paint(run[0].1, &letters);
        }
        line + "  " + &paint(colour, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn arrows_run_from_who_acts_to_whom() {
        console::set_colors_enabled(false);
        let line = Timeline::start("fencepost");
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
        assert_eq!(
            line.render(at, Lane::Api, Lane::Api, PLAIN, "stalls"),
            "   1.23 s  │     │      │        │        ●    stalls"
        );
        let bare = Timeline::start("");
        assert_eq!(
            bare.render(at, Lane::B, Lane::B, PLAIN, "x"),
            "   1.23 s  │     ●      │                 │    x"
        );

        // Colour is escape codes or none at all.
        let plain = bare.render(at, Lane::A, Lane::Api, BAD, "x");
        assert!(!plain.contains('\x1b'), "{plain:?}");
        console::set_colors_enabled(true);
        let coloured = bare.render(at, Lane::A, Lane::Api, BAD, "x");
        assert!(coloured.ends_with("\x1b[31mx\x1b[0m"), "{coloured:?}");
    }

    #[test]
    fn a_lane_is_found_by_its_number() {
        for (number, (lane, ..)) in LANES.into_iter().enumerate() {
            assert_eq!(lane as usize, number);
        }
    }
}
