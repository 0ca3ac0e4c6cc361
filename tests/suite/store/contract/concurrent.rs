//! Many at once, checked against what one after another would have given.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fencepost::routing::Token;
use fencepost::store::{Ask, Batch, Epoch, Lane, MarkStore, Opening};
use futures_util::FutureExt as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use tokio::sync::Mutex;

use super::{
    Home, advance, advance_all, ask, batch, epoch, epochs_of, instance, mark_of, opening, spending,
    token,
};

contract! {
    { answers_form_one_history, a_caller_that_leaves_breaks_nothing, one_of_many_spends_the_token }
}

const TASKS: u64 = 50;
const ROUNDS: i64 = 20;
const RESOURCES: [&str; 5] = ["a", "B", "b", "é", "z"];

/// The answer to one ask: the mark before.
type StoreAnswer = (Ask, Option<i64>);

/// The first opening that was not given out by an instance, and those in use.
type Openings = (Opening, BTreeSet<Opening>);

/// One connection of an instance, which carries one batch at a time.
#[derive(Clone)]
struct OneLane {
    id: u64,
    store: Arc<Mutex<Arc<dyn MarkStore>>>,
    /// Those of the instance.
    openings: Arc<std::sync::Mutex<Openings>>,
}

/// Two instances, several lanes of each where the store can be shared.
async fn lanes(home: &Home) -> Vec<OneLane> {
    let all = [(); 2].map(|()| Arc::default());
    let mut lanes = Vec::new();
    for (id, openings) in (0..2)
        .zip(&all)
        .cycle()
        .take(if home.0.is_shared() { 6 } else { 1 })
    {
        let (store, openings) = (
            Arc::new(Mutex::new(home.open().await)),
            Arc::clone(openings),
        );
        lanes.push(OneLane {
            id,
            store,
            openings,
        });
    }
    lanes
}

/// Runs a task for each number over one of these lanes. Returns their results.
async fn beside<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    lanes: &[OneLane],
    task: impl Fn(u64, OneLane) -> F,
) -> Vec<T> {
    let lanes = lanes.iter().cycle();
    let tasks = (0..TASKS)
        .zip(lanes)
        .map(|(number, lane)| task(number, lane.clone()));
    tasks.collect::<tokio::task::JoinSet<T>>().join_all().await
}

async fn answers_form_one_history(home: Home) {
    let lanes = lanes(&home).await;
    let (mut answers, mut kept) = (Vec::new(), BTreeSet::new());
    for (of_task, kept_by_task) in beside(&lanes, run).await {
        answers.extend(of_task);
        kept.extend(kept_by_task);
    }
    let store = lanes[0].store.lock().await.clone();
    drop(lanes);
    let store = home.reopen(store).await;
    for resource in RESOURCES {
        let of = answers
            .iter()
            .filter(|(ask, _)| ask.resource.as_str() == resource);
        let of: Vec<&StoreAnswer> = of.collect();
        let last = check_history(&of);
        assert_eq!(mark_of(&*store, resource).await, last, "{resource}");
        // Epochs in use stayed, whatever was out of use meanwhile.
        let open: BTreeSet<Epoch> = epochs_of(&*store, resource).await.into_iter().collect();
        for (_, epoch) in kept.iter().filter(|(of, _)| of == resource) {
            assert!(open.contains(epoch), "{resource}: {epoch:?}");
        }
        assert!(open.len() < answers.len() / 10, "{}", open.len());
    }
}

