//! Injects faults: each waits for its moment and its point, does what it does to real processes
//! and real connections, and undoes it again. Where the path to the upstream has a part in it, the
//! weather comes first, and the fault when bytes have had time to get stuck.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnectOptions;
use tokio::task::block_in_place;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::fault::FaultKind::{
    Cut, CutPath, Deaf, Delay, DieAtSync, Jump, Kill, KillPostgres, LongStop, NoStreams, Partition,
    Reload, SlowDisk, Stall, Stop, Terminate, UpstreamDown,
};
use super::fault::{Fault, FaultCase, FaultPoint, Sky};
use super::log::Event;
use super::marks::Source;
use super::world::{Slot, World};
use crate::support::Proxy;
use crate::support::path::{self, Weather};
use crate::support::relay::{Point as At, Relay, Statement, Trap};

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
        let moment = Instant::from_std(self.began + Duration::from_millis(fault.at));
        sleep_until(moment).await;
        let Ok(held) = timeout_at(moment + GIVE_UP, self.reach(fault)).await else {
            return self.note(format!("{fault:?}: its point was not passed"));
        };
        if fault.case.sky != Sky::Clear {
            return self.strike_in_weather(fault, held).await;
        }
        if fault.case.point == FaultPoint::OutOfStreams {
            // Until another request waits for a stream.
            sleep(LEAD).await;
        }
        self.act(fault, held).await;
    }

    /// The path first, then the fault, and at some time the path is clear again.
    async fn strike_in_weather(&self, fault: Fault, held: Option<Trap>) {
        let Fault { proxy, weather, .. } = fault;
        let path = &self.slots[proxy].path;
        path.weather(weather);
        self.note(format!("{weather:?}, proxy {proxy}"));
        let clears = Instant::now() + fault.clears;
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
            self.note(format!("clear, proxy {proxy}: {held} bytes held"));
        };
        tokio::join!(act, clear);
    }

    async fn act(&self, fault: Fault, held: Option<Trap>) {
        self.note(format!("{fault:?} begins"));
        let slot = &self.slots[fault.proxy];
        let done = match fault.case.kind {
            Kill | DieAtSync => self.replace(fault, held).await,
            Stop | LongStop => stop(slot, fault, held).await,
            KillPostgres => self.kill_postgres(fault, held).await,
            Terminate => self.terminate(held).await,
            Cut | Stall | NoStreams => true,
            CutPath => {
                let closes = fault.at.is_multiple_of(3);
                let how = [path::Cut::Reset, path::Cut::Close][usize::from(closes)];
                slot.path.cut(how) > 0
            }
            Reload => {
                let place = slot.proxy.lock().await;
                place.iter().map(|proxy| slot.reload(proxy)).count() > 0
            }
            Jump => jump(slot).await,
            Delay | Partition | SlowDisk | Deaf | UpstreamDown => {
                self.for_a_while(fault, held).await
            }
        };
        if done {
            self.clients.log.add(Event::Fault(fault.case));
        } else {
            self.note(format!("{:?}, in vain", fault.case));
        }
    }

    /// Breaks what is whole again after a while. Notifications count if some were lost.
    async fn for_a_while(&self, fault: Fault, held: Option<Trap>) -> bool {
        let relay = self.slots[fault.proxy].relay.as_ref();
        let lost = || relay.map_or(0, Relay::lost);
        let before = lost();
        self.breaks(fault, true).await;
        drop(held);
        sleep(fault.lasts).await;
        self.breaks(fault, false).await;
        fault.case.kind != Deaf || lost() > before
    }

    async fn breaks(&self, fault: Fault, yes: bool) {
        let slot = &self.slots[fault.proxy];
        let time = |time| if yes { time } else { Duration::ZERO };
        match (fault.case.kind, &slot.relay) {
            (Delay, _) => slot.path.delay(time(LATER)),
            (SlowDisk, Some(relay)) => relay.delay(time(SLOW)),
            (Deaf, Some(relay)) => relay.lose_notifications(yes),
            (Partition, Some(relay)) => {
                relay.refuse(yes);
                if yes {
                    relay.cut_all();
                }
            }
            _ => {
                for slot in &self.slots {
                    if yes {
                        slot.path.refuse().await;
                    } else {
                        slot.path.listen();
                    }
                }
            }
        }
    }

    fn note(&self, text: String) {
        self.clients.log.note(text);
    }

    /// Waits until the point is passed. A held message goes on when the trap is dropped.
    async fn reach(&self, fault: Fault) -> Option<Trap> {
        let FaultCase { kind, point, .. } = fault.case;
        if point == FaultPoint::AnyTime || kind == DieAtSync {
            return None;
        }
        let mut points = self.clients.hub.subscribe();
        let passed = async { while points.recv().await != Ok((point, fault.proxy)) {} };
        let statement = match point {
            FaultPoint::BeforeCheck => Some(At::Before(Statement::Advance)),
            FaultPoint::AfterCommit => Some(At::After(Statement::Advance)),
            FaultPoint::BeforeRelease => Some(At::Before(Statement::Cede)),
            _ => None,
        };
        let Some((relay, at)) = self.slots[fault.proxy].relay.as_ref().zip(statement) else {
            passed.await;
            return None;
        };
        let trap = match kind {
            Cut => relay.cut(at),
            _ => relay.hold(at),
        };
        tokio::select! {
            () = trap.sprung() => Some(trap),
            // Bodies that are not whole are no named point where the store itself has one.
            () = passed, if point == FaultPoint::BeforeRelease => None,
        }
    }

    /// SIGKILL of a proxy, and another run of it. A death at a sync counts if it died by itself.
    async fn replace(&self, fault: Fault, held: Option<Trap>) -> bool {
        let slot = &self.slots[fault.proxy];
        let counts = fault.case.kind == Kill || dies_at_sync(slot).await;
        let mut place = slot.proxy.lock().await;
        let Some(proxy) = place.take() else {
            return false;
        };
        slot.bury(proxy, &self.clients.log);
        // Held messages go to the server all the same, and nobody gets the answers.
        drop(held);
        self.reader.look();
        sleep(fault.lasts).await;
        slot.fill(&mut place, slot.launch(None).await);
        self.reader.look();
        counts
    }

    async fn kill_postgres(&self, fault: Fault, held: Option<Trap>) -> bool {
        let cluster = self.place.cluster.as_ref().expect("there is a Postgres");
        block_in_place(|| cluster.kill9());
        drop(held);
        self.reader.look();
        sleep(fault.lasts).await;
        block_in_place(|| cluster.start_with(&[]));
        self.reader.look();
        true
    }

    async fn terminate(&self, held: Option<Trap>) -> bool {
        let Source { url, namespace } = &self.place.source;
        let options: PgConnectOptions = url.parse().expect("a URL");
        let ended = async {
            let mut admin = options.connect().await?;
            let ended = sqlx::query_scalar(TERMINATE).bind(namespace);
            ended.fetch_one(&mut admin).await
        };
        let ended: sqlx::Result<i64> = ended.await;
        drop(held);
        ended.is_ok_and(|ended| ended > 0)
    }
}

