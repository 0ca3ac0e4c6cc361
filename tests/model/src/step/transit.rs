//! Bytes between a send and the upstream: in the HTTP library's buffers, in the kernel, in parts.
//!
//! The kernel delivers what it was given at any later moment, whatever becomes of the proxy, and
//! whether or not the upstream has answered. It stops when the connection is reset, or when nothing
//! was taken for as long as the user timeout. A proxy that gives up resets; so does the kernel of a
//! proxy that dies, under `SO_LINGER` 0. What routers hold counts as arrived: it is there within
//! the path's delay, which `settle` has to cover.

use super::exchange::{judge, judge_record};
use super::memory;
use crate::bounds::{Bounds, Features, Mutant};
use crate::state::{Bytes, Exchange, Phase, State, instance_of};

/// Where the bytes of a request are when the proxy has sent them, or the rest of them.
pub fn sent(b: &Bounds, s: &mut State, at: usize, slot: usize, exchange: Exchange) -> Bytes {
    if !b.can(Features::TRANSIT) {
        judge(b, s, at, slot, exchange);
        return Bytes::Arrived;
    }
    if b.can(Features::QUEUE) {
        return Bytes::Queued;
    }
    judge_record(b, s, exchange);
    if exchange.up() {
        Bytes::Partly
    } else {
        Bytes::InTransit
    }
}

/// The library has room, and writes what it has queued; or the lease has lapsed, and the connection
/// is reset instead.
pub fn write(b: &Bounds, s: &mut State, at: usize, slot: usize) -> Option<()> {
    let mut exchange = s.proxies[at].exchanges[slot]?;
    if !s.proxies[at].running || exchange.bytes != Bytes::Queued {
        return None;
    }
    if s.holds(at, usize::from(exchange.row)) || b.is(Mutant::LeaseOnlyBeforeSend) {
        judge_record(b, s, exchange);
        exchange.bytes = Bytes::InTransit;
        s.proxies[at].exchanges[slot] = Some(exchange);
        return Some(());
    }
    memory::put(b, s, at, slot, reset(b, exchange, Phase::Unknown))
}

/// The path takes a part.
pub fn arrive_in_part(b: &Bounds, s: &mut State, at: usize, slot: usize) -> Option<()> {
    let exchange = s.proxies[at].exchanges[slot].filter(|e| e.bytes == Bytes::InTransit)?;
    land(b, s, at, slot, exchange, Bytes::Partly)
}

/// The path takes all there is.
pub fn arrive(b: &Bounds, s: &mut State, at: usize, slot: usize) -> Option<()> {
    let exchange = s.proxies[at].exchanges[slot].filter(|e| e.in_transit())?;
    land(b, s, at, slot, exchange, Bytes::Arrived)
}

fn land(
    b: &Bounds,
    s: &mut State,
    at: usize,
    slot: usize,
    exchange: Exchange,
    bytes: Bytes,
) -> Option<()> {
    judge(b, s, at, slot, exchange);
    let over = exchange.phase == Phase::Answered && bytes == Bytes::Arrived;
    let left = (!over).then_some(Exchange { bytes, ..exchange });
    memory::put(b, s, at, slot, left)
}

/// The connection is reset: what has not arrived never will. An exchange of which the upstream has
/// nothing is over. (Its owner counts it for `settle` more, which can only keep others back.)
pub fn reset(b: &Bounds, exchange: Exchange, phase: Phase) -> Option<Exchange> {
    let stays = match exchange.bytes {
        Bytes::Queued => b.is(Mutant::QueueNotReset),
        _ if exchange.phase == Phase::Answered && b.is(Mutant::ClosedInOrder) => true,
        _ => b.is(Mutant::GiveUpWithoutReset),
    };
    if stays {
        return Some(Exchange { phase, ..exchange });
    }
    let bytes = Bytes::Arrived;
    exchange.up().then_some(Exchange {
        phase,
        bytes,
        ..exchange
    })
}

/// The process is gone, and its memory with it.
pub fn die(b: &Bounds, exchange: Exchange) -> Option<Exchange> {
    if b.is(Mutant::NoLinger) && exchange.in_transit() {
        let phase = Phase::Orphan;
        return Some(Exchange { phase, ..exchange });
    }
    let bytes = Bytes::Arrived;
    exchange.up().then_some(Exchange {
        phase: Phase::Orphan,
        bytes,
        ..exchange
    })
}

/// For the mutants that do not reset: `settle` has passed since an exchange was given up. What had
/// arrived by then is over, and nobody counts the rest.
pub fn settle(b: &Bounds, s: &mut State, at: usize, slot: usize) -> Option<()> {
    let exchange = s.proxies[at].exchanges[slot].filter(|e| e.phase == Phase::Unknown)?;
    let phase = Phase::Orphan;
    memory::put(b, s, at, slot, Some(Exchange { phase, ..exchange }))
}

/// Returns whether a dead instance has something in transit or in progress that a watcher's wait
/// covers. The library's queue needs no wait: there is no lease to write it under.
pub fn counts(b: &Bounds, s: &State, instance: usize) -> bool {
    s.exchanges().any(|(_, exchange)| {
        let covered = match exchange.bytes {
            Bytes::Kept | Bytes::Queued => false,
            Bytes::Arrived => true,
            // Each part that arrives starts the user timeout again. A proxy that runs resets the
            // rest before it has passed since the lapse.
            Bytes::Partly if b.can(Features::TRICKLE) => {
                exchange.phase != Phase::Orphan && !b.is(Mutant::LateCutoff)
            }
            Bytes::InTransit | Bytes::Partly => !b.is(Mutant::NoUserTimeout),
        };
        covered && instance_of(usize::from(exchange.row)) == instance
    })
}
