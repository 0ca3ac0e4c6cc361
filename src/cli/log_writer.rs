//! [`LogWriter`]: the queue of log lines for standard error, which a separate thread writes.
//!
//! A pipe without a reader blocks its writer. So no request writes to standard error itself: it
//! leaves its line in a bounded buffer. A line that finds no room is dropped and counted.
//!
//! Every line is made [`printable`] here, because clients control parts of it.

use std::borrow::Cow;
use std::io::{self, ErrorKind, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

use crate::printable;

/// How many bytes may wait to be written.
const MAX_WAITING: usize = 1 << 20;
/// How many bytes are written at once: a pipe's capacity.
const CHUNK: usize = 64 << 10;
/// How long the end of the process waits for the last lines to be written.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Pause before retrying when stderr is non-blocking and full.
const AGAIN: Duration = Duration::from_millis(10);

/// The format of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineStyle {
    Json,
    Text,
    /// Text with escape sequences. Values have none: tracing's formatter writes those as numbers.
    Coloured,
}

/// Accepts lines and queues them.
#[derive(Clone, Debug)]
pub(super) struct LogWriter {
    shared: Arc<LogQueue>,
    look: LineStyle,
    /// The field that ends each line.
    instance: Arc<str>,
}

#[derive(Debug, Default)]
struct LogQueue {
    /// Held for a copy of memory, never while something is written.
    lines: Mutex<QueuedLines>,
    /// There is something to write.
    more: Condvar,
    /// All is written.
    empty: Condvar,
}

#[derive(Debug, Default)]
struct QueuedLines {
    waiting: Vec<u8>,
    /// How many bytes the thread has taken, and is writing.
    taken: usize,
    /// How many lines were dropped since the start.
    dropped: u64,
}

/// Writes what waits when it is dropped, for [`LAST_WORDS`] at most.
#[derive(Debug)]
#[must_use]
pub(super) struct LogThread(Arc<LogQueue>);

impl LogWriter {
    /// Starts the thread that writes. It lives as long as the process. Each line names `instance`,
    /// if there is one.
    pub(super) fn start(
        to: impl Write + Send + 'static,
        look: LineStyle,
        instance: Option<&str>,
    ) -> io::Result<(Self, LogThread)> {
        let shared = Arc::<LogQueue>::default();
        let writing = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || writing.write_to(to))?;
        let writer = Self {
            shared: Arc::clone(&shared),
            look,
            instance: instance
                .map_or_else(String::new, |name| look.field(name))
                .into(),
        };
        Ok((writer, LogThread(shared)))
    }

    /// How many lines were dropped since the start.
    pub(super) fn dropped(&self) -> u64 {
        self.shared.lines().dropped
    }

    /// Waits until all lines are written, for [`LAST_WORDS`] at most.
    pub(super) fn written(&self) {
        self.shared.written();
    }
}

impl LineStyle {
    /// The field at the end of a line that names the instance.
    fn field(self, instance: &str) -> String {
        match self {
            Self::Json => format!(",\"instance\":\"{instance}\"}}"),
            Self::Text | Self::Coloured => format!(" instance={instance}"),
        }
    }

    /// A line, without its end.
    fn clean(self, line: &str) -> Cow<'_, str> {
        match self {
            Self::Json => printable::json(line),
            Self::Text => printable::line(line),
            Self::Coloured => {
                let parts: Vec<_> = line.split('\x1b').map(printable::line).collect();
                Cow::Owned(parts.join("\x1b"))
            }
        }
    }
}

impl Write for LogWriter {
    /// Takes a line whole, or drops it.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let text = self.look.clean(text.strip_suffix('\n').unwrap_or(&text));
        // The field of a JSON line brings the end of the object along.
        let text = match self.look {
            LineStyle::Json if !self.instance.is_empty() => text.strip_suffix('}').unwrap_or(&text),
            _ => &text,
        };
        let length = text.len() + self.instance.len();
        let mut lines = self.shared.lines();
        if lines.waiting.len() + lines.taken + length >= MAX_WAITING {
            lines.dropped += 1;
        } else {
            lines.waiting.extend_from_slice(text.as_bytes());
            lines.waiting.extend_from_slice(self.instance.as_bytes());
            lines.waiting.push(b'\n');
            self.shared.more.notify_one();
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

impl LogQueue {
    fn lines(&self) -> MutexGuard<'_, QueuedLines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all lines are written, for [`LAST_WORDS`] at most.
    fn written(&self) {
        let unwritten = |lines: &mut QueuedLines| !lines.waiting.is_empty() || lines.taken > 0;
        let lines = self.lines();
        drop(self.empty.wait_timeout_while(lines, LAST_WORDS, unwritten));
    }

    fn write_to(&self, mut to: impl Write) {
        let mut chunk = Vec::with_capacity(CHUNK);
        loop {
            let mut lines = self
                .more
                .wait_while(self.lines(), |lines| lines.waiting.is_empty())
                .unwrap_or_else(PoisonError::into_inner);
            let end = lines.waiting.len().min(CHUNK);
            chunk.clear();
            chunk.extend(lines.waiting.drain(..end));
            lines.taken = chunk.len();
            drop(lines);

            let unwritten = write_all(&mut to, &chunk);
            let mut lines = self.lines();
            lines.taken = 0;
            // Lines that end in them were not written whole.
            let ends = unwritten.split(|byte| *byte == b'\n').count() - 1;
            lines.dropped += ends as u64;
            if lines.waiting.is_empty() {
                self.empty.notify_all();
            }
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
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(AGAIN),
            Err(_) => return left,
        }
    }
    left
}

impl Drop for LogThread {
    fn drop(&mut self) {
        self.0.written();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

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
        let (mut writer, thread) =
            LogWriter::start(Reader { begun, told }, LineStyle::Text, None).expect("a thread");
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
            assert!(chunk.len() <= CHUNK);
            all += chunk.len();
            tell.send(true).expect("it is written");
        }
        drop(thread);

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
        for (look, line, written) in [
            (
                LineStyle::Json,
                "{\"a\":{}}\n",
                "{\"a\":{},\"instance\":\"1f\"}\n",
            ),
            (LineStyle::Text, "a b=1\n", "a b=1 instance=1f\n"),
        ] {
            let ((begun, begins), (tell, told)) = (sync_channel(0), sync_channel(0));
            let reader = Reader { begun, told };
            let (mut writer, _thread) =
                LogWriter::start(reader, look, Some("1f")).expect("a thread");
            writer.write_all(line.as_bytes()).expect("it is taken");
            assert_eq!(begins.recv().expect("a write"), written.as_bytes());
            tell.send(true).expect("it is written");
        }
    }

    #[test]
    fn no_value_steers_the_terminal() {
        for (look, line, clean) in [
            (
                LineStyle::Json,
                "{\"a\":\"\u{202e}\u{7f}\"}",
                "{\"a\":\"\\u202e\\u007f\"}",
            ),
            (LineStyle::Text, "a \x1b[2J\nb", "a \\u{1b}[2J\\u{a}b"),
            (
                LineStyle::Coloured,
                "\x1b[2ma\x1b[0m \u{9b}2J",
                "\x1b[2ma\x1b[0m \\u{9b}2J",
            ),
        ] {
            assert_eq!(look.clean(line), clean);
        }
    }
}
