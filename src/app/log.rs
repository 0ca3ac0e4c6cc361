//! The log on standard error: one JSON object per line, or readable text. [`LogOutput`] is its start
//! and its filter, which a reload changes. [`LogWriter`] is the queue of its lines.
//!
//! A pipe without a reader blocks its writer. So no request writes to standard error itself: it
//! leaves its line in a bounded queue, and a separate thread writes it. A line that finds no room is
//! dropped and counted.
//!
//! Every line is made [`printable`] here, because clients control parts of it.

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context as _;
use prometheus::IntCounter;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer as _, Registry};

use crate::config::{LogFormat, LogSettings};
use crate::printable;
use crate::store::InstanceId;

/// How many bytes may wait to be written.
const MAX_WAITING: usize = 1 << 20;
/// How often [`LogWriter::flush`] looks before it gives up: for a second.
const LAST_LOOKS: u32 = 100;
/// Its pause before it looks again.
const AGAIN: Duration = Duration::from_millis(10);

/// The log of this process. The last lines are written when it is dropped.
#[derive(Clone, Debug)]
pub struct LogOutput {
    pub(super) writer: Arc<LogWriter>,
    pub(super) filter: Handle<Targets, Registry>,
}

impl LogOutput {
    /// Starts logging. Each line names `instance`, if there is one.
    pub fn start(settings: &LogSettings, instance: Option<InstanceId>) -> anyhow::Result<Self> {
        let name = instance.map(InstanceId::name);
        let writer = LogWriter::start(io::stderr(), settings.format, name.as_deref())
            .context("the log's thread cannot be started")?;
        let (layer, filter) = reload::Layer::new(targets(&settings.level.0));
        let lines = tracing_subscriber::fmt::layer().with_writer(Arc::clone(&writer));
        let lines = match settings.format {
            LogFormat::Json => lines
                .json()
                .flatten_event(true)
                .with_current_span(false)
                .with_span_list(false)
                .boxed(),
            LogFormat::Text => lines.with_ansi(false).boxed(),
        };
        let subscriber = tracing_subscriber::registry().with(layer).with(lines);
        subscriber.try_init().context("logging cannot be started")?;
        Ok(Self { writer, filter })
    }

    /// Has the log show this from now on.
    pub(super) fn set(&self, level: &Targets) -> Result<(), reload::Error> {
        self.filter.reload(targets(level))
    }
}

impl Drop for LogOutput {
    fn drop(&mut self) {
        self.writer.flush();
    }
}

/// The filter of a level. At each level, `off` included, the log shows that it was changed.
fn targets(level: &Targets) -> Targets {
    let level = level.clone();
    level.with_target("fencepost::app::reload", Level::INFO)
}

/// Accepts lines and queues them.
#[derive(Debug)]
pub struct LogWriter {
    lines: Sender<Vec<u8>>,
    /// Bytes that are queued or being written.
    waiting: AtomicUsize,
    /// Counts lines that are dropped. Set once there are metrics.
    pub(super) dropped: OnceLock<IntCounter>,
    format: LogFormat,
    /// The field that ends each line.
    instance: String,
}

impl LogWriter {
    /// Starts the thread that writes. It lives as long as the process. Each line names `instance`,
    /// if there is one.
    pub fn start(
        to: impl Write + Send + 'static,
        format: LogFormat,
        instance: Option<&str>,
    ) -> io::Result<Arc<Self>> {
        let (lines, queued) = channel();
        let instance = instance.map_or_else(String::new, |name| match format {
            LogFormat::Json => format!(",\"instance\":\"{name}\""),
            LogFormat::Text => format!(" instance={name}"),
        });
        let writer = Arc::new(Self {
            lines,
            waiting: AtomicUsize::new(0),
            dropped: OnceLock::new(),
            format,
            instance,
        });
        let shared = Arc::clone(&writer);
        std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || shared.write_to(to, &queued))?;
        Ok(writer)
    }

    fn count_dropped(&self) {
        if let Some(counter) = self.dropped.get() {
            counter.inc();
        }
    }

    /// Waits until all lines are written, for a second at most. Blocks.
    pub fn flush(&self) {
        for _ in 0..LAST_LOOKS {
            if self.waiting.load(Ordering::Acquire) == 0 {
                return;
            }
            std::thread::sleep(AGAIN);
        }
    }

    /// Writes all lines as they come.
    fn write_to(&self, mut to: impl Write, queued: &Receiver<Vec<u8>>) {
        while let Ok(line) = queued.recv() {
            if to.write_all(&line).is_err() {
                self.count_dropped();
            }
            self.waiting.fetch_sub(line.len(), Ordering::Release);
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

impl Write for &LogWriter {
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
        let waiting = self.waiting.fetch_add(length, Ordering::Relaxed);
        // The thread that receives lives as long as the process.
        if waiting + length > MAX_WAITING || self.lines.send(queued).is_err() {
            self.waiting.fetch_sub(length, Ordering::Relaxed);
            self.count_dropped();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{SyncSender, sync_channel};

    use super::*;
    use crate::metrics::Metrics;

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
                _ => Err(io::ErrorKind::BrokenPipe.into()),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Has the log count what it drops.
    fn counter_of(log: &LogWriter) -> IntCounter {
        let counter = Metrics::new(&[]).series.log_lines_dropped.clone();
        log.dropped.set(counter.clone()).expect("it has none");
        counter
    }

    #[test]
    fn what_finds_no_room_is_dropped_and_counted() {
        let ((begun, begins), (tell, told)) = (sync_channel(0), sync_channel(0));
        let started = LogWriter::start(Reader { begun, told }, LogFormat::Text, None);
        let started = started.expect("a thread");
        let dropped = counter_of(&started);
        let mut writer = &*started;
        writer.write_all(b"one\n").expect("it is taken");
        assert_eq!(begins.recv().expect("a write"), b"one\n");

        // While it is written the others wait, as many as there is room for.
        let line = [vec![b'x'; (1 << 10) - 1], b"\n".to_vec()].concat();
        for _ in 0..MAX_WAITING / line.len() + 9 {
            writer.write_all(&line).expect("it is taken");
        }
        assert_eq!(dropped.get(), 10, "nine, and one for the four bytes");

        tell.send(true).expect("it is written");
        for _ in 1..MAX_WAITING / line.len() {
            assert_eq!(begins.recv().expect("a write"), line);
            tell.send(true).expect("it is written");
        }
        LogWriter::flush(writer);

        // Standard error is gone: nothing waits, and all is counted.
        writer.write_all(b"two\n").expect("it is taken");
        begins.recv().expect("a write");
        tell.send(false).expect("it fails");
        writer.write_all(b"four\n").expect("it is taken");
        begins.recv().expect("the next write comes after the count");
        assert_eq!(dropped.get(), 11);
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
            let writer = LogWriter::start(reader, format, Some("1f")).expect("a thread");
            (&*writer).write_all(line.as_bytes()).expect("it is taken");
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

    #[test]
    fn what_is_lost_is_counted() {
        let log = LogWriter::start(Closed, LogFormat::Text, None).expect("a thread");
        let dropped = counter_of(&log);
        let mut total = 0;
        for lost in [0, 7, 0, 5] {
            for _ in 0..lost {
                (&*log).write_all(b"a line\n").expect("it is taken");
            }
            LogWriter::flush(&log);
            total += lost;
            assert_eq!(dropped.get(), total);
        }
    }
}
