//! Injects faults: each waits for its moment and its point, does what it does to real processes
//! and real connections, and undoes it again. Where the path to the upstream has a part in it, the
//! weather comes first, and the fault when bytes have had time to get stuck.

use std::sync::Arc;
use std::time::Duration;

use sqlx::ConnectOptions as _;
use tokio::time::{sleep, sleep_until, timeout_at};

use super::log::Event;
use super::plan::{Fault, FaultKind, FaultPoint, Sky};
use super::world::{Slot, World};
use crate::support::Proxy;
use crate::support::path::{Cut, Weather};
use crate::support::postgres::Cluster;
use crate::support::relay::{Action, Point as At, Statement, Trap};

/// So long after its moment a fault whose point is not passed is given up.
const GIVE_UP: Duration = Duration::from_secs(3);
/// From the weather to the fault: the rest of a body has been sent by then.
const LEAD: Duration = Duration::from_millis(550);
/// Of a delayed path, each way.
const LATER: Duration = Duration::from_millis(40);
/// Of a slow disk, each way.
const SLOW: Duration = Duration::from_millis(30);
const TERMINATE: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE usename = $1 AND application_name LIKE 'fencepost%'";

impl World {
    /// Does this fault, if its point is passed.
    pub async fn strike(&self, fault: Fault) {
        let moment = tokio::time::Instant::from_std(self.began + fault.at);
        sleep_until(moment).await;
        let reached = timeout_at(moment + GIVE_UP, self.reach(&fault)).await;
        let Ok(held) = reached else {
            self.log
                .note(format!("{fault:?}: its point was not passed"));
            return;
        };
        if Sky::of(fault.weather) != Sky::Clear {
            self.strike_in_weather(fault, held).await;
            return;
        }
        if fault.point == FaultPoint::OutOfStreams {
            // Until another request waits for a stream.
            sleep(LEAD).await;
        }
        self.act(fault, held).await;
    }

    /// The path first, then the fault, and at some time the path is clear again.
    async fn strike_in_weather(&self, fault: Fault, held: Option<Trap>) {
        let path = &self.slots[fault.proxy].path;
        path.weather(fault.weather);
        self.log
            .note(format!("{:?}, proxy {}", fault.weather, fault.proxy));
        let clears = tokio::time::Instant::now() + fault.clears;
        drop(held);
        let act = async {
            sleep(LEAD).await;
            // Stuck bytes stay stuck. Connections of later runs get through.
            path.clear_for_new();
            self.act(fault, None).await;
        };
        let clear = async {
            sleep_until(clears).await;
            let held = path.undelivered();
            path.weather(Weather::Clear);
            self.log
                .note(format!("clear, proxy {}: {held} bytes held", fault.proxy));
        };
        tokio::join!(act, clear);
    }

