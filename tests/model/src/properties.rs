//! What must hold in every state, and what must be reached so that the search is known not to be
//! empty.

use crate::bounds::{Bounds, Features};
use crate::check::{Action, Reached, Run, Steps};
use crate::state::{
    Bar, Broken, Bytes, Exchange, Failover, INSTANCES, LIVES, Life, PROXIES, Phase, Proxy, Purpose,
    Stage, State, Statement, instance_of, of, rows,
};
use crate::step::exchange::works_for;
use crate::step::{self, statement};

impl Run for Bounds {
    type State = State;

    const GUARANTEES: &'static [(&'static str, u16)] = &[
        (
            "G1: sent only with mark and epoch on record",
            Broken::UNRECORDED,
        ),
        ("G2: nothing older is in flight at a send", Broken::OVERTOOK),
        ("G2: nothing is sent after a newer token", Broken::STALE),
        ("G3: a mark never goes down", Broken::FELL),
        ("once: a token is sent once", Broken::TWICE),
        ("override: it stands", Broken::UNDONE),
        ("override: nothing is in flight", Broken::UNDER_WAY),
        ("override: no higher mark is remembered", Broken::REMEMBERED),
        ("loss: none is found where nothing is lost", Broken::ALARM),
    ];

    fn name(&self) -> String {
        self.mutant
            .map_or(self.name.to_owned(), |mutant| format!("{mutant:?}"))
    }

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

    fn reached(&self) -> Vec<Reached<Self>> {
        let tables = [OF_INSTANCES, OF_TRANSIT, OF_THE_REST]
            .into_iter()
            .flatten();
        let here = tables.filter(|(needs, ..)| self.can(*needs));
        here.map(|(_, name, condition)| (*name, *condition))
            .collect()
    }
}

/// What must be reached where this may happen.
type Table = &'static [(Features, &'static str, fn(&Bounds, &State) -> bool)];

/// What the first of the configurations reach: waits, late commits, deaths.
const OF_INSTANCES: Table = &[
    (
        Features::NONE,
        "a newer token waits for another proxy's older one",
        |_, s| waits(s),
    ),
    (Features::NONE, "the newest token is sent", |b, s| {
        s.highest == b.tokens
    }),
    (
        Features::NONE,
        "no epoch is open, and the mark stands",
        |_, s| s.highest > 0 && s.open() == 0,
    ),
    (
        Features::NONE,
        "an opening turns up after its answer was given up",
        |b, s| {
            let shows = b.late > 0 && (b.can(Features::PUBLISH) || b.loses());
            !shows || stray(s)
        },
    ),
    (Features::NONE, "a proxy is another instance", |b, s| {
        !b.rejoins() || proxy(s, |p| p.running && p.life > 0)
    }),
    (
        Features::CRASH,
        "work goes on whose proxy is gone",
        |_, s| exchange(s, |_, e| e.phase == Phase::Orphan),
    ),
    (
        Features::LEASE,
        "a lease lapses before a permit is used",
        |_, s| exchange(s, |at, e| e.phase == Phase::Permit && !s.proxies[at].lease),
    ),
    (
        Features::LEASE,
        "an instance is dead and its work goes on",
        |_, s| (0..INSTANCES).any(|i| s.store.lives[i] == Life::Dead && works_for(s, i)),
    ),
    (Features::LEASE, "an instance is settled", |_, s| {
        s.store.lives.contains(&Life::Gone)
    }),
    (
        Features::LEASE,
        "an epoch turns up of an instance that is settled",
        |_, s| rows(s.present(), |row| life(s, row) == Life::Gone) > 0,
    ),
    (
        Features::LEASE,
        "a newer token is sent after an instance has settled",
        |b, s| s.store.lives.contains(&Life::Gone) && s.highest == b.tokens,
    ),
    (
        Features::LEASE,
        "a proxy has rejoined, and its former work is still counted",
        |b, s| {
            let former = |at: usize, e: Exchange| {
                let life = instance_of(usize::from(e.row)) % LIVES;
                e.phase == Phase::Sent && life < usize::from(s.proxies[at].life)
            };
            !b.rejoins() || exchange(s, former)
        },
    ),
    (
        Features::UNKNOWN,
        "an instance that was not on record is on record again",
        |_, s| s.store.lives[0] == Life::Alive,
    ),
    (Features::LEAVE, "a proxy has left work behind", |_, s| {
        exchange(s, |at, e| {
            !s.proxies[at].running && life(s, usize::from(e.row)) == Life::Dead
        })
    }),
];

