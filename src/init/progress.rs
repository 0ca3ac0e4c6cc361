//! Shows on standard error how much of a file has been read: a bar on a terminal, and elsewhere a
//! line every ten seconds.

use std::io::{Read, Result};
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, ProgressBar, ProgressFinish};

struct Watched<R> {
    input: R,
    bar: ProgressBar,
    last_line: Instant,
}

/// The same input, with its progress shown. `size`: its bytes; 0 if they are not known.
pub(super) fn watched(input: impl Read, size: u64) -> impl Read {
    let bar = if size > 0 {
        ProgressBar::new(size)
    } else {
        ProgressBar::no_length()
    };
    Watched {
        input,
        bar: bar.with_finish(ProgressFinish::AndClear),
        last_line: Instant::now(),
    }
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let count = self.input.read(buffer)?;
        self.bar.inc(count as u64);
        if self.bar.is_hidden() && self.last_line.elapsed() > Duration::from_secs(10) {
            self.last_line = Instant::now();
            eprintln!("fencepost: {} read", HumanBytes(self.bar.position()));
        }
        Ok(count)
    }
}
