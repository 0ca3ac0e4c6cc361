//! Enters the answer of a statement, and answers the requests that waited for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::EpochTable;
use super::compose::{Asked, Composed, Sent};
use super::entry::{EpochEntry, OwnEpoch, Quarantine, Statement};
use super::request::{Answers, Waiter, Want};
use crate::fencing::lease::Identity;
use crate::fencing::refused::Refused;
use crate::metrics::DecidedBy;
use crate::routing::{self, Decision, ResourceKey, Token};
use crate::store::{Ask, Epoch, Found, Notification, Opening, StoreError};

/// How often a request is asked again before it is refused.
const MAX_TRIES: u8 = 4;

const LOST: &str = "the store has lost marks of this resource";

/// The consequences of an answer.
#[derive(Default)]
pub struct Entering {
    /// To be delivered.
    pub answers: Answers,
    /// For the owners of the older epochs that were met.
    pub older: Vec<Notification>,
}

impl EpochTable {
    /// Enters the answer of a statement, or that none came: then nothing is concluded. `holds`:
    /// whether the lease of its identity holds.
    pub fn answered(
        &self,
        composed: Composed,
        result: Result<Vec<Found>, StoreError>,
        holds: bool,
        now: Instant,
    ) -> Entering {
        let Composed {
            mut sent,
            asks,
            asked,
            ..
        } = composed;
        (sent.holds, sent.now) = (holds, now);
        let mut out = Entering::default();
        match result {
            Ok(found) => {
                self.ready.passed(asks.iter().map(|ask| &ask.resource));
                for ((ask, asked), found) in asks.into_iter().zip(asked).zip(found) {
                    self.enter_one(&sent, &ask, asked, &found, &mut out);
                }
            }
            Err(error) => {
                let locked = matches!(error, StoreError::LockTimeout(_));
                let refused = Refused::no_answer(error.to_string());
                for (ask, asked) in asks.into_iter().zip(asked) {
                    if locked {
                        self.ready.suspect(&ask.resource);
                    }
                    let mut waiters = asked.waiters;
                    // The server has rolled back a statement that ran into a lock: it is sent again.
                    if !locked {
                        for waiter in waiters.drain(..) {
                            out.answers.push(waiter, Err(refused.clone()));
                        }
                    }
                    self.done(&sent, &ask.resource, |entry| entry.asking.extend(waiters));
                }
            }
        }
        out
    }

    /// Ends a statement about a resource. If more is asked, the next one is due.
    fn done(&self, sent: &Sent, key: &ResourceKey, f: impl FnOnce(&mut EpochEntry)) {
        let due = self.with(key, |entry| {
            f(entry);
            entry.answered()
        });
        if due {
            self.ready.push(sent.lane, key.clone());
        }
    }

    fn enter_one(&self, sent: &Sent, ask: &Ask, asked: Asked, found: &Found, out: &mut Entering) {
        let key = &ask.resource;
        if found.era > sent.era {
            self.adopt(found.era);
            self.done(sent, key, |entry| {
                entry.ask_again(asked.waiters, &mut out.answers);
            });
            return;
        }
        let mut shard = self.shard(key);
        let unchanged = self.newest.load(Ordering::Acquire) == sent.era;
        let spend = asked.spent.as_ref();
        // A spending that is being given back is no longer known here.
        let spend = spend.filter(|spend| unchanged && shard.spends.peek(key) == Some(spend));
        let unspent = spend.is_some_and(|spend| spend.is_missing(ask.token, found));
        let known = asked.known;
        let lost = known.is_some_and(|(known, learned)| {
            unchanged && found.era <= learned && found.before < Some(known)
        });
        let mark = mark_after(ask, found);
        let again = self.within(&mut shard, key, |entry| {
            if known.is_some_and(|(_, learned)| found.era > learned) {
                // The mark was overridden since. If epochs are open here, they were missing from
                // the store then.
                entry.overruled();
            }
            if lost || unspent || (sent.holds && entry.misses(&sent.by, &asked.used, &found.open)) {
                self.lost(key, entry, known.map(|(known, _)| known), found.before);
                for waiter in asked.waiters {
                    out.answers.push(waiter, Err(Refused::no_answer(LOST)));
                }
                return entry.answered();
            }
            let doubt = self.open(sent, ask, found, mark, entry, out);
            if let Some(mark) = mark
                && unchanged
            {
                entry.want_below(mark);
                entry.learn(mark, sent.era);
            }
            judge_all(ask, (found, mark), asked.waiters, doubt, entry, out);
            entry.answered()
        });
        if !lost && !unspent && mark == Some(ask.token) {
            let own = ask.spend.as_deref();
            self.learn_spent_in(&mut shard, key, ask.token, found, sent.era, own);
        }
        drop(shard);
        if mark.is_some() && found.before.is_none() {
            self.setup.metrics.series.new_resources.inc();
        }
        if again {
            self.ready.push(sent.lane, key.clone());
        }
    }

