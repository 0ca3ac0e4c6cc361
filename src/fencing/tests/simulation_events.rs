//! The events of a simulation that come from outside: requests, operators, faults.

use std::time::Duration;

use super::signed;
use super::simulation_call::{Call, LANES, LEASE};
use super::simulation_instance::{Request, State, Wish};
use super::simulation_world::{RESOURCES, World, resource, token};
use crate::fencing::epochs::Ending;
use crate::routing::{Needs, Token};
use crate::store::{InstanceId, Notification, Override, PruneStep};

impl World {
    /// Has something happen. Most of the time that is a step forward.
    pub fn event(&mut self) -> Result<(), String> {
        match self.dice.below(100) {
            0..8 => self.pass(),
            8..25 => self.commit(),
            25..42 => self.answer(),
            42..51 => self.request(),
            51..74 => return self.step(),
            74..91 => self.work(),
            91..97 => self.deliver(),
            _ => return self.fault(),
        }
        Ok(())
    }

    /// A process that is awake.
    fn awake(&mut self) -> Option<usize> {
        let all = self.processes.iter().enumerate();
        let awake = all.filter(|(_, one)| !one.asleep && one.member.joined);
        let awake = awake.map(|(at, _)| at).collect();
        self.dice.pick(awake)
    }

    fn request(&mut self) {
        let Some(at) = self.awake() else {
            return;
        };
        if self.processes[at].requests.len() >= 5 {
            return;
        }
        // Both, or the first most of the time.
        let number = self.dice.below(RESOURCES) * self.dice.below(2);
        let key = resource(number);
        let mark = self.rows.marks.get(&key).map_or(1, |mark| mark.token.get());
        let wished = if self.faults.rising {
            mark + i64::from(self.dice.one_in(3)) - i64::from(self.dice.one_in(12))
        } else {
            mark + i64::from(self.dice.one_in(8)) - i64::from(self.dice.one_in(8))
        };
        let wish = Wish {
            key,
            token: token(wished.max(1)),
            needs: Needs {
                least: self.dice.one_in(10).then(|| token(mark + 1)),
                present: false,
            },
            once: number == 1,
            raise: self.dice.one_in(8),
        };
        self.arrive(at, wish);
    }

    pub fn arrive(&mut self, at: usize, wish: Wish) {
        let (number, worker) = (self.processes[at].number, self.dice.below(LANES));
        let text = format!("{wish:?}");
        let arrived = self.processes[at].arrive(wish, worker);
        self.say(|| format!("{number}: {text}: {arrived:?}"));
    }

    /// A request goes on, or its client leaves.
    fn step(&mut self) -> Result<(), String> {
        let Some(at) = self.awake() else {
            return Ok(());
        };
        let requests = self.processes[at].requests.iter().enumerate();
        let asks = |state: &State| matches!(state, State::Asking(_));
        let (asking, others): (Vec<_>, Vec<_>) = requests.partition(|(_, one)| asks(&one.state));
        // Most of the time one that need not wait.
        let wait = others.is_empty() || self.dice.one_in(3);
        let from = if wait { asking } else { others };
        let from = from.into_iter().map(|(index, _)| index).collect();
        let Some(index) = self.dice.pick(from) else {
            return Ok(());
        };
        if self.dice.one_in(25) {
            self.say(|| format!("a client leaves process {at}"));
            self.processes[at].leave(index, Ending::Unknown, &mut self.upstream);
            return Ok(());
        }
        self.step_one(at, index)
    }

    pub fn step_one(&mut self, at: usize, index: usize) -> Result<(), String> {
        let key = self.processes[at].requests[index].wish.key.clone();
        let mark = self.rows.marks.get(&key).map(|mark| mark.token);
        let open = self.rows.open(&key);
        let process = &mut self.processes[at];
        let number = process.number;
        let before = process.requests[index].state.to_string();
        process.step(index, (mark, &open), &mut self.upstream, &mut self.dice)?;
        let request = process.requests.last();
        let text = request.map(|one| {
            format!(
                "{number}: {} {} is {}",
                one.wish.key, one.wish.token, one.state
            )
        });
        let lost = request.is_some_and(Request::met_a_loss);
        process
            .requests
            .retain(|one| !matches!(one.state, State::Over(_)));
        if let Some(text) = text.filter(|text| !text.ends_with(&before)) {
            self.say(|| text);
        }
        self.collect(at);
        if lost && !self.losses {
            return Err("nothing was lost, and a request is refused for a loss".to_owned());
        }
        Ok(())
    }

    /// A process does something that is due.
    fn work(&mut self) {
        let Some(at) = self.awake() else {
            return;
        };
        match self.dice.below(10) {
            0..5 => {
                for lane in 0..=LANES {
                    if self.dice.one_in(2) {
                        self.processes[at].turn(lane, &mut self.dice);
                    }
                }
            }
            5..7 => self.processes[at].round(),
            7 if self.dice.one_in(3) => self.forge(),
            7 => self.processes[at].poll(),
            _ => {
                let which = self.dice.below(4);
                self.processes[at].errand(which);
            }
        }
        self.collect(at);
    }

