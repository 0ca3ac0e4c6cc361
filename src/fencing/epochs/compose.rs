//! Composes the statement of a lane: one ask for each resource that is due, whose requests fold
//! into the highest of their tokens.

use std::sync::atomic::Ordering;

use tokio::time::Instant;

use super::entry::{EpochEntry, Statement};
use super::request::{Answers, Waiter, Want};
use super::spent::Spend;
use super::{EpochTable, Lane};
use crate::fencing::lease::Identity;
use crate::fencing::refused::Refused;
use crate::metrics::DecidedBy;
use crate::routing::{Needs, ResourceKey, Token, stale_by};
use crate::store::{Ask, Batch, Era, Opening};

/// A statement that is to be sent. Its answer goes to [`EpochTable::answered`], whatever it is.
#[must_use = "requests wait for its answer"]
pub struct Composed {
    pub(super) sent: Sent,
    pub(super) asks: Vec<Ask>,
    /// One for each ask.
    pub(super) asked: Vec<Asked>,
    used: Vec<Opening>,
    next: Opening,
}

/// How a statement is sent, and then how its answer is entered.
pub(super) struct Sent {
    pub(super) lane: Lane,
    /// The identity of this instance when it is sent.
    pub(super) by: Identity,
    pub(super) era: Era,
    pub(super) server: u64,
    /// Whether the lease of `by` holds when the answer has come.
    pub(super) holds: bool,
    /// The moment at which it is composed, and then that of the answer.
    pub(super) now: Instant,
}

/// The requests of one ask, and what was known here before it was sent.
pub(super) struct Asked {
    pub(super) waiters: Vec<Waiter>,
    /// The mark that was durable, and the era it was learned in.
    pub(super) known: Option<(Token, Era)>,
    /// The token that was spent.
    pub(super) spent: Option<Spend>,
    /// The openings of this instance that are in use.
    pub(super) used: Vec<Opening>,
}

impl Composed {
    pub fn batch(&self) -> Batch<'_> {
        Batch {
            instance: self.sent.by.instance,
            era: self.sent.era,
            asks: &self.asks,
            used: &self.used,
            next: self.next,
        }
    }
}

impl EpochTable {
    /// The lane's next statement, unless nothing is due, and the answers that memory could give
    /// meanwhile. `holds`: whether the lease of `by` holds.
    pub fn compose(
        &self,
        lane: Lane,
        by: Identity,
        holds: impl Fn() -> bool,
        now: Instant,
    ) -> (Option<Composed>, Answers) {
        let mut answers = Answers::default();
        let mut composed = Composed {
            sent: Sent {
                lane,
                by,
                // Before the known marks. If an override is learned of in between, the statement
                // is asked again. In the other order, a mark of the previous era would be missing
                // in the new one, and be taken for lost.
                era: self.era(),
                server: self.server(),
                holds: false,
                now,
            },
            asks: Vec::new(),
            asked: Vec::new(),
            used: Vec::new(),
            next: 0,
        };
        for key in self.ready.take(lane, now) {
            self.compose_one(&key, &mut composed, &mut answers);
        }
        // The lease is checked after the known marks were read. An instance that may have been
        // declared dead may have missed an override of what its epochs protected. So it does not
        // compare its marks with the store's.
        if !holds() {
            for asked in &mut composed.asked {
                (asked.known, asked.spent) = (None, None);
            }
        }
        composed.next = self.opening.load(Ordering::Acquire);
        let some = !composed.asks.is_empty();
        (some.then_some(composed), answers)
    }

    fn compose_one(&self, key: &ResourceKey, composed: &mut Composed, answers: &mut Answers) {
        let mut shard = self.shard(key);
        let spent = shard.spends.peek(key).cloned();
        let Sent { by, server, .. } = &composed.sent;
        let asked = self.within(&mut shard, key, |entry| {
            entry.statement = Statement::None;
            let waiters = entry.still_asking((by.incarnation, *server), answers);
            let known = entry.known;
            let (token, believed) = choose(&waiters, entry.mark())?;
            let top = || waiters.iter().filter(|waiter| waiter.token == token);
            let opens = top().any(|waiter| waiter.want == Want::Open);
            let opening = opens.then(|| self.opening.fetch_add(1, Ordering::AcqRel));
            if believed {
                // Without use from now on: the statement may drop them.
                entry.close(|own| own.epoch.token < token && own.idle());
            }
            entry.statement = Statement::Sent(opening);
            let needs = top().map(|waiter| waiter.needs).reduce(Needs::or);
            let ask = Ask {
                resource: key.clone(),
                token,
                opening,
                spend: top().find_map(|waiter| match &waiter.want {
                    Want::Spend(name) => Some(name.clone()),
                    Want::Open | Want::Raise => None,
                }),
                needs: needs.unwrap_or_default(),
            };
            let used = entry.used_by(by.instance).collect();
            let asked = Asked {
                waiters,
                known,
                spent,
                used,
            };
            Some((ask, asked))
        });
        if let Some((ask, asked)) = asked {
            composed.used.extend(&asked.used);
            composed.asks.push(ask);
            composed.asked.push(asked);
        }
    }
}

impl EpochEntry {
    /// Takes the requests that ask, but those that have left and those that memory can answer by
    /// now. A quarantined resource is asked for nevertheless, because the statement finds out more.
    fn still_asking(
        &mut self,
        (incarnation, server): (u64, u64),
        answers: &mut Answers,
    ) -> Vec<Waiter> {
        let mut asking = std::mem::take(&mut self.asking);
        asking.retain(|waiter| !waiter.reply.is_closed());
        let mut left = Vec::with_capacity(asking.len());
        for waiter in asking {
            let usable = || self.usable(waiter.token, incarnation, server);
            if let Some(mark) = stale_by(self.mark(), waiter.token) {
                let stale = Refused::stale(mark, DecidedBy::Store);
                answers.push(waiter, Err(stale));
            } else if waiter.want == Want::Open && usable().is_some() {
                answers.push(waiter, Ok(false));
            } else {
                left.push(waiter);
            }
        }
        left
    }
}

/// The token to ask for, and whether it is plausible: the highest that is so at the `mark` known
/// here; the others are judged by the answer. An implausible token must not delay the others. So it
/// is asked for only if there is no other.
fn choose(waiters: &[Waiter], mark: Option<Token>) -> Option<(Token, bool)> {
    let believed = waiters.iter().filter(|one| one.needs.met_by(mark));
    let believed = believed.map(|one| one.token).max();
    let all = waiters.iter().map(|waiter| waiter.token);
    Some((believed.or(all.max())?, believed.is_some()))
}
