//! Packets that are lost: a filter on a socket (classic BPF, `SO_ATTACH_FILTER`), which the kernel
//! asks before TCP sees a packet. A refused packet was never there: nothing is acknowledged, and
//! the sender tries again.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{SockFilter, SockRef, Socket};

use super::Weather;

/// An operation of classic BPF (`linux/bpf_common.h`): its code, how far to jump if it holds and if
/// not, and its number. A packet begins with its TCP header; what is returned is how much of it
/// passes.
type Operation = (u16, u8, u8, u32);

/// Packets that are longer than their TCP header are dropped.
const NO_DATA_PASSES: [Operation; 8] = [
    // The header's length: the upper half of byte 12, in words of four bytes.
    (0x30, 0, 0, 12),       // load the byte
    (0x54, 0, 0, 0xf0),     // and
    (0x74, 0, 0, 2),        // shift right
    (0x07, 0, 0, 0),        // to X
    (0x80, 0, 0, 0),        // load the packet's length
    (0x2d, 0, 1, 0),        // is it greater than X?
    (0x06, 0, 0, 0),        // return nothing
    (0x06, 0, 0, u32::MAX), // return all
];

/// Before [`NO_DATA_PASSES`]: packets that begin or end a connection are dropped too. Packets that
/// the path itself has sent on are acknowledged: they were taken in before, so they arrive.
const NOR_BEGINNING_NOR_END: [Operation; 2] = [
    (0x30, 0, 0, 13),   // load the byte of the flags
    (0x45, 6, 0, 0x07), // is any of FIN, SYN and RST set (RFC 9293, 3.1)?
];

/// Has a socket lose what this weather loses: one toward the proxy, or that listens for it, or
/// one toward the upstream.
pub fn lose(socket: &impl AsFd, weather: Weather, of_proxy: bool) {
    let socket = SockRef::from(socket);
    let program = match (weather, of_proxy) {
        (Weather::Dead, true) => vec![(0x06, 0, 0, 0)],
        (Weather::Dead, false) => [&NOR_BEGINNING_NOR_END[..], &NO_DATA_PASSES].concat(),
        (Weather::Hole, true) | (Weather::Mute, false) => NO_DATA_PASSES.to_vec(),
        // There may be none.
        _ => return drop(socket.detach_filter()),
    };
    attach(&socket, &program).expect("a socket takes a filter");
}

fn attach(socket: &Socket, program: &[Operation]) -> io::Result<()> {
    let operations = program.iter();
    let filter =
        operations.map(|&(code, holds, not, number)| SockFilter::new(code, holds, not, number));
    socket.attach_filter(&filter.collect::<Vec<_>>())
}

/// Returns whether a filter loses packets here, as Linux has it.
pub fn can_stall() -> bool {
    let tried = || -> io::Result<bool> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut sender = TcpStream::connect(listener.local_addr()?)?;
        let (mut receiver, _) = listener.accept()?;
        attach(&SockRef::from(&receiver), &NO_DATA_PASSES)?;
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