    /// Any login of the database may send a notification.
    fn forge(&mut self) {
        let key = resource(self.dice.below(RESOURCES));
        let mark = self.rows.marks.get(&key).map_or(1, |mark| mark.token.get());
        self.notifications.push(Notification {
            resource: key,
            waits: (!self.dice.one_in(3)).then(|| token(mark + 1)),
            to: None,
        });
    }

    /// A notification arrives, is lost, or comes twice.
    fn deliver(&mut self) {
        if self.notifications.is_empty() {
            return;
        }
        let index = self.dice.below(self.notifications.len());
        let notification = self.notifications.swap_remove(index);
        if self.dice.one_in(8) {
            return;
        }
        if self.dice.one_in(8) {
            self.notifications.push(notification.clone());
        }
        self.hear(&notification);
    }

    pub fn hear(&mut self, notification: &Notification) {
        self.say(|| format!("{notification:?} arrives"));
        for process in self.processes.iter().filter(|one| !one.asleep) {
            process.heard(notification);
        }
    }

    fn fault(&mut self) -> Result<(), String> {
        let at = self.dice.below(self.processes.len().max(1));
        let some = at < self.processes.len();
        match self.dice.below(10) {
            0 if self.faults.crash && some => self.crash(at),
            1 if self.faults.stop && some && self.processes[at].member.joined => self.stop(at),
            2 | 3 if self.faults.sleep && some => {
                let process = &mut self.processes[at];
                process.asleep = !process.asleep;
                let text = format!("process {}: asleep: {}", process.number, process.asleep);
                self.say(|| text);
            }
            4 if self.faults.failover || self.faults.loss => self.fail_over(),
            5 if self.faults.loss && some => self.processes[at].member.routes_differ = true,
            6 | 7 if self.faults.operator => return self.operator(),
            8 if self.faults.locks => {
                let key = resource(self.dice.below(RESOURCES));
                self.rows.locked.clear();
                if self.dice.one_in(4) {
                    self.rows.locked.insert(key);
                }
            }
            9 if self.processes.len() < self.faults.processes => self.start(),
            _ => {}
        }
        Ok(())
    }

    fn crash(&mut self, at: usize) {
        let number = self.processes[at].number;
        self.say(|| format!("process {number} crashes"));
        self.upstream.crashed(number, self.clock.now());
        self.end_process(at);
    }

    fn stop(&mut self, at: usize) {
        let process = &mut self.processes[at];
        let number = process.number;
        let last = process.stop(&mut self.upstream, &mut self.dice);
        self.say(|| format!("process {number} stops"));
        self.end_process(at);
        self.send_last(last);
    }

    /// An operator overrides a mark, or prunes all.
    fn operator(&mut self) -> Result<(), String> {
        let Some(at) = self.awake() else {
            return Ok(());
        };
        let now = self.clock.now();
        let known = self.processes[at].table.era();
        if let Some(due) = self.prune {
            if due <= now {
                return self.prune_all(at);
            }
        } else if self.dice.one_in(3) {
            self.rows.raise_era(known);
            let (era, longest) = self.rows.announce_prune(InstanceId::from_bits(0));
            self.processes[at].table.adopt(era);
            self.prune = Some(now + longest + LEASE / 5);
            self.say(|| format!("a prune is announced: {era}"));
        }
        let key = resource(self.dice.below(RESOURCES));
        let to = token(1 + i64::try_from(self.dice.below(3)).unwrap_or(0));
        self.rows.raise_era(known);
        let done = self.rows.override_mark(&key, to, &signed("", ""));
        self.say(|| format!("{key} is overridden with {to}: {done:?}"));
        match done {
            Override::Absent => {}
            Override::Done { era, .. } => {
                self.upstream.overridden(&key, now)?;
                if self.dice.one_in(2) {
                    self.processes[at].table.adopt(era);
                }
            }
            Override::EpochsOpen(open) => {
                let process = &mut self.processes[at];
                let me = process.lease.identity().instance;
                let idle = process.table.release(&key, me, &open);
                let idle: Vec<_> = idle.into_iter().map(|one| (key.clone(), one)).collect();
                if !idle.is_empty() {
                    self.send_last(Call::Cede(idle));
                }
                let others = open.iter().filter(|epoch| epoch.instance != me);
                self.notifications.extend(others.map(|epoch| Notification {
                    resource: key.clone(),
                    waits: Some(Token::MAX),
                    to: Some(epoch.instance),
                }));
            }
        }
        Ok(())
    }

    fn prune_all(&mut self, at: usize) -> Result<(), String> {
        self.prune = None;
        let before: Vec<_> = self.rows.marks.keys().cloned().collect();
        let step = PruneStep {
            prefix: String::new(),
            after: None,
            unchanged: Duration::ZERO,
            dry_run: false,
            by: signed("", ""),
        };
        let done = self.rows.prune(&step);
        self.say(|| format!("pruned: {done:?}"));
        if let Some(era) = done.era {
            self.processes[at].table.adopt(era);
        }
        for key in before {
            if !self.rows.marks.contains_key(&key) {
                // Who knows the mark takes it for lost.
                self.losses = true;
                self.upstream.overridden(&key, self.clock.now())?;
            }
        }
        Ok(())
    }
}
