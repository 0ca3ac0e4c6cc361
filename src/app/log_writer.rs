//! [`LogOutput`]: the log's way to standard error, and its filter, which a reload changes.
//! [`LogWriter`]: the queue of log lines, which a separate thread writes.
//!
//! A pipe without a reader blocks its writer. So no request writes to standard error itself: it
//! leaves its line in a bounded queue. A line that finds no room is dropped and counted.
//!
//! Every line is made [`printable`] here, because clients control parts of it.

use std::borrow::Cow;
use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::sleep;
use std::time::Duration;

use tokio::time::MissedTickBehavior;
use tracing::Level;
use tracing_subscriber::Registry;
use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::reload::Handle;

use crate::config::{LogFormat, LogLevel};
use crate::metrics::Metrics;
use crate::printable;

/// How many bytes may wait to be written.
const MAX_WAITING: usize = 1 << 20;
/// Lines are written together up to a pipe's capacity.
const CHUNK: usize = 64 << 10;
/// How often [`LogWriter::flush`] looks before it gives up: for a second.
const LAST_LOOKS: u32 = 100;
/// Pause before looking again, or before retrying when stderr is non-blocking and full.
const AGAIN: Duration = Duration::from_millis(10);

/// The interval at which lost lines are counted.
const COUNT_AGAIN: Duration = Duration::from_secs(1);

/// The log of this process.
#[derive(Clone, Debug)]
pub struct LogOutput {
    pub writer: LogWriter,
    pub filter: Handle<Targets, Registry>,
}

impl LogOutput {
    /// Has the log show this from now on.
    pub(super) fn set(&self, level: &LogLevel) -> anyhow::Result<()> {
        Ok(self.filter.reload(targets(level)?)?)
    }
}

/// The filter of a level. At each level, `off` included, the log shows that it was changed.
pub fn targets(level: &LogLevel) -> Result<Targets, ParseError> {
    let targets: Targets = level.to_string().parse()?;
    Ok(targets.with_target("fencepost::app::reload", Level::INFO))
}

/// Accepts lines and queues them.
#[derive(Clone, Debug)]
pub struct LogWriter {
    lines: Sender<Vec<u8>>,
    counts: Arc<LineCounts>,
    format: LogFormat,
    /// The field that ends each line.
    instance: Arc<str>,
}

#[derive(Debug, Default)]
struct LineCounts {
    /// Bytes that are queued or being written.
    waiting: AtomicUsize,
    /// Lines that were dropped since the start.
    dropped: AtomicU64,
}

impl LogWriter {
    /// Starts the thread that writes. It lives as long as the process. Each line names `instance`,
    /// if there is one.
    pub fn start(
        to: impl Write + Send + 'static,
        format: LogFormat,
        instance: Option<&str>,
    ) -> io::Result<Self> {
        let (lines, queued) = channel();
        let counts = Arc::<LineCounts>::default();
        let shared = Arc::clone(&counts);
        std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || shared.write_to(to, &queued))?;
        let instance = instance.map_or_else(String::new, |name| match format {
            LogFormat::Json => format!(",\"instance\":\"{name}\""),
            LogFormat::Text => format!(" instance={name}"),
        });
        Ok(Self {
            lines,
            counts,
            format,
            instance: instance.into(),
        })
    }

    /// Counts lost lines, for as long as the process lives. They are reported once none was lost
    /// for a while: then there is room for the line that says so.
    pub(super) async fn count_dropped(self, metrics: Arc<Metrics>) {
        let counter = &metrics.series.log_lines_dropped;
        let mut tick = tokio::time::interval(COUNT_AGAIN);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut said = 0;
        loop {
            tick.tick().await;
            let (known, now) = (counter.get(), self.dropped());
            counter.inc_by(now - known);
            if now == known && now > said {
                tracing::warn!(
                    lines = now - said,
                    "standard error was not read in time: lines of the log are missing here"
                );
                // Else this line is lost, too.
                if self.dropped() == now {
                    said = now;
                }
            }
        }
    }

    /// How many lines were dropped since the start.
    pub(super) fn dropped(&self) -> u64 {
        self.counts.dropped.load(Ordering::Relaxed)
    }

    /// Waits until all lines are written, for a second at most. Blocks.
    pub fn flush(&self) {
        for _ in 0..LAST_LOOKS {
            if self.counts.waiting.load(Ordering::Acquire) == 0 {
                return;
            }
            sleep(AGAIN);
        }
    }
}

/// A line without control characters, and without its end.
fn clean(format: LogFormat, line: &str) -> Cow<'_, str> {
    match format {
        LogFormat::Json => printable::json(line),
        LogFormat::Text => printable::line(line),
    }
}