    /// Registers the epoch that the statement has opened, if it has. Returns why it cannot be used.
    fn open(
        &self,
        sent: &Sent,
        ask: &Ask,
        found: &Found,
        mark: Option<Token>,
        entry: &mut EpochEntry,
        out: &mut Entering,
    ) -> Option<&'static str> {
        let opening = ask.opening?;
        let me = sent.by.instance;
        let mut open = found.open.iter().copied();
        let own = open.find(|epoch| epoch.instance == me && epoch.opening == opening);
        let Some(own) = own else {
            // A request with another token may still be answered.
            return (mark == Some(ask.token)).then_some(LOST);
        };
        // Under the shard's lock: this instance has been declared dead since it asked. Then the
        // epoch holds no request back, and its mark may be overridden already.
        if sent.by.incarnation < self.incarnation.load(Ordering::Acquire) {
            return Some("this proxy has rejoined the store meanwhile");
        }
        let foreign = found.open.iter().copied();
        let foreign = foreign.filter(|other| other.instance != me && other.token < own.token);
        let foreign: Vec<Epoch> = foreign.collect();
        let owners = foreign.iter().map(|epoch| epoch.instance);
        let notify = |owner| Notification::to(owner, &ask.resource, own.token);
        out.older.extend(owners.map(notify));
        entry.close(|same| same.epoch.token == own.token);
        entry.epochs.push(OwnEpoch {
            epoch: own,
            incarnation: sent.by.incarnation,
            server: sent.server,
            foreign,
            permits: 0,
            unknown: Vec::new(),
            closing: false,
            wanted: false,
            superseded: Arc::new(CancellationToken::new()),
            used: sent.now,
            looked: sent.now,
        });
        // No override lowers the mark below an open epoch, whatever the era.
        entry.learn(ask.token, sent.era);
        entry.ring();
        None
    }

    /// Refuses the resource until what the store has lost of it was written back and has settled.
    pub(super) fn lost(
        &self,
        key: &ResourceKey,
        entry: &mut EpochEntry,
        known: Option<Token>,
        found: Option<Token>,
    ) {
        let text = |token: Option<Token>| token.map_or("none".into(), |token| token.to_string());
        if let Some(left_out) = self.losses.say(Instant::now()) {
            tracing::error!(resource = %key, known = text(known), found = text(found), left_out,
                "the store has lost a mark, an epoch or that a token is spent; it is written back, and the resource \
                 refused until that is done and has settled");
        }
        self.setup.metrics.series.mark_regressions.inc();
        entry.quarantine = Some(Quarantine::Repairing);
        self.errands.repairs.must([key.clone()]);
    }
}

impl EpochEntry {
    /// Ends the statement about this resource. Says whether the next one is due.
    fn answered(&mut self) -> bool {
        self.statement = Statement::None;
        !self.asking.is_empty() && self.due()
    }

    /// Whether one of these epochs, which are in use, is not open in the store.
    pub(super) fn misses(&mut self, by: &Identity, used: &[Opening], open: &[Epoch]) -> bool {
        used.iter().any(|opening| {
            let is = |epoch: &Epoch| epoch.instance == by.instance && epoch.opening == *opening;
            !open.iter().any(is) && self.epoch(by.instance, *opening).is_some()
        })
    }

    /// Asks again for these requests. Either the row is of a later era than the statement knew, so
    /// that nothing was changed, or the statement was about another request's token. A request that
    /// spends under a permit is refused instead: its epoch was gone when the mark was overridden,
    /// so the permit is void.
    fn ask_again(&mut self, waiters: Vec<Waiter>, answers: &mut Answers) {
        for mut waiter in waiters {
            waiter.tries += 1;
            if waiter.tries >= MAX_TRIES || matches!(waiter.want, Want::Spend(_)) {
                let why = "the mark has changed meanwhile, or was overridden";
                answers.push(waiter, Err(Refused::no_answer(why)));
            } else {
                self.asking.push(waiter);
            }
        }
    }
}

/// The mark after a statement with this answer, if it is known to be in the store.
fn mark_after(ask: &Ask, found: &Found) -> Option<Token> {
    if ask.needs.met_by(found.before) {
        found.before.max(Some(ask.token))
    } else {
        found.before
    }
}

/// Answers the requests that share a statement, which asks for one token of the resource. Others
/// may wait with it: older tokens, and newer ones that are not believed yet. `doubt`: why its epoch
/// cannot be used.
fn judge_all(
    ask: &Ask,
    (found, mark): (&Found, Option<Token>),
    waiters: Vec<Waiter>,
    doubt: Option<&'static str>,
    entry: &mut EpochEntry,
    out: &mut Entering,
) {
    let mut advanced = found.before < mark;
    let mut again = Vec::new();
    for waiter in waiters {
        let believed = waiter.needs.met_by(mark);
        let refused = match routing::judge(mark, waiter.token) {
            Decision::Stale { mark } => Refused::stale(mark, DecidedBy::Store),
            _ if !believed => Refused::Implausible { mark },
            // The mark is its token, by this statement or before it.
            Decision::Current if waiter.token == ask.token => match (&waiter.want, doubt) {
                (Want::Spend(name), _) if found.spent_by.as_ref() != Some(name) => Refused::Spent,
                (Want::Open, Some(doubt)) => Refused::no_answer(doubt),
                (Want::Open | Want::Raise | Want::Spend(_), _) => {
                    out.answers.push(waiter, Ok(std::mem::take(&mut advanced)));
                    continue;
                }
            },
            // This statement does not decide about its token.
            Decision::Current | Decision::Advanced => {
                again.push(waiter);
                continue;
            }
        };
        out.answers.push(waiter, Err(refused));
    }
    entry.ask_again(again, &mut out.answers);
}
