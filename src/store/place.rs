//! The place of this process on its machine, which one process at a time can have. A successor in
//! the same place knows that the process before it has ended, and with it all that it still wrote
//! and its kernel still delivered: fenced sockets are closed with a linger of 0, which drops the
//! bytes they held. So neither its lease nor `upstream.undelivered` is waited for.
//!
//! The place is a Unix socket with an abstract name (`unix(7)`): the kernel has it as long as the
//! process lives, stopped or not, and no longer. Such names belong to a network namespace, which a
//! pod keeps when one of its containers starts again. The boot and the namespace are part of the
//! place, so that no other machine and no other pod has the same one.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// How many proxies of one namespace may have a place side by side. More have none.
const SLOTS: usize = 16;

/// The id of this boot of the machine; empty if it has none.
pub(super) fn boot() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    name.unwrap_or_default().trim().to_owned()
}

/// Takes a place for the rest of the process; empty where there is none. `name` is that of what the
/// proxies share.
pub(super) fn take(name: &str) -> String {
    let (boot, network) = (boot(), std::fs::metadata("/proc/self/ns/net"));
    let Some(network) = network.ok().filter(|_| !boot.is_empty()) else {
        return String::new();
    };
    let bound = (0..SLOTS).find_map(|slot| {
        let name = format!("{name}-{slot}");
        let address = SocketAddr::from_abstract_name(&name).ok()?;
        Some((name, UnixDatagram::bind_addr(&address).ok()?))
    });
    let Some((name, socket)) = bound else {
        return String::new();
    };
    // Until the process ends.
    std::mem::forget(socket);
    // The whole name: proxies that spell the address of one store differently take places of
    // different names side by side.
    format!("{boot}/{}/{name}", network.ino())
}
