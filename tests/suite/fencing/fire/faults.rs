//! Injects faults: each waits for its moment and its point, does what it does to real processes
//! and real connections, and undoes it again. Where the path to the upstream has a part in it, the
//! weather comes first, and the fault when bytes have had time to get stuck.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnectOptions;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::fault::FaultKind::{
    Cut, CutPath, Deaf, Delay, DieAtSync, Jump, Kill, KillPostgres, LongStop, NoStreams, Partition,
    Reload, SlowDisk, Stall, Stop, Terminate, UpstreamDown,
};
use super::fault::{Fault, FaultCase, FaultPoint, Sky};
use super::log::Event;
use super::world::World;
use crate::support::Proxy;
use crate::support::path::{self, Weather};
use crate::support::postgres::Cluster;
use crate::support::relay::{Action, Point as At, Relay, Statement, Trap};

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
        match fault.case.kind {
            Kill => self.replace(fault, held, true).await,
            DieAtSync => {
                let died = self.dies_at_sync(fault).await;
                self.replace(fault, held, died).await;
            }
            Stop | LongStop => self.stop(fault, held).await,
            KillPostgres => self.kill_postgres(fault, held).await,
            Terminate => self.terminate(fault, held).await,
            Cut | Stall | NoStreams => self.done(fault, ""),
            CutPath => self.cut_path(fault),
            Reload => {
                let slot = &self.slots[fault.proxy];
                if let Some(proxy) = &*slot.proxy.lock().await {
                    slot.reload(proxy);
                    self.done(fault, "");
                }
            }
            Jump => self.jump(fault).await,
            Delay | Partition | SlowDisk | Deaf | UpstreamDown => {
                self.for_a_while(fault, held).await;
            }
        }
    }

    /// Breaks what is whole again after a while. Notifications count if some were lost.
    async fn for_a_while(&self, fault: Fault, held: Option<Trap>) {
        let relay = self.slots[fault.proxy].relay.as_ref();
        let lost = || relay.map_or(0, Relay::lost);
        let before = lost();
        self.breaks(fault, true).await;
        if fault.case.kind != Deaf {
            self.done(fault, "");
        }
        drop(held);
        sleep(fault.lasts).await;
        self.breaks(fault, false).await;
        match lost() - before {
            lost if fault.case.kind == Deaf && lost > 0 => {
                self.done(fault, &format!("{lost} notifications"));
            }
            _ => self.healed(fault),
        }
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
                for slot in self.slots.iter() {
                    if yes {
                        slot.path.refuse().await;
                    } else {
                        slot.path.listen();
                    }
                }
            }
        }
    }

    /// A reset, or an end of the stream.
    fn cut_path(&self, fault: Fault) {
        let close = fault.at.is_multiple_of(3);
        let how = if close {
            path::Cut::Close
        } else {
            path::Cut::Reset
        };
        match self.slots[fault.proxy].path.cut(how) {
            0 => self.note("there was no connection to cut"),
            cut => self.done(fault, &format!("{cut} connections, {how:?}")),
        }
    }

    fn note(&self, text: impl Into<String>) {
        self.clients.log.note(text);
    }

    fn done(&self, fault: Fault, said: &str) {
        self.clients.log.add(Event::Fault(fault.case));
        self.note(format!("done: proxy {} {said}", fault.proxy));
    }

    fn healed(&self, fault: Fault) {
        self.note(format!("healed: {:?}, proxy {}", fault.case, fault.proxy));
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
        let action = if kind == Cut {
            Action::Cut
        } else {
            Action::Hold
        };
        let trap = relay.arm(at, action);
        let by_client = async {
            // Bodies that are not whole are no named point where the store itself has one.
            if point != FaultPoint::BeforeRelease {
                pending::<()>().await;
            }
            passed.await;
        };
        tokio::select! {
            () = trap.sprung() => Some(trap),
            () = by_client => None,
        }
    }

    /// SIGKILL of a proxy, and another run of it.
    async fn replace(&self, fault: Fault, held: Option<Trap>, counts: bool) {
        let slot = &self.slots[fault.proxy];
        let mut place = slot.proxy.lock().await;
        let Some(proxy) = place.take() else { return };
        slot.bury(proxy);
        if counts {
            self.done(fault, "");
        }
        // Held messages go to the server all the same, and nobody gets the answers.
        drop(held);
        self.reader.let_go();
        self.reader.look();
        sleep(fault.lasts).await;
        slot.fill(&mut place, slot.launch(None).await);
        self.reader.look();
        self.healed(fault);
    }

    /// Waits for the death of a proxy that was started so that one of its syncs kills it; `false`:
    /// so many syncs there were not. They could still come, with nobody there to start it again.
    async fn dies_at_sync(&self, fault: Fault) -> bool {
        let lives = async || {
            let mut place = self.slots[fault.proxy].proxy.lock().await;
            let process = place.as_mut().map(Proxy::process);
            process.is_some_and(|process| process.ended().is_none())
        };
        let died = async {
            while lives().await {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(GIVE_UP, died).await.is_ok()
    }

    async fn stop(&self, fault: Fault, held: Option<Trap>) {
        let place = self.slots[fault.proxy].proxy.lock().await;
        let Some(proxy) = place.as_ref() else { return };
        proxy.pause().await;
        self.done(fault, &format!("for {:?}", fault.lasts));
        drop(held);
        sleep(fault.lasts).await;
        proxy.resume();
        self.healed(fault);
    }

    async fn kill_postgres(&self, fault: Fault, held: Option<Trap>) {
        let cluster = self.place.cluster.as_ref().expect("there is a Postgres");
        let of = |act: fn(&Cluster)| {
            let cluster = Arc::clone(cluster);
            let acted = tokio::task::spawn_blocking(move || act(&cluster));
            async { acted.await.expect("the server is ended and started") }
        };
        of(Cluster::kill9).await;
        self.done(fault, "");
        drop(held);
        self.reader.look();
        sleep(fault.lasts).await;
        of(Cluster::start_again).await;
        self.reader.look();
        self.healed(fault);
    }

    async fn terminate(&self, fault: Fault, held: Option<Trap>) {
        let url = self.place.past_all().expect("there is a Postgres");
        let options: PgConnectOptions = url.parse().expect("a URL");
        let ended = async {
            let mut admin = options.connect().await?;
            let ended = sqlx::query_scalar(TERMINATE).bind(&self.place.name);
            ended.fetch_one(&mut admin).await
        };
        let ended: sqlx::Result<i64> = ended.await;
        match ended {
            Ok(ended) if ended > 0 => self.done(fault, &format!("{ended} backends")),
            none => self.note(format!("nothing was terminated: {none:?}")),
        }
        drop(held);
    }

    /// Years ahead, then years back. It counts only if the proxy's own log shows it.
    async fn jump(&self, fault: Fault) {
        let slot = &self.slots[fault.proxy];
        let clock = slot.clock.as_ref().expect("the plan has a jump");
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
                self.done(fault, &format!("from {first} to {last}"));
            }
        }
    }
}
