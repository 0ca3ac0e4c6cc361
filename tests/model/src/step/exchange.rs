//! Permits and exchanges, and the upstream's end of them.

use super::{lane, memory, transit};
use crate::bounds::{Bounds, Features, Mutant};
use crate::state::{
    Bar, Broken, Bytes, Exchange, Failover, OWN, Phase, Purpose, State, Statement, instance_of,
    small,
};

/// The last look at everything, and the permit.
pub fn permit(b: &Bounds, s: &mut State, at: usize, row: usize) -> Option<()> {
    let proxy = &s.proxies[at];
    let epoch = proxy.epochs[row % OWN];
    let blocked = epoch.foreign > 0 && !b.is(Mutant::BarrierPerProcess);
    if !proxy.running || epoch.token == 0 || !s.holds(at, row) || blocked {
        return None;
    }
    let mut others = proxy.epochs.iter().enumerate();
    let older = others.any(|(own, other)| {
        other.token > 0 && other.token < epoch.token && !memory::idle(proxy, own)
    });
    let refused = epoch.closing || proxy.known > epoch.token || proxy.bar != Bar::None;
    if (older || refused) && !b.is(Mutant::NoSecondLook) {
        return None;
    }
    let count = proxy.exchanges.iter().flatten().count();
    let slot = proxy.exchanges.iter().position(Option::is_none)?;
    if count >= b.exchanges {
        return None;
    }
    s.proxies[at].exchanges[slot] = Some(Exchange {
        phase: Phase::Permit,
        bytes: Bytes::Kept,
        warned: proxy.warned,
        token: epoch.token,
        row: small(row),
        name: 0,
        outdated: false,
    });
    Some(())
}

/// The token is spent under the permit, before the send, under a name of its own.
pub fn spend(b: &Bounds, s: &mut State, at: usize, slot: usize) -> Option<()> {
    let mut exchange = in_phase(s, at, slot, Phase::Permit)?;
    if b.is(Mutant::SpendAfterSend) || lane::busy(b, &s.proxies[at]) {
        return None;
    }
    let statements = s.proxies.iter().flat_map(|proxy| &proxy.statements);
    let named = |name: u8| {
        s.store.spent == name
            || s.exchanges().any(|(_, e)| e.name == name)
            || statements.clone().flatten().any(|s| s.name == name)
    };
    exchange.name = (1..=u8::MAX).find(|name| !named(*name))?;
    exchange.phase = Phase::Spending;
    let row = usize::from(exchange.row);
    let mut statement = lane::new(b, s, at, exchange.token, row, Purpose::Spend);
    statement.name = exchange.name;
    lane::place(b, s, at, statement)?;
    s.proxies[at].exchanges[slot] = Some(exchange);
    Some(())
}

/// The row is of a later era: nothing was changed, and the same is sent again.
pub fn spend_again(s: &mut State, at: usize, statement: &Statement) {
    for exchange in s.proxies[at].exchanges.iter_mut().flatten() {
        if statement.purpose == Purpose::Spend && exchange.name == statement.name {
            exchange.phase = Phase::Permit;
            exchange.name = 0;
        }
    }
}

/// A spending was answered, and its exchange goes on in this phase; or the token counts as spent,
/// and nothing is sent.
pub fn spent(b: &Bounds, s: &mut State, at: usize, statement: &Statement, phase: Option<Phase>) {
    if statement.purpose != Purpose::Spend {
        return;
    }
    for place in &mut s.proxies[at].exchanges {
        if let Some(exchange) = place.filter(|exchange| exchange.name == statement.name) {
            *place = phase.map(|phase| Exchange { phase, ..exchange });
        }
    }
    memory::drained(b, s, at);
}

/// The first byte goes upstream, past a last look at the lease. With [`Features::QUEUE`] it gets as
/// far as the library.
pub fn send(b: &Bounds, s: &mut State, at: usize, slot: usize) -> Option<()> {
    let spends = b.can(Features::SPEND) && !b.is(Mutant::SpendAfterSend);
    let from = if spends { Phase::Spent } else { Phase::Permit };
    let mut exchange = in_phase(s, at, slot, from)?;
    if !s.holds(at, usize::from(exchange.row)) && !b.is(Mutant::LeaseOnlyBeforeSend) {
        return None;
    }
    if b.is(Mutant::SpendAfterSend) && s.store.spent > 0 {
        return None;
    }
    exchange.bytes = transit::sent(b, s, at, slot, exchange);
    if b.can(Features::SPEND) {
        if s.used & (1 << exchange.token) > 0 {
            s.broken.0 |= Broken::TWICE;
        }
        s.used |= 1 << exchange.token;
    }
    exchange.phase = if b.can(Features::BODY) {
        Phase::Writing
    } else {
        Phase::Sent
    };
    s.proxies[at].exchanges[slot] = Some(exchange);
    Some(())
}

