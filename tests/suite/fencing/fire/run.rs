//! Plays one plan, and returns its log.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::clients::{Came, Clients, key};
use super::log::{Event, Log};
use super::park::Park;
use super::plan::{Plan, PlannedRequest};
use super::world::World;

/// With every fault over, a resource takes a newer token within this, or never.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes that kernels hold for the upstream have arrived within this, or were dropped.
const DELIVERED: Duration = Duration::from_secs(20);
/// Between a probe and the next.
const AGAIN: Duration = Duration::from_millis(100);

/// How often this process's own tasks are measured.
const TICK: Duration = Duration::from_millis(20);

/// The longest delay of this process's own tasks from now on: the upstream can keep its promises
/// only as far as it is let. Ends with its receiver.
pub fn lateness() -> watch::Receiver<Duration> {
    let (worst, heard) = watch::channel(Duration::ZERO);
    tokio::spawn(async move {
        while !worst.is_closed() {
            let before = Instant::now();
            sleep(TICK).await;
            let late = before.elapsed().saturating_sub(TICK);
            worst.send_modify(|worst| *worst = late.max(*worst));
        }
    });
    heard
}

/// Plays it once, into the log.
pub async fn play(plan: Arc<Plan>, park: Arc<Park>, log: Log) {
    let place = park.place(plan.ground).await;
    let world = Arc::new(World::start(Arc::clone(&plan), place, log).await);
    let mut actors = JoinSet::new();
    actors.spawn(world.clients.clone().run());
    for fault in plan.faults.clone() {
        let world = Arc::clone(&world);
        actors.spawn(async move { world.strike(fault).await });
    }
    actors.join_all().await;
    let log = &world.clients.log;
    // Stuck bytes may come later than their path is clear: between two tries the kernel waits
    // twice as long as before.
    for (nth, slot) in world.slots.iter().enumerate() {
        if !slot.path.delivered(DELIVERED).await {
            let held = slot.path.undelivered();
            log.note(format!("proxy {nth}: {held} bytes are held in the end"));
        }
    }
    recover(&world.clients).await;
    world.reader.has_looked(PATIENCE).await;
    let world = Arc::into_inner(world).expect("every actor has ended");
    let place = world.end().await;
    park.leave(place, plan.ground).await;
}

/// Every resource takes a newer token again, by way of every proxy.
pub async fn recover(clients: &Clients) {
    let plan = &clients.plan;
    let tokens = plan.clients.iter().flatten().filter_map(|ask| ask.token);
    let newest = tokens.max().unwrap_or_default();
    let deadline = Instant::now() + PATIENCE;
    let mut tries = 0;
    for resource in 0..plan.all_resources() {
        for (proxy, token) in (0..plan.proxies).zip(newest + 1..) {
            let probe = PlannedRequest::put(0, proxy, resource, token);
            loop {
                tries += 1;
                let nonce = format!("p{resource}-{tries}");
                if clients.attempt(&probe, &nonce).await == Came::Passed {
                    break;
                }
                if Instant::now() > deadline {
                    let key = key(resource);
                    let what = format!("{key} takes no newer token, with all faults over");
                    clients.log.add(Event::Unrecovered(what));
                    break;
                }
                sleep(AGAIN).await;
            }
        }
    }
}