impl Write for LogWriter {
    /// Takes a line whole, or drops it.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let text = clean(self.format, text.strip_suffix('\n').unwrap_or(&text));
        // The field is the last one of a JSON line's object.
        let (text, end) = match self.format {
            LogFormat::Json => (text.strip_suffix('}').unwrap_or(&text), "}\n"),
            LogFormat::Text => (&*text, "\n"),
        };
        let queued = [text, &self.instance, end].concat().into_bytes();
        let length = queued.len();
        let waiting = self.counts.waiting.fetch_add(length, Ordering::Relaxed);
        // The thread that receives lives as long as the process.
        if waiting + length > MAX_WAITING || self.lines.send(queued).is_err() {
            self.counts.waiting.fetch_sub(length, Ordering::Relaxed);
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl LineCounts {
    /// Writes all lines as they come.
    fn write_to(&self, mut to: impl Write, queued: &Receiver<Vec<u8>>) {
        while let Ok(mut chunk) = queued.recv() {
            while chunk.len() < CHUNK
                && let Ok(line) = queued.try_recv()
            {
                chunk.extend(line);
            }
            let unwritten = write_all(&mut to, &chunk);
            // Lines that end in them were not written whole.
            let lost = unwritten.split(|byte| *byte == b'\n').count() - 1;
            self.dropped.fetch_add(lost as u64, Ordering::Relaxed);
            self.waiting.fetch_sub(chunk.len(), Ordering::Release);
        }
    }
}

/// Writes; returns what could not be written.
fn write_all<'a>(to: &mut impl Write, mut left: &'a [u8]) -> &'a [u8] {
    while !left.is_empty() {
        match to.write(left) {
            Ok(0) => return left,
            Ok(written) => left = &left[written..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => sleep(AGAIN),
            Err(_) => return left,
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{SyncSender, sync_channel};

    use super::*;

    /// Reports the start of each write, and waits for the test to accept it: all, or none.
    struct Reader {
        begun: SyncSender<Vec<u8>>,
        told: Receiver<bool>,
    }

    impl Write for Reader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.begun
                .send(bytes.to_owned())
                .expect("the test hears it");
            match self.told.recv() {
                Ok(true) => Ok(bytes.len()),
                _ => Err(ErrorKind::BrokenPipe.into()),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_finds_no_room_is_dropped_and_counted() {
        let ((begun, begins), (tell, told)) = (sync_channel(0), sync_channel(0));
        let mut writer =
            LogWriter::start(Reader { begun, told }, LogFormat::Text, None).expect("a thread");
        writer.write_all(b"one\n").expect("it is taken");
        assert_eq!(begins.recv().expect("a write"), b"one\n");

        // While it is written the others wait, as many as there is room for.
        let line = [vec![b'x'; (1 << 10) - 1], b"\n".to_vec()].concat();
        for _ in 0..MAX_WAITING / line.len() + 9 {
            writer.write_all(&line).expect("it is taken");
        }
        assert_eq!(writer.dropped(), 10, "nine, and one for the four bytes");

        tell.send(true).expect("it is written");
        let mut all = 4;
        while all < MAX_WAITING - line.len() {
            let chunk = begins.recv().expect("a write");
            assert!(chunk.len() < CHUNK + line.len());
            all += chunk.len();
            tell.send(true).expect("it is written");
        }
        LogWriter::flush(&writer);

        // Standard error is gone: nothing waits, and all is counted.
        writer.write_all(b"two\n").expect("it is taken");
        begins.recv().expect("a write");
        tell.send(false).expect("it fails");
        writer.write_all(b"four\n").expect("it is taken");
        begins.recv().expect("the next write comes after the count");
        assert_eq!(writer.dropped(), 11);
    }

    #[test]
    fn every_line_names_the_instance() {
        for (format, line, written) in [
            (
                LogFormat::Json,
                "{\"a\":{}}\n",
                "{\"a\":{},\"instance\":\"1f\"}\n",
            ),
            (LogFormat::Text, "a b=1\n", "a b=1 instance=1f\n"),
        ] {
            let ((begun, begins), (tell, told)) = (sync_channel(0), sync_channel(0));
            let reader = Reader { begun, told };
            let mut writer = LogWriter::start(reader, format, Some("1f")).expect("a thread");
            writer.write_all(line.as_bytes()).expect("it is taken");
            assert_eq!(begins.recv().expect("a write"), written.as_bytes());
            tell.send(true).expect("it is written");
        }
    }

    #[test]
    fn no_value_steers_the_terminal() {
        for (format, line, expected) in [
            (
                LogFormat::Json,
                "{\"a\":\"\u{202e}\u{7f}\"}",
                "{\"a\":\"\\u202e\\u007f\"}",
            ),
            (LogFormat::Text, "a \x1b[2J\nb", "a \\u{1b}[2J\\u{a}b"),
        ] {
            assert_eq!(clean(format, line), expected);
        }
    }

    struct Closed;

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_lost_is_counted() {
        let metrics = Arc::new(Metrics::new(&[]));
        let mut log = LogWriter::start(Closed, LogFormat::Text, None).expect("a thread");
        let counting = tokio::spawn(log.clone().count_dropped(Arc::clone(&metrics)));
        let mut total = 0;
        for lost in [0, 7, 0, 5] {
            for _ in 0..lost {
                log.write_all(b"a line\n").expect("it is taken");
            }
            LogWriter::flush(&log);
            total += lost;
            tokio::time::sleep(COUNT_AGAIN * 2).await;
            let text = metrics.encode(std::time::Instant::now());
            let line = format!("\nfencepost_log_lines_dropped_total {total}\n");
            assert!(text.contains(&line), "{total}");
        }
        counting.abort();
    }
}