/// What is reached where bytes are in transit.
const OF_TRANSIT: Table = &[
    (
        Features::TRANSIT,
        "a newer token waits for an older one's bytes in transit",
        |_, s| waits(s) && undelivered(s, Bytes::InTransit),
    ),
    (
        Features::TRANSIT,
        "a newer token waits for an answered request's bytes in transit",
        |_, s| waits(s) && answered(s, Bytes::InTransit),
    ),
    (
        Features::QUEUE,
        "a newer token waits for what the library has queued",
        |_, s| waits(s) && undelivered(s, Bytes::Queued),
    ),
    (
        Features::QUEUE,
        "a newer token waits for what the library has queued of an answered request",
        |_, s| waits(s) && answered(s, Bytes::Queued),
    ),
    (
        Features::TRANSIT.and(Features::LEASE),
        "an instance is dead with bytes in transit",
        |_, s| dead_with(s, Bytes::InTransit),
    ),
    (
        Features::TRICKLE,
        "an instance is dead, and a part of its request has arrived",
        |_, s| dead_with(s, Bytes::Partly),
    ),
    (
        Features::TRANSIT.and(Features::CRASH),
        "a proxy is gone, and its epoch waits for nothing",
        |_, s| {
            (0..INSTANCES).any(|i| {
                let here = s.proxies[i / LIVES].running && s.instance(i / LIVES) == i;
                s.present() & of(i) > 0 && !here && !works_for(s, i)
            })
        },
    ),
    (
        Features::TRANSIT.and(Features::BREAK),
        "what had arrived of an exchange is settled",
        |_, s| exchange(s, |_, e| e.phase == Phase::Unknown && e.up()),
    ),
];

/// What the others reach, each by what it switches on.
const OF_THE_REST: Table = &[
    (Features::SPEND, "a token is found spent", |_, s| {
        answer(s, |t| t.purpose == Purpose::Spend && !t.won)
    }),
    (
        Features::SPEND,
        "a token that was given back is sent",
        |_, s| s.given_back && s.used & (1 << s.store.mark) > 0,
    ),
    (
        Features::OVERRIDE,
        "a mark is lowered, and tokens are sent again",
        |_, s| s.overrides > 0 && s.highest > 0,
    ),
    (
        Features::OVERRIDE,
        "a statement of an earlier era is sent back",
        |_, s| answer(s, |t| !statement::opened(t) && t.row_era > t.era),
    ),
    (
        Features::FAILOVER,
        "a proxy knows a mark that is lost",
        |_, s| s.failover == Failover::Done && proxy(s, |p| p.known > s.store.mark),
    ),
    (
        Features::FAILOVER,
        "lost marks are written back and settle",
        |_, s| proxy(s, |p| p.bar == Bar::Settling),
    ),
    (
        Features::FAILOVER,
        "the repaired resource is sent to again",
        |_, s| {
            exchange(s, |at, e| {
                let proxy = s.proxies[at];
                proxy.warned && proxy.bar == Bar::None && e.phase == Phase::Permit
            })
        },
    ),
    (
        Features::BREAK,
        "a newer token waits for what was broken off",
        |_, s| waits(s) && exchange(s, |_, e| e.phase == Phase::Unknown),
    ),
    (
        Features::PUBLISH,
        "a newer token waits for what a publication on its way ends",
        |_, s| {
            let sent = s.proxies.iter().flat_map(|proxy| &proxy.publications);
            waits(s) && sent.flatten().any(|(_, one)| one.below & s.open() > 0)
        },
    ),
    (
        Features::PUBLISH,
        "a publication is on record, and a late one on its way says less",
        |b, s| b.publications < 2 || rows(s.present(), |row| over(s, row)) > 0,
    ),
    (
        Features::PUBLISH,
        "two publications are on their way",
        |b, s| b.publications < 2 || proxy(s, |p| p.publications.iter().all(Option::is_some)),
    ),
    (
        Features::REFRESH,
        "requests are in flight under two epochs of one token",
        |b, s| {
            let two = |p: &Proxy| match p.exchanges {
                [Some(one), Some(other)] => one.token == other.token && one.row != other.row,
                _ => false,
            };
            b.exchanges < 2 || proxy(s, two)
        },
    ),
    (
        Features::LOOK,
        "an answer to a look names an epoch that is gone",
        |_, s| {
            let found = |p: &Proxy| p.look.and_then(|(_, found)| found);
            proxy(s, |p| found(p).is_some_and(|found| found & !s.open() > 0))
        },
    ),
    (
        Features::PRUNE,
        "tokens are sent after a pruning",
        |_, s| s.pruned && s.highest > 0,
    ),
    (
        Features::PRUNE,
        "a proxy remembers a mark that is pruned",
        |_, s| s.pruned && proxy(s, |p| p.known > s.store.mark),
    ),
];

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

/// An epoch stands in the row, and its owner, who lives, has published that it is over.
fn over(s: &State, row: usize) -> bool {
    life(s, row) == Life::Alive && s.over(row)
}