    async fn act(&self, fault: Fault, held: Option<Trap>) {
        let slot = &self.slots[fault.proxy];
        match fault.kind {
            FaultKind::Kill => self.kill(fault, held).await,
            FaultKind::Stop | FaultKind::LongStop => self.stop(fault, held).await,
            FaultKind::DieAtSync => self.wait_for_death(fault).await,
            FaultKind::KillPostgres => self.kill_postgres(fault, held).await,
            FaultKind::Terminate => self.terminate(fault, held).await,
            FaultKind::Cut | FaultKind::Stall | FaultKind::NoStreams => self.done(&fault, ""),
            FaultKind::CutPath => self.cut_path(&fault),
            FaultKind::Reload => {
                let place = slot.proxy.lock().await;
                let Some(proxy) = place.as_ref() else { return };
                slot.reload(proxy);
                self.done(&fault, "");
            }
            FaultKind::Delay => {
                slot.path.delay(LATER);
                self.done(&fault, "");
                sleep(fault.lasts).await;
                slot.path.delay(Duration::ZERO);
                self.healed(&fault);
            }
            FaultKind::Partition => {
                let relay = slot.relay.as_ref().expect("there is a Postgres");
                relay.refuse(true);
                relay.cut_all();
                self.done(&fault, "");
                drop(held);
                sleep(fault.lasts).await;
                relay.refuse(false);
                self.healed(&fault);
            }
            FaultKind::SlowDisk => {
                let relay = slot.relay.as_ref().expect("there is a Postgres");
                relay.delay(SLOW);
                self.done(&fault, "");
                sleep(fault.lasts).await;
                relay.delay(Duration::ZERO);
                self.healed(&fault);
            }
            FaultKind::Deaf => {
                let relay = slot.relay.as_ref().expect("there is a Postgres");
                relay.lose_notifications(true);
                let before = relay.lost();
                sleep(fault.lasts).await;
                relay.lose_notifications(false);
                let lost = relay.lost() - before;
                if lost > 0 {
                    self.done(&fault, &format!("{lost} notifications"));
                }
            }
            FaultKind::Jump => self.jump(fault, slot).await,
            FaultKind::UpstreamDown => {
                for slot in self.slots.iter() {
                    slot.path.refuse().await;
                }
                self.done(&fault, "");
                sleep(fault.lasts).await;
                for slot in self.slots.iter() {
                    slot.path.listen();
                }
                self.healed(&fault);
            }
        }
    }

    /// A reset, or an end of the stream.
    fn cut_path(&self, fault: &Fault) {
        let how = if fault.moment().is_multiple_of(3) {
            Cut::Close
        } else {
            Cut::Reset
        };
        match self.slots[fault.proxy].path.cut(how) {
            0 => self.log.note("there was no connection to cut"),
            cut => self.done(fault, &format!("{cut} connections, {how:?}")),
        }
    }

    fn done(&self, fault: &Fault, said: &str) {
        self.log.add(Event::Fault {
            kind: fault.case().name(),
            point: fault.point.name(),
            proxy: fault.proxy,
            said: said.to_owned(),
        });
    }

    fn healed(&self, fault: &Fault) {
        self.log.add(Event::Healed {
            kind: fault.case().name(),
            proxy: fault.proxy,
        });
    }

    /// Waits until the point is passed. A held message goes on when the trap is dropped.
    async fn reach(&self, fault: &Fault) -> Option<Trap> {
        let relay = self.slots[fault.proxy].relay.as_ref();
        let action = if fault.kind == FaultKind::Cut {
            Action::Cut
        } else {
            Action::Hold
        };
        let statement = match fault.point {
            FaultPoint::BeforeCheck => Some(At::Before(Statement::Advance)),
            FaultPoint::AfterCommit => Some(At::After(Statement::Advance)),
            FaultPoint::BeforeRelease => Some(At::Before(Statement::Cede)),
            FaultPoint::MidBody
            | FaultPoint::BeforeResponseEnd
            | FaultPoint::OutOfStreams
            | FaultPoint::AnyTime => None,
        };
        let passed = self.hub.arm(fault.point, fault.proxy);
        if fault.point == FaultPoint::AnyTime || fault.kind == FaultKind::DieAtSync {
            return None;
        }
        match relay.zip(statement) {
            None => {
                let _ = passed.await;
                None
            }
            Some((relay, at)) => {
                let trap = relay.arm(at, action);
                let by_client = async {
                    // Bodies that are not whole are no named point where the store itself has one.
                    if fault.point == FaultPoint::BeforeRelease {
                        let _ = passed.await;
                    } else {
                        std::future::pending::<()>().await;
                    }
                };
                tokio::select! {
                    () = trap.sprung() => Some(trap),
                    () = by_client => None,
                }
            }
        }
    }

    async fn kill(&self, fault: Fault, held: Option<Trap>) {
        let slot = &self.slots[fault.proxy];
        let mut place = slot.proxy.lock().await;
        let Some(proxy) = place.take() else { return };
        slot.bury(proxy);
        self.done(&fault, "");
        // Held messages go to the server all the same, and nobody gets the answers.
        drop(held);
        self.again(slot, &mut place, fault).await;
    }

