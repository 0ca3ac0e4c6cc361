//! Which lane sends, and when.

use super::*;
use crate::fencing::tests::key;

const ONE: Lane = Lane::Main(0);
const OTHER: Lane = Lane::Main(1);

fn push(ready: &Ready, lane: Lane, count: usize) {
    for number in 0..count {
        ready.push(lane, key(&format!("r{number}")));
    }
}

fn take(ready: &Ready, lane: Lane) -> usize {
    ready.take(lane, Instant::now()).len()
}

/// How long the lane waits; `None`: too long.
async fn waits(ready: &Ready, lane: Lane) -> Option<Duration> {
    let began = Instant::now();
    let due = tokio::time::timeout(Duration::from_secs(1), ready.due(lane)).await;
    due.is_ok().then(|| began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn what_is_due_gathers_while_a_large_statement_is_on_its_way_and_all_of_it_goes_with_the_next()
 {
    let ready = Ready::new(2, 2);
    push(&ready, ONE, 9);
    assert_eq!(waits(&ready, ONE).await, Some(Duration::ZERO));
    assert_eq!(take(&ready, ONE), 9);
    push(&ready, OTHER, 2);
    push(&ready, ONE, 3);
    tokio::select! {
        biased;
        () = ready.due(OTHER) => panic!("it gathers"),
        () = tokio::time::sleep(PATIENCE / 2) => {}
    }
    // The statement has ended.
    assert_eq!(waits(&ready, ONE).await, Some(Duration::ZERO));
    assert_eq!(take(&ready, ONE), 5, "those of the other worker too");
}

#[tokio::test(start_paused = true)]
async fn a_statement_that_takes_long_is_not_waited_for() {
    let ready = Ready::new(2, 2);
    push(&ready, ONE, 9);
    assert_eq!(take(&ready, ONE), 9);
    // Its own worker has more, and the other one nothing that would ring its lane.
    let other = async {
        let waited = waits(&ready, OTHER).await;
        (waited, take(&ready, OTHER))
    };
    let pushing = async { push(&ready, ONE, 2) };
    let ((waited, taken), ()) = tokio::join!(other, pushing);
    assert_eq!((waited, taken), (Some(PATIENCE), 2));
    tokio::time::advance(PATIENCE).await;
    push(&ready, OTHER, 1);
    assert_eq!(waits(&ready, OTHER).await, Some(Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_small_statement_is_not_waited_for() {
    for (resources, waited) in [(FEW, Duration::ZERO), (FEW + 1, PATIENCE)] {
        let ready = Ready::new(2, 2);
        push(&ready, ONE, resources);
        assert_eq!(take(&ready, ONE), resources);
        push(&ready, OTHER, 1);
        assert_eq!(waits(&ready, OTHER).await, Some(waited), "{resources}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_gathers_goes_as_soon_as_only_a_small_statement_is_on_its_way() {
    let ready = Ready::new(2, 2);
    push(&ready, ONE, 9);
    assert_eq!(take(&ready, ONE), 9);
    push(&ready, OTHER, 1);
    let other = waits(&ready, OTHER);
    let one = async {
        tokio::time::advance(PATIENCE / 5).await;
        ready.due(ONE).await;
        assert_eq!(take(&ready, ONE), 1);
        push(&ready, OTHER, 1);
    };
    let (waited, ()) = tokio::join!(other, one);
    assert_eq!(waited, Some(PATIENCE / 5));
}

/// The youngest of two large statements is waited for, and for the rest of its time only.
#[tokio::test(start_paused = true)]
async fn the_wait_counts_from_when_the_statement_was_composed() {
    let ready = Ready::new(3, 3);
    push(&ready, ONE, 9);
    assert_eq!(take(&ready, ONE), 9);
    tokio::time::advance(PATIENCE / 5).await;
    push(&ready, OTHER, 9);
    assert_eq!(take(&ready, OTHER), 9);
    tokio::time::advance(PATIENCE / 5).await;
    let last = Lane::Main(2);
    push(&ready, last, 1);
    let left = PATIENCE * 4 / 5;
    assert_eq!(waits(&ready, last).await, Some(left));
}

#[tokio::test(start_paused = true)]
async fn where_the_store_takes_one_statement_at_a_time_the_next_lets_it_end() {
    let ready = Ready::new(1, 2);
    push(&ready, ONE, 1);
    // Both were rung, and one of them is to send.
    ready.bells[1].notify_one();
    let (one, other) = tokio::join!(waits(&ready, ONE), waits(&ready, OTHER));
    assert_eq!((one, other), (Some(Duration::ZERO), None));
    assert_eq!(take(&ready, ONE), 1);
    push(&ready, OTHER, 1);
    assert_eq!(waits(&ready, OTHER).await, None);
    assert_eq!(waits(&ready, ONE).await, Some(Duration::ZERO));
    assert_eq!(take(&ready, ONE), 1);
}

#[tokio::test(start_paused = true)]
async fn an_idle_lane_is_rung_by_what_comes_later() {
    for (statements, rings) in [(2, 2), (1, 1)] {
        let ready = Ready::new(statements, 2);
        let one = async {
            let waited = waits(&ready, ONE).await;
            assert_eq!(take(&ready, ONE), 1);
            waited
        };
        let (one, other, ()) = tokio::join!(biased; one, waits(&ready, OTHER), async {
            // Both are idle.
            for _ in 0..=MOST_TURNS {
                tokio::task::yield_now().await;
            }
            push(&ready, ONE, 1);
            tokio::task::yield_now().await;
            // The first lane has a statement on its way.
            push(&ready, ONE, 1);
        });
        let rung = [one, other].iter().flatten().count();
        assert_eq!(rung, rings, "{one:?} {other:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_one_statement_cannot_take_is_left_to_another_lane() {
    let ready = Ready::new(2, 2);
    let taking = async {
        tokio::task::yield_now().await;
        for number in 0..=TOGETHER {
            ready.push(ONE, key(&format!("r{number}")));
        }
        ready.due(ONE).await;
        take(&ready, ONE)
    };
    let other = async {
        let waited = waits(&ready, OTHER).await;
        (waited, take(&ready, OTHER))
    };
    let ((waited, rest), taken) = tokio::join!(other, taking);
    assert_eq!((taken, waited, rest), (TOGETHER, Some(PATIENCE), 1));
}

#[tokio::test]
async fn what_is_ready_on_the_worker_joins() {
    let ready = std::sync::Arc::new(Ready::new(2, 2));
    push(&ready, ONE, 1);
    let others = std::sync::Arc::clone(&ready);
    tokio::spawn(async move { push(&others, ONE, 3) });
    ready.due(ONE).await;
    assert_eq!(take(&ready, ONE), 4);
}