/// Waits for the death of a proxy that was started so that one of its syncs kills it; `false`: so
/// many syncs there were not. They could still come, with nobody there to start it again.
async fn dies_at_sync(slot: &Slot) -> bool {
    let has_died = async || {
        let mut place = slot.proxy.lock().await;
        let ended = |proxy: &mut Proxy| proxy.process().ended().is_some();
        place.as_mut().is_none_or(ended)
    };
    let died = async {
        while !has_died().await {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(GIVE_UP, died).await.is_ok()
}

async fn stop(slot: &Slot, fault: Fault, held: Option<Trap>) -> bool {
    let place = slot.proxy.lock().await;
    let Some(proxy) = place.as_ref() else {
        return false;
    };
    proxy.pause().await;
    drop(held);
    sleep(fault.lasts).await;
    proxy.resume();
    true
}

/// Years ahead, then years back. It counts only if the proxy's own log shows it.
async fn jump(slot: &Slot) -> bool {
    let mut counts = false;
    for by in ["+4000d", "-4000d"] {
        slot.jump(by);
        sleep(Duration::from_millis(600)).await;
        let place = slot.proxy.lock().await;
        let day = |line: Value| Some(line["timestamp"].as_str()?.get(..10)?.to_owned());
        let days: BTreeSet<_> = place.iter().flat_map(Proxy::logs).filter_map(day).collect();
        counts |= days.len() > 1;
    }
    counts
}
