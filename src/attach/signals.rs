//! The signals that `fencepost attach` gets, and passes on.

use std::io;

use rustix::process::Signal;
use tokio::signal::unix::SignalKind;

use crate::signals::Signals;

/// The signals that are passed on to the command.
const PASSED: [Signal; 6] = [
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::TERM,
    Signal::USR1,
    Signal::USR2,
];

pub(super) fn catch() -> io::Result<Signals<Signal>> {
    Signals::catch(PASSED.map(|passed| (SignalKind::from_raw(passed.as_raw()), passed)))
}

/// The exit code of a process that a signal has ended, as shells have it.
pub(super) fn code_of(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}
