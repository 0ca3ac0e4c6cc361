//! The signals that `fencepost attach` gets, and passes on.

use std::io;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind, signal};

/// The signals that are passed on to the command.
pub(super) struct Signals {
    hangup: unix::Signal,
    interrupt: unix::Signal,
    quit: unix::Signal,
    terminate: unix::Signal,
    user_1: unix::Signal,
    user_2: unix::Signal,
}

impl Signals {
    /// From this call on, none of them ends this process by itself.
    pub(super) fn catch() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            terminate: signal(SignalKind::terminate())?,
            user_1: signal(SignalKind::user_defined1())?,
            user_2: signal(SignalKind::user_defined2())?,
        })
    }

    /// Waits for the next one. Cancel-safe.
    pub(super) async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.hangup.recv() => Signal::HUP,
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.quit.recv() => Signal::QUIT,
            _ = self.terminate.recv() => Signal::TERM,
            _ = self.user_1.recv() => Signal::USR1,
            _ = self.user_2.recv() => Signal::USR2,
        }
    }
}

/// The exit code of a process that a signal has ended, as shells have it.
pub(super) fn code_of(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}
