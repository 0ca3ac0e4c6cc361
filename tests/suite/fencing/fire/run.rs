//! Plays one plan, and returns its log.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::clients::{Directory, HistoryClient, probe};
use super::log::{Event, Log};
use super::park::Park;
use super::plan::{Plan, Shown};
use super::world::{World, keys};

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
    for number in 0..plan.clients.len() {
        let client = HistoryClient {
            number,
            plan: Arc::clone(&plan),
            log: world.log.clone(),
            began: world.began,
            hub: Arc::clone(&world.hub),
            directory: world.directory(),
        };
        actors.spawn(client.run());
    }
    for fault in plan.faults.clone() {
        let world = Arc::clone(&world);
        actors.spawn(async move { world.strike(fault).await });
    }
    while let Some(ended) = actors.join_next().await {
        ended.expect("no actor panics");
    }
    // Stuck bytes may come later than their path is clear: between two tries the kernel waits
    // twice as long as before.
    for (nth, slot) in world.slots.iter().enumerate() {
        if !slot.path.delivered(DELIVERED).await {
            let held = slot.path.undelivered();
            world
                .log
                .note(format!("proxy {nth}: {held} bytes are held in the end"));
        }
    }
    recover(&world.plan, &world.log, &world.directory()).await;
    if !world.reader.has_looked(PATIENCE).await {
        world.log.note("the marks could not be read in the end");
    }
    let said = world.end().await;
    let world = Arc::into_inner(world).expect("every actor has ended");
    world.place.leave().await;
    said
}

/// Every resource takes a newer token again, by way of every proxy.
pub async fn recover(plan: &Plan, log: &Log, directory: &Directory) {
    let tokens = plan.clients.iter().flatten().map(|ask| ask.token);
    let newest = tokens.filter_map(|token| match token {
        Shown::Token(token) => Some(token),
        _ => None,
    });
    let newest = newest.max().unwrap_or_default();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let mut tasks = JoinSet::new();
    for (of, resource) in keys(plan).into_iter().enumerate() {
        let (log, directory) = (log.clone(), Arc::clone(directory));
        let proxies = plan.ground.proxies();
        tasks.spawn(async move {
            let mut token = newest;
            let mut tries = 0;
            for proxy in 0..proxies {
                token += 1;
                loop {
                    tries += 1;
                    let nonce = format!("p{of}-{tries}");
                    let passed = match directory(proxy) {
                        Some(to) => probe(&log, to, proxy, &nonce, of, token).await,
                        None => false,
                    };
                    if passed || tokio::time::Instant::now() > deadline {
                        let (resource, yes) = (resource.clone(), passed);
                        log.add(Event::Recovered { resource, yes });
                        break;
                    }
                    tokio::time::sleep(AGAIN).await;
                }
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no probe panics");
    }
}
