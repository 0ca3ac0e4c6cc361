//! Plays one plan, and returns its log.

use std::sync::Arc;
use std::time::Duration;

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

/// Plays it once, into the log; returns what the proxies have written, run by run.
pub async fn play(plan: Arc<Plan>, park: &Park, log: Log) -> Vec<String> {
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
    if !world.reader.has_looked(PATIENCE).await {
        log.note("the marks could not be read in the end");
    }
    let world = Arc::into_inner(world).expect("every actor has ended");
    let (lines, place) = world.end().await;
    park.leave(place, plan.ground).await;
    lines
}

/// Every resource takes a newer token again, by way of every proxy.
pub async fn recover(clients: &Clients) {
    let plan = &clients.plan;
    let tokens = plan.clients.iter().flatten().filter_map(|ask| ask.token);
    let newest = tokens.max().unwrap_or_default();
    let deadline = Instant::now() + PATIENCE;
    let mut tasks = JoinSet::new();
    for resource in 0..plan.all_resources() {
        let clients = clients.clone();
        tasks.spawn(async move {
            let mut tries = 0;
            for (proxy, token) in (0..clients.plan.proxies).zip(newest + 1..) {
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
        });
    }
    tasks.join_all().await;
}
