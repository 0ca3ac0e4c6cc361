//! The timeline: one line per event, with a column per actor and an arrow from one actor to
//! another. Writing never fails: a reader that has gone away (a closed pipe) must not change the
//! demo's result.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// An actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    A,
    B,
    Lock,
    /// The proxy between the workers and the API, if there is one.
    Middle,
    Api,
}

impl Lane {
    const ALL: [Self; 5] = [Self::A, Self::B, Self::Lock, Self::Middle, Self::Api];

    /// The column of its lifeline.
    const fn column(self) -> usize {
        match self {
            Self::A => 1,
            Self::B => 7,
            Self::Lock => 14,
            Self::Middle => 23,
            Self::Api => 32,
        }
    }

    /// SGR parameters.
    const fn colour(self) -> &'static str {
        match self {
            Self::A => "33",
            Self::B => "36",
            Self::Lock => "35",
            Self::Middle => "34",
            Self::Api => "37",
        }
    }
}

/// The width of all lanes.
const LANES_WIDTH: usize = 35;
const DIM: &str = "2";
const GOOD: &str = "32";
const BAD: &str = "31";
const BOLD: &str = "1";
const PLAIN: &str = "";

/// The meaning of a line's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    /// A refusal that protects.
    Good,
    /// Harm done.
    Bad,
}

/// Standard output, or a stand-in.
pub struct Screen {
    /// Held for one write; never across an await.
    out: Mutex<Box<dyn Write + Send>>,
    colour: bool,
}

impl Screen {
    /// Standard output, in colour if it is a terminal and `NO_COLOR` is not set.
    pub fn stdout() -> Self {
        let declined = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        let colour = std::io::stdout().is_terminal() && !declined && !dumb;
        Self {
            out: Mutex::new(Box::new(std::io::stdout())),
            colour,
        }
    }

    /// One line of text.
    pub fn line(&self, text: &str) {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        // Fails on a closed pipe, but the stories still have to be judged.
        let _ = writeln!(out, "{text}").and_then(|()| out.flush());
    }

    /// A heading, with an empty line above it.
    pub fn heading(&self, text: &str) {
        self.line("");
        self.line(&self.paint(BOLD, text));
    }

    /// A story's end: the expected and the found result.
    pub fn verdict(&self, good: bool, expected: &str, found: &str) {
        let (sign, colour) = if good { ("✓", GOOD) } else { ("✗", BAD) };
        let line = format!("  {sign} expected {expected}; found {found}");
        self.line(&self.paint(colour, &line));
    }

    fn paint(&self, sgr: &str, text: &str) -> String {
        if !self.colour || sgr.is_empty() || text.is_empty() {
            return text.to_owned();
        }
        format!("\x1b[{sgr}m{text}\x1b[0m")
    }
}

/// One story's timeline. Cheap to clone; clones share the clock.
#[derive(Clone)]
pub struct Timeline {
    screen: Arc<Screen>,
    start: Instant,
    /// The name of the middle column; empty if it has no actor.
    middle: &'static str,
    /// A's lifeline is dotted while it is stalled.
    stalled: Arc<AtomicBool>,
}

impl Timeline {
    /// Starts the clock and prints the lanes' names.
    pub fn start(screen: &Arc<Screen>, middle: &'static str) -> Self {
        let line = Self {
            screen: Arc::clone(screen),
            start: Instant::now(),
            middle,
            stalled: Arc::new(AtomicBool::new(false)),
        };
        line.screen
            .line(&line.screen.paint(BOLD, line.names().trim_end()));
        line
    }

    /// Something that one actor does to another, or says to it.
    pub fn arrow(&self, from: Lane, to: Lane, tone: Tone, text: &str) {
        self.screen
            .line(&self.render(self.start.elapsed(), from, to, tone, text));
    }

    /// Something that happens to one actor.
    pub fn note(&self, at: Lane, tone: Tone, text: &str) {
        self.arrow(at, at, tone, text);
    }

