//! What must hold in every state, and what must be reached so that the search is known not to be
//! empty.

use crate::bounds::{Bounds, Features};
use crate::check::{Action, Conditions, Run, Steps, reached};
use crate::state::{
    Bar, Broken, Bytes, Exchange, Failover, INSTANCES, LIVES, Life, PROXIES, Phase, Proxy, Purpose,
    Stage, State, Statement, instance_of, of, rows,
};
use crate::step::exchange::works_for;
use crate::step::{self, statement};

impl Run for Bounds {
    type State = State;

    const GUARANTEES: &'static [(&'static str, u16)] = &[
        ("G1: sent with mark and epoch", Broken::UNRECORDED),
        ("G2: nothing older is in flight at a send", Broken::OVERTOOK),
        ("G2: nothing is sent after a newer token", Broken::STALE),
        ("G3: a mark never goes down", Broken::FELL),
        ("once: a token is sent once", Broken::TWICE),
        ("override: it stands", Broken::UNDONE),
        ("override: nothing is in flight", Broken::UNDER_WAY),
        ("override: no higher mark is remembered", Broken::REMEMBERED),
        ("loss: none is found where nothing is lost", Broken::ALARM),
    ];

    fn first(&self) -> State {
        State::first(self)
    }

    fn steps<F: FnMut(Action, State)>(&self, from: &mut Steps<'_, Self, F>) {
        step::all(from);
    }

    fn after(&self, state: State) -> State {
        step::after(self, state)
    }

    fn broken(state: &State) -> u16 {
        state.broken.0
    }

    reached! { |b, s|
        (true) {
            "a newer token waits for another proxy's older one": waits(s);
            "the newest token is sent": s.highest == b.tokens;
            "no epoch is open, and the mark stands": s.highest > 0 && s.open() == 0;
            "an opening turns up after its answer was given up": {
                let shows = b.late > 0 && (b.can(Features::PUBLISH) || b.loses());
                !shows || stray(s)
            };
            "a proxy is another instance": !b.rejoins() || proxy(s, |p| p.running && p.life > 0);
        }
        (b.can(Features::CRASH)) {
            "work goes on whose proxy is gone": exchange(s, |_, e| e.phase == Phase::Orphan);
        }
        (b.can(Features::LEASE)) {
            "a lease lapses before a permit is used":
                exchange(s, |at, e| e.phase == Phase::Permit && !s.proxies[at].lease);
            "an instance is dead and its work goes on":
                (0..INSTANCES).any(|i| s.store.lives[i] == Life::Dead && works_for(s, i));
            "an instance is settled": s.store.lives.contains(&Life::Gone);
            "an epoch turns up of an instance that is settled":
                rows(s.present(), |row| life(s, row) == Life::Gone) > 0;
            "a newer token is sent after an instance has settled":
                s.store.lives.contains(&Life::Gone) && s.highest == b.tokens;
            "a proxy has rejoined, and its former work is still counted": {
                let former = |at: usize, e: Exchange| {
                    let life = instance_of(usize::from(e.row)) % LIVES;
                    e.phase == Phase::Sent && life < usize::from(s.proxies[at].life)
                };
                !b.rejoins() || exchange(s, former)
            };
        }
        (b.can(Features::UNKNOWN)) {
            "an instance that was not on record is again": s.store.lives[0] == Life::Alive;
        }
        (b.can(Features::LEAVE)) {
            "a proxy has left work behind": {
                exchange(s, |at, e| {
                    !s.proxies[at].running && life(s, usize::from(e.row)) == Life::Dead
                })
            };
        }
        (b.can(Features::TRANSIT)) {
            "a newer token waits for an older one's bytes in transit":
                waits(s) && undelivered(s, Bytes::InTransit);
            "a newer token waits for an answered request's bytes in transit":
                waits(s) && answered(s, Bytes::InTransit);
        }
        (b.can(Features::QUEUE)) {
            "a newer token waits for what the library has queued":
                waits(s) && undelivered(s, Bytes::Queued);
            "a newer token waits for what the library has queued of an answered request":
                waits(s) && answered(s, Bytes::Queued);
        }
        (b.can(Features::TRANSIT.and(Features::LEASE))) {
            "an instance is dead with bytes in transit": dead_with(s, Bytes::InTransit);
        }
        (b.can(Features::TRICKLE)) {
            "an instance is dead, and a part of a request has arrived": dead_with(s, Bytes::Partly);
        }
        (b.can(Features::TRANSIT.and(Features::CRASH))) {
            "a proxy is gone, and its epoch waits for nothing": {
                (0..INSTANCES).any(|i| {
                    let here = s.proxies[i / LIVES].running && s.instance(i / LIVES) == i;
                    s.present() & of(i) > 0 && !here && !works_for(s, i)
                })
            };
        }
        (b.can(Features::TRANSIT.and(Features::BREAK))) {
            "what had arrived of an exchange is settled":
                exchange(s, |_, e| e.phase == Phase::Unknown && e.up());
        }
        (b.can(Features::SPEND)) {
            "a token is found spent": answer(s, |t| t.purpose == Purpose::Spend && !t.won);
            "a token that was given back is sent": s.given_back && s.used & (1 << s.store.mark) > 0;
        }
        (b.can(Features::OVERRIDE)) {
            "a mark is lowered, and tokens are sent again": s.overrides > 0 && s.highest > 0;
            "a statement of an earlier era is sent back":
                answer(s, |t| !statement::opened(t) && t.row_era > t.era);
        }
        (b.can(Features::FAILOVER)) {
            "a proxy knows a mark that is lost":
                s.failover == Failover::Done && proxy(s, |p| p.known > s.store.mark);
            "lost marks are written back and settle": proxy(s, |p| p.bar == Bar::Settling);
            "the repaired resource is sent to again": {
                exchange(s, |at, e| {
                    let proxy = s.proxies[at];
                    proxy.warned && proxy.bar == Bar::None && e.phase == Phase::Permit
                })
            };
        }
        (b.can(Features::BREAK)) {
            "a newer token waits for what was broken off":
                waits(s) && exchange(s, |_, e| e.phase == Phase::Unknown);
        }
        (b.can(Features::PUBLISH)) {
            "a newer token waits for what a publication on its way ends": {
                let sent = s.proxies.iter().flat_map(|proxy| &proxy.publications);
                waits(s) && sent.flatten().any(|(_, one)| one.below & s.open() > 0)
            };
            // An epoch stands in the row, and its owner, who lives, has published that it is over.
            "a publication is on record, and a late one on its way says less":
                b.publications < 2
                    || rows(s.present(), |row| life(s, row) == Life::Alive && s.over(row)) > 0;
            "two publications are on their way":
                b.publications < 2 || proxy(s, |p| p.publications.iter().all(Option::is_some));
        }
        (b.can(Features::REFRESH)) {
            "requests are in flight under two epochs of one token": {
                let two = |p: &Proxy| match p.exchanges {
                    [Some(one), Some(other)] => one.token == other.token && one.row != other.row,
                    _ => false,
                };
                b.exchanges < 2 || proxy(s, two)
            };
        }
        (b.can(Features::LOOK)) {
            "an answer to a look names an epoch that is gone": {
                let found = |p: &Proxy| p.look.and_then(|(_, found)| found);
                proxy(s, |p| found(p).is_some_and(|found| found & !s.open() > 0))
            };
        }
        (b.can(Features::PRUNE)) {
            "tokens are sent after a pruning": s.pruned && s.highest > 0;
            "a mark that is pruned is remembered": s.pruned && proxy(s, |p| p.known > s.store.mark);
        }
    }
}

