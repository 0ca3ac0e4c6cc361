//! Packets that are lost: a filter on a socket (classic BPF, `SO_ATTACH_FILTER`), which the kernel
//! asks before TCP sees a packet. A refused packet was never there: nothing is acknowledged, and
//! the sender tries again.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{SockFilter, SockRef};

use super::Weather;

// Operations of classic BPF (linux/bpf_common.h). A packet begins with its TCP header.
const LOAD_BYTE: u16 = 0x30;
const LOAD_LENGTH: u16 = 0x80;
const TO_X: u16 = 0x07;
const AND: u16 = 0x54;
const SHIFT_RIGHT: u16 = 0x74;
const JUMP_IF_GREATER_THAN_X: u16 = 0x2d;
const JUMP_IF_ANY: u16 = 0x45;
const RETURN: u16 = 0x06;

/// The flags FIN, SYN and RST (RFC 9293, 3.1).
const BEGINS_OR_ENDS: u32 = 0x07;

const PASS: u32 = u32::MAX;
const DROP: u32 = 0;

fn nothing_passes() -> Vec<SockFilter> {
    vec![SockFilter::new(RETURN, 0, 0, DROP)]
}

/// Packets that are longer than their TCP header are dropped.
fn no_data_passes() -> Vec<SockFilter> {
    vec![
        // The header's length: the upper half of byte 12, in words of four bytes.
        SockFilter::new(LOAD_BYTE, 0, 0, 12),
        SockFilter::new(AND, 0, 0, 0xf0),
        SockFilter::new(SHIFT_RIGHT, 0, 0, 2),
        SockFilter::new(TO_X, 0, 0, 0),
        SockFilter::new(LOAD_LENGTH, 0, 0, 0),
        SockFilter::new(JUMP_IF_GREATER_THAN_X, 0, 1, 0),
        SockFilter::new(RETURN, 0, 0, DROP),
        SockFilter::new(RETURN, 0, 0, PASS),
    ]
}

/// Packets that begin or end a connection, or have data, are dropped. Packets that the path itself
/// has sent on are acknowledged: they were taken in before, so they arrive.
fn only_acknowledgements_pass() -> Vec<SockFilter> {
    let mut program = vec![
        SockFilter::new(LOAD_BYTE, 0, 0, 13),
        SockFilter::new(JUMP_IF_ANY, 6, 0, BEGINS_OR_ENDS),
    ];
    program.extend(no_data_passes());
    program
}

/// Has a socket toward the proxy, or one that listens for it, lose what this weather loses.
pub fn from_proxy(socket: &impl AsFd, weather: Weather) {
    let lost = match weather {
        Weather::Dead => Some(nothing_passes()),
        Weather::Hole => Some(no_data_passes()),
        Weather::Clear | Weather::Mute | Weather::Shut | Weather::Trickle => None,
    };
    lose(socket, lost);
}

/// Has a socket toward the upstream lose what this weather loses.
pub fn from_upstream(socket: &impl AsFd, weather: Weather) {
    let lost = match weather {
        Weather::Dead => Some(only_acknowledgements_pass()),
        Weather::Mute => Some(no_data_passes()),
        Weather::Clear | Weather::Hole | Weather::Shut | Weather::Trickle => None,
    };
    lose(socket, lost);
}

fn lose(socket: &impl AsFd, what: Option<Vec<SockFilter>>) {
    let socket = SockRef::from(socket);
    match what {
        Some(program) => socket
            .attach_filter(&program)
            .expect("a socket takes a filter"),
        // There may be none.
        None => drop(socket.detach_filter()),
    }
}

/// Returns whether a filter loses packets here, as Linux has it.
pub fn can_stall() -> bool {
    let tried = || -> std::io::Result<bool> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut sender = TcpStream::connect(listener.local_addr()?)?;
        let (mut receiver, _) = listener.accept()?;
        SockRef::from(&receiver).attach_filter(&no_data_passes())?;
        sender.write_all(b"?")?;
        let mut read = [0];
        receiver.set_read_timeout(Some(Duration::from_millis(50)))?;
        if receiver.read(&mut read).is_ok() {
            return Ok(false);
        }
        SockRef::from(&receiver).detach_filter()?;
        receiver.set_read_timeout(Some(Duration::from_secs(10)))?;
        receiver.read(&mut read).map(|count| count == 1)
    };
    tried().unwrap_or(false)
}
