//! The requests of a simulated process, step by step, as
//! [`Fencing::admit`](crate::fencing::Fencing::admit) and the proxy take them.

use std::fmt;
use std::sync::Arc;

use tokio::sync::{Notify, oneshot};

use super::simulation_call::{Call, Dice, LANES};
use super::simulation_instance::{Awaited, Process, Request, State, Wish};
use super::simulation_upstream::Upstream;
use crate::fencing::epochs::{Answer, Ending, Entered, RequestLimits, Ticket, Waiter, Want};
use crate::fencing::lease::Identity;
use crate::fencing::{Refused, Undecided};
use crate::routing::{Needs, ResourceKey, Token};
use crate::store::Epoch;

const ROOM: RequestLimits = RequestLimits {
    queue: 3,
    share: usize::MAX,
    waiting: usize::MAX,
};

fn lapsed() -> Refused {
    Refused::Unavailable(Undecided::Lapsed)
}

impl Process {
    /// As [`Fencing::check`](crate::fencing::Fencing) begins.
    pub fn arrive(&mut self, wish: Wish, worker: usize) -> Result<(), Refused> {
        let state = self.check(&wish, worker)?;
        self.requests.push(Request { wish, state });
        Ok(())
    }

    fn check(&self, wish: &Wish, worker: usize) -> Result<State, Refused> {
        let incarnation = self.lease.incarnation();
        let now = self.clock.instant();
        let recalled = self.table.recall(&wish.key, wish.token, incarnation, now)?;
        if recalled && !wish.raise {
            return Ok(State::Barrier(None));
        }
        if !self.lease.valid() {
            return Err(lapsed());
        }
        let want = if wish.raise { Want::Raise } else { Want::Open };
        Ok(State::Asking(self.ask(wish, want, worker)))
    }

    fn ask(&self, wish: &Wish, want: Want, worker: usize) -> oneshot::Receiver<Answer> {
        let needs = match want {
            Want::Spend(_) => Needs::default(),
            Want::Open | Want::Raise => wish.needs,
        };
        let (waiter, answer) = Waiter::new(wish.token, want, needs);
        self.table.ask(&wish.key, waiter, worker);
        answer
    }

    /// Takes the next step of a request. The mark and the open epochs are those in the store.
    pub fn step(
        &mut self,
        index: usize,
        (mark, open): (Option<Token>, &[Epoch]),
        upstream: &mut Upstream,
        dice: &mut Dice,
    ) -> Result<(), String> {
        let mut request = self.requests.swap_remove(index);
        let wish = request.wish.clone();
        let now = self.clock.now();
        request.state = match request.state {
            State::Asking(mut answer) => match answer.try_recv() {
                Err(oneshot::error::TryRecvError::Empty) => State::Asking(answer),
                Err(_) => return Err("a request was forgotten".into()),
                Ok(Err(refused)) => State::Over(Some(refused)),
                Ok(Ok(_)) if wish.raise => State::Over(None),
                Ok(Ok(_)) => State::Barrier(None),
            },
            State::Barrier(bell) => self.enter(&wish, bell, dice),
            State::Permit(ticket, cutoff) if wish.once => {
                self.names += 1;
                let name = format!("{}-{}", self.number, self.names);
                let answer = self.ask(&wish, Want::Spend(name.clone()), dice.below(LANES));
                State::Spending(ticket, cutoff, answer, name)
            }
            State::Spending(ticket, cutoff, mut answer, name) => match answer.try_recv() {
                Err(oneshot::error::TryRecvError::Empty) => {
                    State::Spending(ticket, cutoff, answer, name)
                }
                Ok(Ok(_)) => State::Spent(ticket, cutoff, name),
                refused => {
                    self.end(&wish.key, &ticket, Ending::Settled);
                    State::Over(refused.ok().and_then(Result::err))
                }
            },
            State::Spent(ticket, _, name) if dice.one_in(4) => {
                self.table.give_up_spent(&wish.key, &name);
                let call = Call::GiveBack(wish.key.clone(), wish.token, name);
                self.out.push((call, Awaited::Nothing));
                self.end(&wish.key, &ticket, Ending::Settled);
                State::Over(None)
            }
            State::Permit(ticket, cutoff) | State::Spent(ticket, cutoff, _) => {
                if self.lease.holds(ticket.incarnation) && !cutoff.is_cancelled() {
                    let is = |epoch: &Epoch| {
                        epoch.instance == ticket.instance && epoch.opening == ticket.opening
                    };
                    let found = (mark, open.iter().any(is));
                    let what = (&wish.key, wish.token, wish.once);
                    let number =
                        upstream.begin(what, self.holder(ticket.incarnation), found, now)?;
                    State::Sending(ticket, cutoff, number)
                } else {
                    self.end(&wish.key, &ticket, Ending::Settled);
                    State::Over(None)
                }
            }
            State::Sending(ticket, cutoff, number) => {
                let holds = self.lease.holds(ticket.incarnation) && !cutoff.is_cancelled();
                if holds && dice.one_in(2) {
                    upstream.byte(number, now)?;
                    State::Sending(ticket, cutoff, number)
                } else {
                    let ending = if holds && dice.one_in(2) {
                        Ending::Settled
                    } else {
                        Ending::Unknown
                    };
                    upstream.end(number, ending, now);
                    self.end(&wish.key, &ticket, ending);
                    State::Over(None)
                }
            }
            over @ State::Over(_) => over,
        };
        self.requests.push(request);
        Ok(())
    }