/// The rest goes upstream; or the lease has lapsed, and the connection is reset instead.
pub fn send_rest(b: &Bounds, s: &mut State, at: usize, slot: usize) -> Option<()> {
    let mut exchange = in_phase(s, at, slot, Phase::Writing)?;
    if !s.holds(at, usize::from(exchange.row)) && !b.is(Mutant::LeaseOnlyBeforeSend) {
        let left = transit::reset(b, exchange, Phase::Unknown);
        return memory::put(b, s, at, slot, left);
    }
    exchange.bytes = transit::sent(b, s, at, slot, exchange);
    exchange.phase = Phase::Sent;
    s.proxies[at].exchanges[slot] = Some(exchange);
    Some(())
}

/// G1, where bytes go upstream: the mark is durable, and the epoch is open on record.
pub fn judge_record(b: &Bounds, s: &mut State, exchange: Exchange) {
    let (token, row) = (exchange.token, usize::from(exchange.row));
    let lost = s.failover == Failover::Done && !b.is(Mutant::LostCommit);
    let open = s.store.rows[row] == token && !s.over(row);
    if (!lost || exchange.warned) && (s.store.mark < token || !open) {
        s.broken.0 |= Broken::UNRECORDED;
    }
}

/// What the guarantees say about bytes that arrive now.
pub fn judge(b: &Bounds, s: &mut State, at: usize, slot: usize, exchange: Exchange) {
    let token = exchange.token;
    // What nobody remembers nobody can notice: after a loss the promise is that of those who have
    // noticed.
    let lost = s.failover == Failover::Done && !b.is(Mutant::LostCommit);
    if !lost && (token < s.highest || exchange.outdated) {
        s.broken.0 |= Broken::STALE;
    }
    judge_record(b, s, exchange);
    if !lost || exchange.warned {
        for (owner, proxy) in s.proxies.iter().enumerate() {
            for (place, other) in proxy.exchanges.iter().enumerate() {
                let other = other.filter(|_| (owner, place) != (at, slot));
                if other.is_some_and(|o| o.up() && (o.token < token || o.outdated)) {
                    s.broken.0 |= Broken::OVERTOOK;
                }
            }
        }
    }
    s.highest = s.highest.max(token);
}

/// Nothing was sent, and it is known: the permit ends, and a spent token is given back.
pub fn not_sent(b: &Bounds, s: &mut State, at: usize, slot: usize) -> Option<()> {
    let exchange = s.proxies[at].exchanges[slot]?;
    match exchange.phase {
        Phase::Permit => {}
        Phase::Spent => {
            let row = usize::from(exchange.row);
            let mut statement = lane::new(b, s, at, exchange.token, row, Purpose::GiveBack);
            statement.name = exchange.name;
            lane::place(b, s, at, statement)?;
        }
        _ => return None,
    }
    memory::put(b, s, at, slot, None)
}

/// A timeout, a reset, a cut: the connection is reset, and the upstream works on without its
/// caller. Once the user timeout has passed, the kernel gives up what is in transit, with the proxy
/// stopped or not.
pub fn break_off(b: &Bounds, s: &mut State, at: usize, slot: usize) -> Option<()> {
    let exchange = s.proxies[at].exchanges[slot]?;
    let may = b.can(Features::BREAK) || exchange.undelivered();
    let open = (Phase::Writing..=Phase::Answered).contains(&exchange.phase);
    if !open || !may {
        return None;
    }
    let phase = b.either(Mutant::BrokenIsOver, Phase::Orphan, Phase::Unknown);
    memory::put(b, s, at, slot, transit::reset(b, exchange, phase))
}

/// The upstream has ended: its whole response has arrived, at any moment after the first byte was
/// sent; or, after a break, `settle` has passed, which it never outlasts. A response that comes
/// before all that was sent has arrived does not end the permit: the exchange is in flight until
/// the send queue is empty, or it is reset.
pub fn end(b: &Bounds, s: &mut State, at: usize, slot: usize) -> Option<()> {
    let exchange = s.proxies[at].exchanges[slot]?;
    if exchange.phase < Phase::Writing {
        return None;
    }
    if exchange.undelivered() {
        if !matches!(exchange.phase, Phase::Writing | Phase::Sent) {
            return transit::settle(b, s, at, slot);
        }
        let phase = b.either(Mutant::EarlyAnswerSettles, Phase::Orphan, Phase::Answered);
        return memory::put(b, s, at, slot, Some(Exchange { phase, ..exchange }));
    }
    if b.is(Mutant::SpendAfterSend) && s.store.mark == exchange.token {
        s.store.spent = 1;
    }
    memory::put(b, s, at, slot, None)
}

/// Returns whether the upstream has anything in hand of this instance.
pub fn works_for(s: &State, instance: usize) -> bool {
    s.exchanges()
        .any(|(_, e)| e.up() && instance_of(usize::from(e.row)) == instance)
}

/// What becomes of a proxy's exchanges when it is gone: its kernel resets their connections.
pub fn abandon(b: &Bounds, s: &mut State, at: usize) {
    for place in &mut s.proxies[at].exchanges {
        *place = place.and_then(|exchange| transit::die(b, exchange));
    }
}

fn in_phase(s: &State, at: usize, slot: usize, phase: Phase) -> Option<Exchange> {
    s.proxies[at].exchanges[slot].filter(|exchange| exchange.phase == phase)
}