fn proxy(s: &State, which: impl Fn(&Proxy) -> bool) -> bool {
    s.proxies.iter().any(which)
}

fn exchange(s: &State, which: impl Fn(usize, Exchange) -> bool) -> bool {
    s.exchanges().any(|(at, exchange)| which(at, exchange))
}

/// A statement has been answered, and this is so of it.
fn answer(s: &State, which: impl Fn(&Statement) -> bool) -> bool {
    let mut all = s
        .proxies
        .iter()
        .flat_map(|proxy| &proxy.statements)
        .flatten();
    all.any(|statement| statement.stage == Stage::Committed && which(statement))
}

fn waits(s: &State) -> bool {
    let mut epochs = s.proxies.iter().flat_map(|proxy| &proxy.epochs);
    epochs.any(|epoch| epoch.foreign > 0 && !epoch.closing)
}

/// Of a request below the mark, this is where the bytes are.
fn undelivered(s: &State, bytes: Bytes) -> bool {
    exchange(s, |_, e| e.bytes == bytes && e.token < s.store.mark)
}

/// A request below the mark has its whole response, and its bytes are still there.
fn answered(s: &State, bytes: Bytes) -> bool {
    exchange(s, |_, e| {
        e.phase == Phase::Answered && e.bytes == bytes && e.token < s.store.mark
    })
}

fn dead_with(s: &State, bytes: Bytes) -> bool {
    exchange(s, |_, e| {
        e.bytes == bytes && life(s, usize::from(e.row)) == Life::Dead
    })
}

/// What is on record of the instance whose epoch this is.
fn life(s: &State, row: usize) -> Life {
    s.store.lives[instance_of(row)]
}

/// An epoch stands in the row that its owner, who lives, does not use.
fn stray(s: &State) -> bool {
    (0..PROXIES).any(|at| s.proxies[at].running && s.present() & s.own(at) & !s.used(at) > 0)
}
