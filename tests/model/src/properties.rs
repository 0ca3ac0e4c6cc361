//! What must hold in every state, and what must be reached so that the search is known not to be
//! empty.

use stateright::{Model, Property};

use crate::action::{Action, candidates};
use crate::bounds::{Bounds, Features};
use crate::state::{
    Bar, Broken, Bytes, Failover, INSTANCES, LIVES, Life, OWN, Phase, Purpose, Stage, State,
    instance_of,
};
use crate::step::{self, exchange, statement};

/// A run of the protocol within its bounds.
#[derive(Clone, Copy, Debug)]
pub struct Protocol(pub Bounds);

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::first(&self.0)]
    }

    fn actions(&self, state: &State, out: &mut Vec<Action>) {
        candidates(&self.0, state, out);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        step::next(&self.0, state, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        if self.0.mutant.is_some() {
            // One alone: the search stops at the first state that breaks it. With several it goes
            // on for a while, and keeps the last.
            return vec![Property::always("unbroken", |_, s: &State| s.broken.0 == 0)];
        }
        let mut all = guarantees();
        all.extend(reached(&self.0));
        all
    }
}

/// What must hold in every state.
pub(crate) fn guarantees() -> Vec<Property<Protocol>> {
    vec![
        Property::always(
            "G1: sent only with mark and epoch on record",
            |_, s: &State| !s.broken.has(Broken::UNRECORDED),
        ),
        Property::always(
            "G2: nothing older is in flight at a send",
            |_, s: &State| !s.broken.has(Broken::OVERTOOK),
        ),
        Property::always("G2: nothing is sent after a newer token", |_, s: &State| {
            !s.broken.has(Broken::STALE)
        }),
        Property::always("G3: a mark never goes down", |_, s: &State| {
            !s.broken.has(Broken::FELL)
        }),
        Property::always("once: a token is sent once", |_, s: &State| {
            !s.broken.has(Broken::TWICE)
        }),
        Property::always("override: it stands", |_, s: &State| {
            !s.broken.has(Broken::UNDONE)
        }),
        Property::always("override: nothing is in flight", |_, s: &State| {
            !s.broken.has(Broken::UNDER_WAY)
        }),
        Property::always("override: no higher mark is remembered", |_, s: &State| {
            !s.broken.has(Broken::REMEMBERED)
        }),
    ]
}