    /// Starts a proxy where one has died.
    async fn again(&self, slot: &Slot, place: &mut Option<Proxy>, fault: Fault) {
        self.reader.let_go();
        self.reader.look();
        sleep(fault.lasts).await;
        slot.fill(place, slot.launch(None).await);
        self.reader.look();
        self.healed(&fault);
    }

    async fn stop(&self, fault: Fault, held: Option<Trap>) {
        let place = self.slots[fault.proxy].proxy.lock().await;
        let Some(proxy) = place.as_ref() else { return };
        proxy.pause().await;
        self.done(&fault, &format!("for {:?}", fault.lasts));
        drop(held);
        sleep(fault.lasts).await;
        proxy.resume();
        self.healed(&fault);
    }

    /// The proxy was started so that one of its syncs kills it.
    async fn wait_for_death(&self, fault: Fault) {
        let slot = &self.slots[fault.proxy];
        let give_up = tokio::time::Instant::now() + GIVE_UP;
        loop {
            let mut place = slot.proxy.lock().await;
            let Some(proxy) = place.as_mut() else { return };
            if proxy.process().ended().is_some() {
                slot.bury(place.take().expect("it was there"));
                self.done(&fault, "");
                return self.again(slot, &mut place, fault).await;
            }
            if tokio::time::Instant::now() > give_up {
                // It could still come to that, with nobody there to start it again.
                self.log
                    .note("so many syncs there were not; it is killed by hand");
                slot.bury(place.take().expect("it was there"));
                return self.again(slot, &mut place, fault).await;
            }
            drop(place);
            sleep(Duration::from_millis(5)).await;
        }
    }

    async fn kill_postgres(&self, fault: Fault, held: Option<Trap>) {
        let cluster = self.place.cluster().expect("there is a Postgres");
        let of = |act: fn(&Cluster)| {
            let cluster = Arc::clone(cluster);
            let acted = tokio::task::spawn_blocking(move || act(&cluster));
            async { acted.await.expect("the server is ended and started") }
        };
        of(Cluster::kill9).await;
        self.done(&fault, "");
        drop(held);
        self.reader.look();
        sleep(fault.lasts).await;
        of(Cluster::start_again).await;
        self.reader.look();
        self.healed(&fault);
    }

    async fn terminate(&self, fault: Fault, held: Option<Trap>) {
        let url = self.place.past_all().expect("there is a Postgres");
        let options: sqlx::postgres::PgConnectOptions = url.parse().expect("a URL");
        let ended = async {
            let mut admin = options.connect().await?;
            sqlx::query_scalar::<_, i64>(TERMINATE)
                .bind(self.place.name())
                .fetch_one(&mut admin)
                .await
        };
        match ended.await {
            Ok(ended) if ended > 0 => self.done(&fault, &format!("{ended} backends")),
            Ok(_) => self.log.note("there was no backend to terminate"),
            Err(error) => self.log.note(format!("nothing terminated: {error}")),
        }
        drop(held);
    }

    /// Years ahead, then years back. It counts only if the proxy's own log shows it.
    async fn jump(&self, fault: Fault, slot: &Slot) {
        let Some(clock) = &slot.clock else { return };
        for by in ["+4000d", "-4000d"] {
            // In one step: a clock file that is half written is no time at all.
            let new = clock.with_extension("new");
            std::fs::write(&new, by).expect("the directory is writable");
            std::fs::rename(&new, clock).expect("the directory is writable");
            sleep(Duration::from_millis(600)).await;
            let place = slot.proxy.lock().await;
            let times: Vec<String> = place
                .iter()
                .flat_map(Proxy::logs)
                .filter_map(|line| Some(line["timestamp"].as_str()?.get(..10)?.to_owned()))
                .collect();
            if let (Some(first), Some(last)) = (times.first(), times.last())
                && first != last
            {
                self.done(&fault, &format!("from {first} to {last}"));
            }
        }
    }
}
