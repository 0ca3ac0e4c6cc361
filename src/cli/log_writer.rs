//! [`LogWriter`]: lines of the log on their way to standard error, which a thread of its own writes.
//!
//! A pipe that nobody reads blocks its writer. So no request writes to standard error itself: it leaves its
//! line in a bounded buffer. A line that finds no room is dropped and counted.

use std::io::{self, ErrorKind, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// How many bytes wait for standard error to take them.
const MAX_WAITING: usize = 1 << 20;
/// How many bytes are written at once: what a pipe holds.
const CHUNK: usize = 64 << 10;
/// How long the end of the process waits for the last lines to be taken.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// The pause after standard error, set not to block by another program, had no room.
const AGAIN: Duration = Duration::from_millis(10);

/// Where lines are left.
#[derive(Clone, Debug, Default)]
pub(super) struct LogWriter(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Held for a copy of memory, never while something is written.
    lines: Mutex<Lines>,
    /// There is something to write.
    more: Condvar,
    /// All is written.
    empty: Condvar,
}

#[derive(Debug, Default)]
struct Lines {
    waiting: Vec<u8>,
    /// How many bytes the thread has taken, and is writing.
    taken: usize,
    /// How many lines were dropped since the start.
    dropped: u64,
}

/// Writes what waits when it is dropped, for [`LAST_WORDS`] at most.
#[derive(Debug)]
#[must_use]
pub(super) struct LogThread(Arc<Shared>);

impl LogWriter {
    /// Starts the thread that writes. It lives as long as the process.
    pub(super) fn start(to: impl Write + Send + 'static) -> io::Result<(Self, LogThread)> {
        let shared = Arc::<Shared>::default();
        let writing = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || writing.write_to(to))?;
        Ok((Self(Arc::clone(&shared)), LogThread(shared)))
    }

    /// How many lines were dropped since the start.
    pub(super) fn dropped(&self) -> u64 {
        self.0.lines().dropped
    }
}

impl Write for LogWriter {
    /// Takes a line whole, or drops it.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut lines = self.0.lines();
        if lines.waiting.len() + lines.taken + line.len() > MAX_WAITING {
            lines.dropped += 1;
        } else {
            lines.waiting.extend_from_slice(line);
            self.0.more.notify_one();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for LogWriter {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

impl Shared {
    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
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
            // What ends in them was not written whole.
            lines.dropped += unwritten.iter().filter(|byte| **byte == b'\n').count() as u64;
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
        let unwritten = |lines: &mut Lines| !lines.waiting.is_empty() || lines.taken > 0;
        let lines = self.0.lines();
        drop(self.0.empty.wait_timeout_while(lines, LAST_WORDS, unwritten));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use super::*;

    /// Says of each write that it has begun, and takes it when it is told to: all, or none.
    struct Reader {
        begun: SyncSender<Vec<u8>>,
        told: Receiver<bool>,
    }

    impl Write for Reader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.begun.send(bytes.to_owned()).expect("the test hears it");
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
        let (mut writer, thread) = LogWriter::start(Reader { begun, told }).expect("a thread");
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
        writer.write_all(b"two\nthree\n").expect("it is taken");
        begins.recv().expect("a write");
        tell.send(false).expect("it fails");
        writer.write_all(b"four\n").expect("it is taken");
        begins.recv().expect("the next write comes after the count");
        assert_eq!(writer.dropped(), 12);
    }
}
