//! The membership task of a simulated process, step by step, as
//! [`Membership`](crate::fencing::membership::Membership) takes them.

use std::time::Duration;

use super::simulation_call::{Call, Dice, LEASE, Reply, SETTLE, UNDELIVERED};
use super::simulation_instance::{Awaited, Process, Step, Why};
use super::simulation_upstream::Upstream;
use crate::fencing::epochs::Ending;
use crate::fencing::failure_detector::Read;
use crate::fencing::lease::Identity;
use crate::store::{Era, InstanceId, Renewal, StoreError, Terms};

const PAUSE: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(200);

impl Process {
    fn terms(&self) -> Terms {
        Terms {
            renewals: self.lease.next_renewal(),
            lease: LEASE,
            settle: SETTLE,
            undelivered: UNDELIVERED,
            routes: "routes".to_owned(),
        }
    }

    /// Begins a round, if one is due.
    pub fn round(&mut self) {
        let now = self.clock.now();
        if let Some((id, sent)) = self.member.rejoining.take() {
            self.member.lost = false;
            self.lease.rejoined(id, sent);
            self.renewed(sent);
            self.round_ended(Ok(()));
        }
        if self.member.busy || now < self.member.due {
            return;
        }
        self.member.busy = true;
        if !self.member.joined {
            let id = self.lease.identity().instance;
            self.join(id, Why::First);
            return;
        }
        let me = self.lease.identity().instance;
        let mut publication = self.table.publish(me, self.clock.instant());
        publication.left.sort_unstable();
        let call = Call::Renew(me, self.terms(), publication);
        self.send(call, Step::Renew(now));
    }

    fn send(&mut self, call: Call, step: Step) {
        self.out.push((call, Awaited::Member(step)));
    }

    fn join(&mut self, id: InstanceId, why: Why) {
        let call = Call::Join(id, self.terms());
        let sent = self.clock.now();
        self.send(call, Step::Join(id, why, sent));
    }

    fn renewed(&mut self, sent: Duration) {
        let incarnation = self.lease.incarnation();
        self.member.renewed.push((incarnation, sent));
    }

    fn rejoin(&mut self) {
        let id = self.lease.next_id();
        self.join(id, Why::Rejoin);
    }

    pub fn stepped(&mut self, step: Step, reply: Result<Reply, StoreError>) {
        match (step, reply) {
            (Step::Renew(sent), Ok(Reply::Renewed(renewal))) => match renewal {
                Renewal::Alive(era) => self.alive(era, sent),
                Renewal::Unknown if self.lease.lapsed_for().unwrap_or_default() < SETTLE => {
                    let Identity { instance, .. } = self.lease.identity();
                    self.member.lost = true;
                    self.join(instance, Why::Again);
                }
                Renewal::Dead | Renewal::Unknown => self.rejoin(),
            },
            (Step::Join(id, why, sent), Ok(Reply::Joined(era))) => self.joined(id, why, sent, era),
            (Step::Join(_, why, _), _) => {
                if why == Why::First {
                    self.lease.rename();
                }
                self.round_ended(Err(()));
            }
            (Step::Read(me, sent), Ok(Reply::Instances(rows))) => {
                let read = Read {
                    connection: self.member.connection,
                    sent,
                    answered: self.clock.now(),
                };
                let verdict = self.detector.observe(me, &rows, read);
                if verdict.changed {
                    self.table.ring_all();
                }
                let silent = verdict.silent.into_iter().map(|(id, at)| (id, Some(at)));
                let settled = verdict.settled.into_iter().map(|id| (id, None));
                self.member.ends = silent.chain(settled).collect();
                self.member.ends.sort_unstable();
                self.end_next();
            }
            (Step::Declare(id), reply) => {
                if let Ok(Reply::Dead(true)) = reply {
                    self.detector.declared(id, self.clock.now());
                    self.table.ring_all();
                }
                self.end_next();
            }
            (Step::Settle(id), reply) => {
                if let Ok(Reply::Dead(settled)) = reply {
                    self.detector.forget(id, self.clock.now());
                    if settled {
                        self.poll();
                    }
                }
                self.end_next();
            }
            (Step::Renew(_) | Step::Read(..), _) => self.round_ended(Err(())),
        }
    }

    fn read(&mut self) {
        let me = self.lease.identity().instance;
        let sent = self.clock.now();
        self.send(Call::Instances, Step::Read(me, sent));
    }

    fn alive(&mut self, era: Era, sent: Duration) {
        if self.member.lost {
            if std::mem::take(&mut self.member.routes_differ) {
                return self.round_ended(Err(()));
            }
            self.table.retire_all();
            self.look_again();
            self.member.lost = false;
        }
        self.lease.renewed(sent);
        self.renewed(sent);
        self.table.adopt(era);
        self.table.ring_all();
        let known = self.table.era();
        if era < known {
            self.out.push((Call::RaiseEra(known), Awaited::Nothing));
        }
        self.read();
    }

    fn joined(&mut self, id: InstanceId, why: Why, sent: Duration, era: Era) {
        if why == Why::Again {
            return self.alive(era, sent);
        }
        if std::mem::take(&mut self.member.routes_differ) {
            let nothing = self.table.finish(id);
            self.out.push((Call::Leave(id, nothing), Awaited::Nothing));
            if why == Why::First {
                self.lease.rename();
            }
            self.round_ended(Err(()));
            return;
        }
        match why {
            Why::First => {
                self.table.adopt(era);
                self.lease.renewed(sent);
                self.renewed(sent);
                self.member.joined = true;
            }
            Why::Rejoin => {
                self.table.retire_before(self.lease.incarnation() + 1);
                self.table.adopt(era);
                self.table.forget();
                // Something may come in between.
                self.member.rejoining = Some((id, sent));
                return;
            }
            Why::Again => unreachable!("it returns above"),
        }
        self.read();
    }

    /// Records the next end of another instance.
    fn end_next(&mut self) {
        match self.member.ends.pop() {
            Some((id, Some(at))) => self.send(Call::Declare(id, at), Step::Declare(id)),
            Some((id, None)) => self.send(Call::Settle(id), Step::Settle(id)),
            None => self.round_ended(Ok(())),
        }
    }

    fn round_ended(&mut self, result: Result<(), ()>) {
        self.member.busy = false;
        let pause = if result.is_ok() { PAUSE } else { RETRY };
        self.member.due = self.clock.now() + pause;
        let recovered = result.is_ok() && std::mem::take(&mut self.member.failed);
        if result.is_err() {
            self.member.failed = true;
            self.detector.interrupted();
            return;
        }
        let now = self.member.connection;
        if std::mem::replace(&mut self.member.connections, now) != now || recovered {
            self.look_again();
        }
    }

    /// All rows of open epochs are to be read.
    fn look_again(&mut self) {
        self.table.another_server();
        let open = self.table.with_epochs().flatten();
        self.recheck = open.collect();
    }

    /// The end of a run: every exchange ends, and nothing is awaited any more. Returns the last
    /// statement.
    pub fn stop(&mut self, upstream: &mut Upstream, dice: &mut Dice) -> Call {
        while !self.requests.is_empty() {
            let ending = if dice.one_in(2) {
                Ending::Settled
            } else {
                Ending::Unknown
            };
            self.leave(0, ending, upstream);
        }
        self.lease.end();
        let me = self.lease.identity().instance;
        Call::Leave(me, self.table.finish(me))
    }
}