    /// From now on A stands still, or goes on.
    pub fn set_stalled(&self, stalled: bool) {
        self.stalled.store(stalled, Ordering::Relaxed);
    }

    fn names(&self) -> String {
        let mut row = [' '; LANES_WIDTH];
        let names = [
            (Lane::A, "A"),
            (Lane::B, "B"),
            (Lane::Lock, "lock"),
            (Lane::Middle, self.middle),
            (Lane::Api, "API"),
        ];
        for (lane, name) in names {
            let left = lane.column().saturating_sub(name.chars().count() / 2);
            for (slot, letter) in row.iter_mut().skip(left).zip(name.chars()) {
                *slot = letter;
            }
        }
        format!("{:10}{}", "", row.iter().collect::<String>())
    }

    fn render(&self, elapsed: Duration, from: Lane, to: Lane, tone: Tone, text: &str) -> String {
        let mut cells = vec![(' ', PLAIN); LANES_WIDTH];
        for lane in Lane::ALL {
            let lifeline = match lane {
                Lane::Middle if self.middle.is_empty() => ' ',
                Lane::A if self.stalled.load(Ordering::Relaxed) => '┊',
                _ => '│',
            };
            cells[lane.column()] = (lifeline, DIM);
        }
        let (start, end) = (from.column(), to.column());
        for cell in &mut cells[start.min(end)..=start.max(end)] {
            *cell = ('─', from.colour());
        }
        cells[start] = ('●', from.colour());
        if start < end {
            cells[end] = ('▶', from.colour());
        } else if end < start {
            cells[end] = ('◀', from.colour());
        }

        let mut line = format!("{:7.2} s ", elapsed.as_secs_f64());
        for run in cells.chunk_by(|left, right| left.1 == right.1) {
            let letters: String = run.iter().map(|cell| cell.0).collect();
            line.push_str(&self.screen.paint(run[0].1, &letters));
        }
        let colour = match tone {
            Tone::Plain => PLAIN,
            Tone::Good => GOOD,
            Tone::Bad => BAD,
        };
        let _ = write!(line, "  {}", self.screen.paint(colour, text));
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer whose reader has gone.
    struct ClosedOutput;

    impl Write for ClosedOutput {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
    }

    fn timeline(colour: bool, middle: &'static str) -> Timeline {
        let screen = Screen {
            out: Mutex::new(Box::new(ClosedOutput)),
            colour,
        };
        Timeline::start(&Arc::new(screen), middle)
    }

    #[tokio::test]
    async fn a_closed_pipe_is_no_error() {
        let line = timeline(false, "fencepost");
        line.note(Lane::A, Tone::Plain, "nobody reads this");
        line.screen.verdict(true, "nothing", "nothing");
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
            line.render(at, Lane::A, Lane::Lock, Tone::Plain, "acquire"),
            "   1.23 s  ●────────────▶        │        │    acquire"
        );
        assert_eq!(
            line.render(at, Lane::Middle, Lane::B, Tone::Good, "412"),
            "   1.23 s  │     ◀───────────────●        │    412"
        );
        line.set_stalled(true);
        assert_eq!(
            line.render(at, Lane::Api, Lane::Api, Tone::Plain, "stalls"),
            "   1.23 s  ┊     │      │        │        ●    stalls"
        );
        let bare = timeline(false, "");
        assert_eq!(
            bare.render(at, Lane::B, Lane::B, Tone::Plain, "x"),
            "   1.23 s  │     ●      │                 │    x"
        );
    }

    #[tokio::test]
    async fn colour_is_escape_codes_or_none_at_all() {
        let at = Duration::ZERO;
        let plain = timeline(false, "").render(at, Lane::A, Lane::Api, Tone::Bad, "x");
        assert!(!plain.contains('\x1b'), "{plain:?}");
        let coloured = timeline(true, "").render(at, Lane::A, Lane::Api, Tone::Bad, "x");
        assert!(coloured.ends_with("\x1b[31mx\x1b[0m"), "{coloured:?}");
    }
}