/// The answers, and the epochs that are in use at the end.
async fn run(task: u64, lane: OneLane) -> (Vec<StoreAnswer>, Vec<(String, Epoch)>) {
    let mut random = StdRng::seed_from_u64(task);
    let (mut answers, mut kept) = (Vec::new(), Vec::new());
    // This task knows that a mark never falls.
    let mut known: BTreeMap<String, Option<i64>> = BTreeMap::new();
    for round in 0..ROUNDS {
        let mut resources = RESOURCES;
        resources.shuffle(&mut random);
        let store = lane.store.lock().await;
        let (mut asks, used, next) = {
            let (next, used) = &*lane.openings.lock().expect("no task panics");
            (Vec::new(), used.iter().copied().collect::<Vec<_>>(), *next)
        };
        for resource in &resources[..random.random_range(1..=RESOURCES.len())] {
            let token = random.random_range(0..ROUNDS * 10) + round;
            if random.random_bool(0.8) {
                let (next, used) = &mut *lane.openings.lock().expect("no task panics");
                used.insert(*next);
                asks.push(opening(resource, token, *next));
                *next += 1;
            } else {
                asks.push(ask(resource, token));
            }
        }
        let batch = Batch {
            instance: instance(lane.id),
            used: &used,
            next,
            ..batch(&asks)
        };
        let found = advance_all(&**store, batch).await;
        // Durable when given: another connection sees it at once.
        let look = random.random_range(0..asks.len());
        let mark = mark_of(&**store, asks[look].resource.as_str()).await;
        assert!(mark >= Some(asks[look].token.get()));
        drop(store);
        for (ask, found) in asks.into_iter().zip(found) {
            let before = found.before.map(Token::get);
            let floor = known.entry(ask.resource.to_string()).or_default();
            assert!(before >= *floor, "the mark of {} fell", ask.resource);
            *floor = before.max(Some(ask.token.get()));
            if let Some(opened) = ask.opening {
                let epoch = epoch(lane.id, opened, ask.token.get());
                let opens = before <= Some(ask.token.get());
                assert_eq!(found.open.contains(&epoch), opens, "{found:?}");
                if opens && random.random_bool(0.05) {
                    kept.push((ask.resource.to_string(), epoch));
                } else {
                    let mut openings = lane.openings.lock().expect("no task panics");
                    openings.1.remove(&opened);
                }
            }
            answers.push((ask, before));
        }
    }
    (answers, kept)
}

/// Every statement took the mark from what it found to the larger of that and its token. Those that
/// raised it must join into one chain from "no mark"; the others must have found a link of it.
/// Returns where it ends.
fn check_history(answers: &[&StoreAnswer]) -> Option<i64> {
    let answers = answers
        .iter()
        .map(|(ask, before)| (*before, ask.token.get()));
    let raises = answers
        .clone()
        .filter(|(before, token)| *before < Some(*token));
    let mut raises: Vec<(Option<i64>, i64)> = raises.collect();
    raises.sort_unstable();
    let mut links = BTreeSet::new();
    for (before, after) in raises {
        let mark = links.last().copied();
        assert_eq!(
            before, mark,
            "two statements found the same mark, or one was lost"
        );
        links.insert(after);
    }
    for (before, token) in answers.clone() {
        let known = before.is_some_and(|before| links.contains(&before));
        assert!(before < Some(token) || known, "{token} found {before:?}");
    }
    let highest = answers.map(|(_, token)| token).max();
    assert_eq!(links.last().copied(), highest);
    highest
}

/// Futures are dropped after each number of polls from none on; whatever the dropped ones did or
/// did not do, the store goes on and answers stay true.
async fn a_caller_that_leaves_breaks_nothing(home: Home) {
    let store = home.open().await;
    let mut given = None;
    let mut left = 0;
    for number in 0..150_i64 {
        let polls = number % 30;
        let asks = [opening("a", number, number)];
        let batch = Batch {
            next: number,
            ..batch(&asks)
        };
        let mut call = store.advance(Lane::Main(0), batch);
        let mut answer = None;
        for _ in 0..polls {
            if answer.is_none() {
                answer = (&mut call).now_or_never();
                tokio::task::yield_now().await;
            }
        }
        drop(call);
        match answer {
            Some(found) => {
                let found = found.expect("an answer");
                assert!(found[0].before.map(Token::get) >= given);
                given = Some(number);
            }
            None => left += 1,
        }
        assert!(mark_of(&*store, "a").await >= given);
    }
    assert!(left > 0, "no caller left before its answer");
    let last = advance(&*store, ask("a", 1_000)).await;
    assert!(last.before <= Some(token(149)));
    for epoch in last.open {
        assert_eq!(epoch.opening, epoch.token.get());
    }
}

async fn one_of_many_spends_the_token(home: Home) {
    async fn spend(task: u64, lane: OneLane) -> Option<String> {
        let store = lane.store.lock().await;
        let found = advance(&**store, spending("a", 7, &format!("n{task}"))).await;
        found.spent_by
    }
    let names = beside(&lanes(&home).await, spend).await;
    let names: BTreeSet<_> = names.into_iter().collect();
    assert!(names.len() == 1 && !names.contains(&None), "{names:?}");
}
