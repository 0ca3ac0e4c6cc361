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
    Home, advance, advance_all, ask, batch, epochs_of, instance, mark_of, opening, spending, token,
};

const TASKS: u64 = 50;
const ROUNDS: i64 = 20;
const RESOURCES: [&str; 5] = ["a", "B", "b", "é", "z"];

/// The answer to one ask.
#[derive(Clone, Debug)]
struct StoreAnswer {
    ask: Ask,
    before: Option<i64>,
}

/// What an instance knows of its openings.
#[derive(Default)]
struct Openings {
    next: Opening,
    used: BTreeSet<Opening>,
}

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
    let openings = [(); 2].map(|()| Arc::default());
    let mut lanes = Vec::new();
    for at in 0..if matches!(home, Home::Sqlite(_)) {
        1
    } else {
        6
    } {
        lanes.push(OneLane {
            id: at % 2,
            store: Arc::new(Mutex::new(home.open().await)),
            openings: Arc::clone(&openings[usize::from(at % 2 == 1)]),
        });
    }
    lanes
}

pub async fn answers_form_one_history(home: Home) {
    let lanes = lanes(&home).await;
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let at = usize::try_from(task).expect("a few") % lanes.len();
        let lane = lanes[at].clone();
        tasks.spawn(async move { run(task, &lane).await });
    }
    let (mut answers, mut kept) = (Vec::new(), BTreeSet::new());
    while let Some(done) = tasks.join_next().await {
        let (of_task, kept_by_task) = done.expect("no task panics");
        answers.extend(of_task);
        kept.extend(kept_by_task);
    }
    let store = lanes[0].store.lock().await.clone();
    drop(lanes);
    let store = home.reopen(store).await;
    for resource in RESOURCES {
        let of: Vec<&StoreAnswer> = answers
            .iter()
            .filter(|answer| answer.ask.resource.as_str() == resource)
            .collect();
        let last = check_history(&of);
        assert_eq!(mark_of(&*store, resource).await, last, "{resource}");
        // What was in use stayed, whatever was out of use meanwhile.
        let open: BTreeSet<Epoch> = epochs_of(&*store, resource).await.into_iter().collect();
        for (_, epoch) in kept.iter().filter(|(of, _)| of == resource) {
            assert!(open.contains(epoch), "{resource}: {epoch:?}");
        }
        assert!(open.len() < answers.len() / 10, "{}", open.len());
    }
}

/// The answers, and the epochs that are in use at the end.
async fn run(task: u64, lane: &OneLane) -> (Vec<StoreAnswer>, Vec<(String, Epoch)>) {
    let mut random = StdRng::seed_from_u64(task);
    let (mut answers, mut kept) = (Vec::new(), Vec::new());
    // This task knows that a mark never falls.
    let mut known: BTreeMap<String, Option<i64>> = BTreeMap::new();
    for round in 0..ROUNDS {
        let mut resources = RESOURCES;
        resources.shuffle(&mut random);
        let store = lane.store.lock().await;
        let (asks, used, next) = {
            let mut openings = lane.openings.lock().expect("no task panics");
            let (used, next) = (openings.used.clone(), openings.next);
            let take = random.random_range(1..=RESOURCES.len());
            let mut asks = Vec::new();
            for resource in resources.into_iter().take(take) {
                let token = random.random_range(0..ROUNDS * 10) + round;
                if random.random_bool(0.8) {
                    let opened = openings.next;
                    openings.next += 1;
                    openings.used.insert(opened);
                    asks.push(opening(resource, token, opened));
                } else {
                    asks.push(ask(resource, token));
                }
            }
            (asks, used.into_iter().collect::<Vec<_>>(), next)
        };
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
                let epoch = Epoch {
                    instance: instance(lane.id),
                    opening: opened,
                    token: ask.token,
                };
                let opens = before <= Some(ask.token.get());
                assert_eq!(found.open.contains(&epoch), opens, "{found:?}");
                if opens && random.random_bool(0.05) {
                    kept.push((ask.resource.to_string(), epoch));
                } else {
                    let mut openings = lane.openings.lock().expect("no task panics");
                    openings.used.remove(&opened);
                }
            }
            answers.push(StoreAnswer { ask, before });
        }
    }
    (answers, kept)
}

/// Every statement took the mark from what it found to the larger of that and its token. Those that
/// raised it must join into one chain from "no mark"; the others must have found a link of it.
/// Returns where it ends.
fn check_history(answers: &[&StoreAnswer]) -> Option<i64> {
    let mut raises: Vec<(Option<i64>, i64)> = answers
        .iter()
        .map(|answer| (answer.before, answer.ask.token.get()))
        .filter(|(before, token)| *before < Some(*token))
        .collect();
    raises.sort_unstable();
    let mut mark = None;
    for (before, after) in &raises {
        assert_eq!(
            *before, mark,
            "two statements found the same mark, or one was lost"
        );
        mark = Some(*after);
    }
    let links: BTreeSet<Option<i64>> = raises.iter().map(|(_, after)| Some(*after)).collect();
    for answer in answers {
        let above = answer.before < Some(answer.ask.token.get());
        assert!(above || links.contains(&answer.before), "{answer:?}");
    }
    let highest = answers.iter().map(|answer| answer.ask.token.get()).max();
    assert_eq!(mark, highest);
    mark
}

/// Futures are dropped after each number of polls from none on; whatever the dropped ones did or
/// did not do, the store goes on and answers stay true.
pub async fn a_caller_that_leaves_breaks_nothing(home: Home) {
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
            answer = (&mut call).now_or_never();
            if answer.is_some() {
                break;
            }
            tokio::task::yield_now().await;
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

pub async fn one_of_many_spends_the_token(home: Home) {
    let lanes = lanes(&home).await;
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let at = usize::try_from(task).expect("a few") % lanes.len();
        let lane = lanes[at].clone();
        tasks.spawn(async move {
            let store = lane.store.lock().await;
            advance(&**store, spending("a", 7, &format!("n{task}")))
                .await
                .spent_by
        });
    }
    let mut names = BTreeSet::new();
    while let Some(name) = tasks.join_next().await {
        names.insert(name.expect("no task panics").expect("it is spent"));
    }
    assert_eq!(names.len(), 1, "{names:?}");
}