    /// As the [`Fencing::enter`](crate::fencing::Fencing).
    fn enter(&mut self, wish: &Wish, bell: Option<Arc<Notify>>, dice: &mut Dice) -> State {
        let (key, token) = (&wish.key, wish.token);
        let Identity {
            incarnation,
            cutoff,
            ..
        } = self.lease.terms();
        let refused = if !self.lease.holds(incarnation) || cutoff.is_cancelled() {
            lapsed()
        } else {
            let left = |id| self.detector.settles_in(id, self.clock.now());
            let now = self.clock.instant();
            match self.table.enter(key, token, incarnation, left, now) {
                Ok(Entered::Permit(ticket)) => {
                    self.unqueue(wish, bell.as_ref());
                    return State::Permit(ticket, cutoff);
                }
                Ok(Entered::NotOpen) => {
                    self.unqueue(wish, bell.as_ref());
                    let checked = self.check(wish, dice.below(LANES));
                    return checked.unwrap_or_else(|refused| State::Over(Some(refused)));
                }
                Ok(Entered::Wait { .. }) if bell.is_some() => return State::Barrier(bell),
                Ok(Entered::Wait { .. }) => match self.table.queue(key, token, ROOM) {
                    Ok(bell) => return State::Barrier(Some(bell)),
                    Err(refused) => refused,
                },
                Err(refused) => refused,
            }
        };
        self.unqueue(wish, bell.as_ref());
        State::Over(Some(refused))
    }

    fn unqueue(&self, wish: &Wish, bell: Option<&Arc<Notify>>) {
        if bell.is_some() {
            self.table.unqueue(&wish.key, wish.token);
        }
    }

    fn end(&mut self, key: &ResourceKey, ticket: &Ticket, ending: Ending) {
        let now = self.clock.instant();
        if let Some(settles) = self.table.end(key, ticket, ending, now) {
            self.settles.push((key.clone(), settles));
        }
    }

    /// The client of a request leaves, or its response has arrived.
    pub fn leave(&mut self, index: usize, ending: Ending, upstream: &mut Upstream) {
        let Request { wish, state } = self.requests.swap_remove(index);
        match state {
            State::Asking(_) | State::Over(_) => {}
            State::Barrier(bell) => self.unqueue(&wish, bell.as_ref()),
            State::Permit(ticket, _) | State::Spending(ticket, ..) | State::Spent(ticket, ..) => {
                self.end(&wish.key, &ticket, Ending::Settled);
            }
            State::Sending(ticket, _, number) => {
                upstream.end(number, ending, self.clock.now());
                self.end(&wish.key, &ticket, ending);
            }
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asking(_) => f.write_str("asking"),
            Self::Barrier(bell) => write!(f, "at the barrier, waiting: {}", bell.is_some()),
            Self::Permit(ticket, _) => write!(f, "permitted under {}", ticket.opening),
            Self::Spending(..) => f.write_str("spending"),
            Self::Spent(..) => f.write_str("spent"),
            Self::Sending(_, _, number) => write!(f, "sending as {number}"),
            Self::Over(refused) => write!(f, "over: {refused:?}"),
        }
    }
}

impl Request {
    /// Whether this refusal says that the store has lost something.
    pub fn met_a_loss(&self) -> bool {
        match &self.state {
            State::Over(Some(refused @ Refused::Unavailable(why))) => match why {
                Undecided::Repairing(_) => true,
                Undecided::NoAnswer(_) => refused.kind() == "lost",
                _ => false,
            },
            _ => false,
        }
    }
}