type Reached = (Features, &'static str, fn(&Protocol, &State) -> bool);

/// What the first of the configurations reach: waits, late commits, deaths.
fn of_instances() -> [Reached; 8] {
    [
        (
            Features::NONE,
            "a newer token waits for another proxy's older one",
            |_, s| waits(s),
        ),
        (Features::NONE, "the newest token is sent", |m, s| {
            s.highest == m.0.tokens
        }),
        (
            Features::CRASH,
            "work goes on whose proxy is gone",
            |_, s| s.exchanges().any(|(_, e)| e.phase == Phase::Orphan),
        ),
        (
            Features::LEASE,
            "a lease lapses before a permit is used",
            |_, s| {
                s.exchanges()
                    .any(|(at, e)| e.phase == Phase::Permit && !s.proxies[at].lease)
            },
        ),
        (
            Features::LEASE,
            "an instance is dead and its work goes on",
            |_, s| {
                (0..INSTANCES).any(|i| s.store.lives[i] == Life::Dead && exchange::works_for(s, i))
            },
        ),
        (Features::LEASE, "an instance is buried", |_, s| {
            s.store.lives.contains(&Life::Gone)
        }),
        (
            Features::LEASE,
            "an epoch turns up of an instance that is buried",
            |_, s| {
                s.store
                    .rows
                    .iter()
                    .enumerate()
                    .any(|(row, token)| *token > 0 && s.store.lives[instance_of(row)] == Life::Gone)
            },
        ),
        (
            Features::LEASE,
            "a newer token is sent after a burial",
            |m, s| s.store.lives.contains(&Life::Gone) && s.highest == m.0.tokens,
        ),
    ]
}

/// What is reached where bytes are in transit.
fn of_transit() -> [Reached; 8] {
    const TRANSIT: Features = Features::TRANSIT;
    [
        (
            TRANSIT,
            "a newer token waits for an older one's bytes in transit",
            |_, s| {
                waits(s)
                    && s.exchanges()
                        .any(|(_, e)| e.bytes == Bytes::InTransit && e.token < s.store.mark)
            },
        ),
        (
            TRANSIT,
            "a newer token waits for an answered request's bytes in transit",
            |_, s| waits(s) && answered(s, Bytes::InTransit),
        ),
        (
            Features::QUEUE,
            "a newer token waits for what the library has queued of an answered request",
            |_, s| waits(s) && answered(s, Bytes::Queued),
        ),
        (
            TRANSIT.and(Features::LEASE),
            "an instance is dead with bytes in transit",
            |_, s| {
                s.exchanges().any(|(_, e)| {
                    let instance = instance_of(usize::from(e.row));
                    e.bytes == Bytes::InTransit && s.store.lives[instance] == Life::Dead
                })
            },
        ),
        (
            TRANSIT.and(Features::CRASH),
            "a proxy is gone, and its epoch waits for nothing",
            |_, s| {
                (0..INSTANCES).any(|i| {
                    let on_record = exchange::rows_of(i).any(|row| s.store.rows[row] > 0);
                    let here = s.proxies[i / LIVES].running && s.instance(i / LIVES) == i;
                    on_record && !here && !exchange::works_for(s, i)
                })
            },
        ),
        (
            TRANSIT.and(Features::BREAK),
            "what had arrived of an exchange is settled",
            |_, s| {
                s.exchanges()
                    .any(|(_, e)| e.phase == Phase::Unknown && e.up())
            },
        ),
        (
            Features::QUEUE,
            "a newer token waits for what the library has queued",
            |_, s| {
                waits(s)
                    && s.exchanges()
                        .any(|(_, e)| e.bytes == Bytes::Queued && e.token < s.store.mark)
            },
        ),
        (
            Features::TRICKLE,
            "an instance is dead, and a part of its request has arrived",
            |_, s| {
                s.exchanges().any(|(_, e)| {
                    let instance = instance_of(usize::from(e.row));
                    e.bytes == Bytes::Partly && s.store.lives[instance] == Life::Dead
                })
            },
        ),
    ]
}

/// What the others reach, each by what it switches on.
fn of_the_rest() -> [Reached; 12] {
    [
        (
            Features::IDLE,
            "nobody has an epoch open, and the mark stands",
            |_, s| s.highest > 0 && s.present() == 0,
        ),
        (
            Features::LOCKS,
            "a statement waits for a row lock",
            |_, s| s.locked() && statements(s, |t| t.stage == Stage::Sent) > 0,
        ),
        (
            Features::LOCKS,
            "a late statement holds the row lock",
            |_, s| statements(s, |t| t.stage == Stage::Locked && t.late) > 0,
        ),
        (Features::SPEND, "a token is found spent", |_, s| {
            statements(s, |t| {
                t.stage == Stage::Committed && t.purpose == Purpose::Spend && !t.won
            }) > 0
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
            |_, s| {
                statements(s, |t| {
                    t.stage == Stage::Committed && !statement::opened(t) && t.row_era > t.era
                }) > 0
            },
        ),
        (
            Features::FAILOVER,
            "a proxy knows a mark that is lost",
            |_, s| s.failover == Failover::Done && s.proxies.iter().any(|p| p.known > s.store.mark),
        ),
        (
            Features::FAILOVER,
            "lost marks are written back and settle",
            |_, s| s.proxies.iter().any(|p| p.bar == Bar::Settling),
        ),
        (
            Features::FAILOVER,
            "the repaired resource is sent to again",
            |_, s| {
                s.proxies.iter().any(|p| {
                    p.warned
                        && p.bar == Bar::None
                        && p.exchanges
                            .iter()
                            .flatten()
                            .any(|e| e.phase == Phase::Permit)
                })
            },
        ),
        (
            Features::BREAK,
            "a newer token waits for what was broken off",
            |_, s| s.exchanges().any(|(_, e)| e.phase == Phase::Unknown) && waits(s),
        ),
        (Features::LEAVE, "a proxy has left work behind", |_, s| {
            s.exchanges().any(|(at, e)| {
                let row = usize::from(e.row);
                !s.proxies[at].running && s.store.lives[instance_of(row)] == Life::Dead
            })
        }),
    ]
}

fn reached(bounds: &Bounds) -> Vec<Property<Protocol>> {
    let mut properties: Vec<_> = of_instances()
        .into_iter()
        .chain(of_transit())
        .chain(of_the_rest())
        .filter(|(needs, ..)| bounds.can(*needs))
        .map(|(_, name, condition)| Property::sometimes(name, condition))
        .collect();
    if bounds.late > 0 {
        properties.push(Property::sometimes(
            "an opening turns up after its answer was given up",
            |_, s: &State| stray(s),
        ));
    }
    if bounds.rejoins() {
        properties.push(Property::sometimes(
            "a proxy is another instance",
            |_, s: &State| {
                s.proxies
                    .iter()
                    .any(|proxy| proxy.running && proxy.life > 0)
            },
        ));
        if bounds.can(Features::LEASE) {
            properties.push(Property::sometimes(
                "a proxy has rejoined, and its old work is still counted",
                |_, s: &State| {
                    s.exchanges().any(|(at, e)| {
                        let life = instance_of(usize::from(e.row)) % LIVES;
                        e.phase == Phase::Sent && life < usize::from(s.proxies[at].life)
                    })
                },
            ));
        }
    }
    properties
}

fn waits(s: &State) -> bool {
    let mut epochs = s.proxies.iter().flat_map(|proxy| &proxy.epochs);
    epochs.any(|epoch| epoch.foreign > 0 && !epoch.closing)
}

/// A request below the mark has its whole response, and its bytes are still there.
fn answered(s: &State, bytes: Bytes) -> bool {
    let mut all = s.exchanges();
    all.any(|(_, e)| e.phase == Phase::Answered && e.bytes == bytes && e.token < s.store.mark)
}

/// A row that its owner, who lives, does not know of.
fn stray(s: &State) -> bool {
    s.store.rows.iter().enumerate().any(|(row, token)| {
        let at = row / OWN;
        let proxy = &s.proxies[at];
        let mut asked = proxy.statements.iter().flatten();
        *token > 0
            && proxy.running
            && instance_of(row) == s.instance(at)
            && proxy.epochs[row % OWN].token == 0
            && proxy.closes & crate::state::bit(row) == 0
            && !asked.any(|t| usize::from(t.row) == row)
    })
}

fn statements(s: &State, which: impl Fn(&crate::state::Statement) -> bool) -> usize {
    let all = s.proxies.iter().flat_map(|proxy| &proxy.statements);
    all.flatten().filter(|statement| which(statement)).count()
}
