//! Tests of the callers' bounds: implausible tokens, and new resources.

use super::*;
use crate::routing::{Jump, Needs, Token, TokenBounds};

const TIGHT: TokenBounds = TokenBounds {
    jump: Jump::Most(10),
    max: Token::MAX,
};

fn bounded(rig: &Rig, on: &str, number: i64, needs: Needs) -> JoinHandle<Result<bool, Refused>> {
    let (writer, key) = (rig.writer.clone(), key(on));
    tokio::spawn(async move {
        writer
            .append_for(Some(needs), &key, token(number), Want::Open)
            .await
    })
}

async fn answer(asked: JoinHandle<Result<bool, Refused>>) -> Result<bool, Refused> {
    asked.await.expect("no panic")
}

fn implausible(mark: Option<i64>) -> Result<bool, Refused> {
    Err(Refused::Implausible {
        mark: mark.map(token),
    })
}

/// A batch that has everything: a stale token, a leap, and a token that is believed by a mark that
/// was not known here.
#[tokio::test(start_paused = true)]
async fn all_that_wait_together_are_judged_by_the_mark_that_is_found() {
    let (store, rig) = alone().await;
    open(&rig, "a", 41).await.expect("granted");
    // Another instance has raised it meanwhile.
    store.state().marks.insert(key("a"), (token(60), None, 0));
    let go = Arc::new(Notify::new());
    store.plan("advance", CallPlan::Hold(Arc::clone(&go)));
    let first = ask(&rig, "b", 1, Want::Open);
    store.until("advance", 2).await;
    let asked: Vec<_> = [42, 51, 60, 70, 71, 5000]
        .map(|number| bounded(&rig, "a", number, TIGHT.needs(token(number))))
        .into_iter()
        .collect();
    tokio::task::yield_now().await;
    go.notify_one();
    answer(first).await.expect("granted");
    let mut answers = Vec::new();
    for asked in asked {
        answers.push(answer(asked).await);
    }
    assert_eq!(
        answers,
        [
            stale(60),
            stale(60),
            // 70 was believed from 60 on, and raised the mark.
            stale(70),
            Ok(true),
            implausible(Some(60)),
            implausible(Some(60)),
        ]
    );
    assert_eq!(store.mark_of(&key("a")), Some(70));
    assert_eq!(
        look(&rig, "a", 69),
        Err(Refused::stale(token(70), DecidedBy::Memory))
    );
}

#[tokio::test(start_paused = true)]
async fn a_token_that_leaps_opens_nothing_and_is_learned_from() {
    let (store, rig) = alone().await;
    store.state().marks.insert(key("a"), (token(41), None, 0));
    let leap = || bounded(&rig, "a", 5000, TIGHT.needs(token(5000)));
    assert_eq!(answer(leap()).await, implausible(Some(41)));
    assert_eq!(store.mark_of(&key("a")), Some(41));
    assert_eq!(
        look(&rig, "a", 40),
        Err(Refused::stale(token(41), DecidedBy::Memory))
    );
    assert!(store.open(&key("a")).is_empty());
    // No bounds hold for an operator.
    let raised = ask(&rig, "a", 5000, Want::Raise);
    assert_eq!(answer(raised).await, Ok(true));
    assert_eq!(answer(leap()).await, Ok(false));
    assert_eq!(store.open(&key("a")).len(), 1);
    let max = TokenBounds {
        max: token(1000),
        ..TIGHT
    };
    let first = bounded(&rig, "b", 1001, max.needs(token(1001)));
    assert_eq!(answer(first).await, implausible(None));
    assert_eq!(store.mark_of(&key("b")), None);
    assert_eq!(
        answer(bounded(&rig, "b", 1000, max.needs(token(1000)))).await,
        Ok(true)
    );
}

#[tokio::test(start_paused = true)]
async fn resources_that_have_a_mark_need_no_room() {
    let (store, rig) = alone().await;
    rig.growth.set(Some(1));
    for n in 0..50 {
        let on = format!("known-{n:02}");
        store.state().marks.insert(key(&on), (token(1), None, 0));
    }
    let go = Arc::new(Notify::new());
    store.plan("advance", CallPlan::Hold(Arc::clone(&go)));
    let first = ask(&rig, "by-an-operator", 1, Want::Open);
    store.until("advance", 1).await;
    // In the order of the keys all of the known ones come first, and take the places while nothing
    // is known of them.
    let asked = |name: &str, count: usize| -> Vec<_> {
        let names = (0..count).map(|n| format!("{name}-{n:02}"));
        names
            .map(|on| bounded(&rig, &on, 1, Needs::default()))
            .collect()
    };
    let (known, new) = (asked("known", 50), asked("new", 30));
    tokio::task::yield_now().await;
    go.notify_one();
    answer(first).await.expect("granted");
    for asked in known {
        assert_eq!(answer(asked).await, Ok(false));
    }
    let (mut made, mut full) = (0, 0);
    for asked in new {
        match answer(asked).await {
            Ok(true) => made += 1,
            Err(Refused::TooManyNew) => full += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((made, full), (10, 20));
    assert_eq!(rig.metrics.store().series.new_resources.get(), 11);
    assert_eq!(store.mark_of(&key("new-29")), None);
    // An ask that the store does not answer takes no place for good.
    tokio::time::sleep(Duration::from_secs(1)).await;
    store.plan("advance", CallPlan::Fail(broken()));
    let failed = bounded(&rig, "later", 1, Needs::default()).await;
    assert!(
        failed
            .expect("no panic")
            .is_err_and(|refused| refused.is_undecided())
    );
    let again = bounded(&rig, "later", 1, Needs::default());
    assert_eq!(answer(again).await, Ok(true));
}

/// Requests for which there is no room wait in the same statement.
#[tokio::test(start_paused = true)]
async fn an_operator_needs_no_room() {
    let (store, rig) = alone().await;
    rig.growth.set(Some(1));
    while rig.growth.take() {}
    let go = Arc::new(Notify::new());
    store.plan("advance", CallPlan::Hold(Arc::clone(&go)));
    let first = ask(&rig, "first", 1, Want::Open);
    store.until("advance", 1).await;
    let leaps = bounded(&rig, "a", 1000, TIGHT.needs(token(1000)));
    let other = bounded(&rig, "other", 1000, Needs::default());
    let asked = ask(&rig, "a", 5, Want::Raise);
    tokio::task::yield_now().await;
    go.notify_one();
    answer(first).await.expect("granted");
    assert_eq!(answer(asked).await, Ok(true));
    assert_eq!(answer(leaps).await, implausible(Some(5)));
    assert_eq!(answer(other).await, Err(Refused::TooManyNew));
    assert_eq!(store.mark_of(&key("a")), Some(5));
    assert_eq!(store.mark_of(&key("other")), None);
}
