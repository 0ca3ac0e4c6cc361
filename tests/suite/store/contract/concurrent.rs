//! Many at once, checked against what one after another would have given.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fencepost::routing::Token;
use fencepost::store::{Ask, Batch, Epoch, Lane, MarkStore};
use futures_util::FutureExt as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use super::{
    Home, advance, advance_all, ask, batch, epoch, epochs_of, instance, mark_of, opening, token,
};

contract! {
    { answers_form_one_history, a_caller_that_leaves_breaks_nothing }
}

const TASKS: u64 = 50;
const ROUNDS: i64 = 20;
const RESOURCES: [&str; 5] = ["a", "B", "b", "é", "z"];

/// The resource and the token of an ask, and the mark before.
type StoreAnswer = (String, i64, Option<i64>);

/// Over several stores where it can be shared.
async fn answers_form_one_history(home: Home) {
    let mut stores = Vec::new();
    for _ in 0..if home.0.is_shared() { 6 } else { 1 } {
        stores.push(home.open().await);
    }
    let tasks = (0..TASKS).zip(stores.iter().cycle());
    let tasks = tasks.map(|(task, store)| run(task, Arc::clone(store)));
    let done = tasks.collect::<tokio::task::JoinSet<_>>().join_all().await;
    drop(stores);
    let (answers, kept): (Vec<_>, Vec<_>) = done.into_iter().unzip();
    let (answers, kept) = (answers.concat(), kept.concat());
    let store = home.open().await;
    for resource in RESOURCES {
        let of = answers.iter().filter(|(of, ..)| of == resource);
        let of: Vec<_> = of.map(|(_, token, before)| (*before, *token)).collect();
        let last = check_history(&of);
        assert_eq!(mark_of(&*store, resource).await, last, "{resource}");
        // Epochs in use stayed, whatever was out of use meanwhile.
        let open = epochs_of(&*store, resource).await;
        for (_, epoch) in kept.iter().filter(|(of, _)| of == resource) {
            assert!(open.contains(epoch), "{resource}: {epoch:?}");
        }
        assert!(open.len() < answers.len() / 10, "{}", open.len());
    }
}

/// An instance: its answers, and the epochs that are in use at the end.
async fn run(task: u64, store: Arc<dyn MarkStore>) -> (Vec<StoreAnswer>, Vec<(String, Epoch)>) {
    let mut random = StdRng::seed_from_u64(task);
    let (mut answers, mut kept, mut used, mut next) = (Vec::new(), Vec::new(), Vec::new(), 0);
    // This task knows that a mark never falls.
    let mut known = BTreeMap::new();
    for round in 0..ROUNDS {
        let mut resources = RESOURCES;
        resources.shuffle(&mut random);
        let count = random.random_range(1..=RESOURCES.len());
        let asks = (next..)
            .zip(&resources[..count])
            .map(|(opened, resource)| Ask {
                opening: random.random_bool(0.8).then_some(opened),
                ..ask(resource, random.random_range(0..ROUNDS * 10) + round)
            });
        let asks: Vec<_> = asks.collect();
        let batch = Batch {
            instance: instance(task),
            used: &used,
            next,
            ..batch(&asks)
        };
        let found = advance_all(&*store, batch).await;
        // Durable when given: another connection sees it at once.
        let mark = mark_of(&*store, resources[0]).await;
        assert!(mark >= Some(asks[0].token.get()));
        for (ask, found) in asks.iter().zip(found) {
            let (resource, number) = (ask.resource.to_string(), ask.token.get());
            let before = found.before.map(Token::get);
            let floor = known.insert(resource.clone(), before.max(Some(number)));
            assert!(before >= floor.flatten(), "the mark of {resource} fell");
            let opened = epoch(task, next, number);
            let opens = ask.opening.is_some() && before <= Some(number);
            assert_eq!(found.open.contains(&opened), opens, "{found:?}");
            if opens && random.random_bool(0.05) {
                used.push(next);
                kept.push((resource.clone(), opened));
            }
            next += 1;
            answers.push((resource, number, before));
        }
    }
    (answers, kept)
}

/// Every statement took the mark from what it found to the larger of that and its token. Those that
/// raised it must join into one chain from "no mark"; the others must have found a link of it.
/// Returns where it ends.
fn check_history(answers: &[(Option<i64>, i64)]) -> Option<i64> {
    let mut raises = answers.to_vec();
    raises.retain(|(before, token)| *before < Some(*token));
    raises.sort_unstable();
    let mut links = BTreeSet::new();
    for (before, after) in raises {
        let mark = links.last().copied();
        assert_eq!(before, mark, "two found the same mark, or one was lost");
        links.insert(after);
    }
    for (before, token) in answers {
        let known = before.is_some_and(|before| links.contains(&before));
        assert!(*before < Some(*token) || known, "{token} found {before:?}");
    }
    let highest = answers.iter().map(|(_, token)| *token).max();
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
