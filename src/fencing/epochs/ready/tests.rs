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
    let ready = Ready::new(2, false);
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
    let ready = Ready::new(2, false);
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
    let ready = Ready::new(2, false);
    push(&ready, ONE, FEW);
    assert_eq!(take(&ready, ONE), FEW);
    push(&ready, OTHER, 1);
    assert_eq!(waits(&ready, OTHER).await, Some(Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn where_the_store_takes_one_statement_at_a_time_the_next_lets_it_end() {
    let ready = Ready::new(2, true);
    push(&ready, ONE, 1);
    assert_eq!(take(&ready, ONE), 1);
    push(&ready, OTHER, 1);
    assert_eq!(waits(&ready, OTHER).await, None);
    assert_eq!(waits(&ready, ONE).await, Some(Duration::ZERO));
    assert_eq!(take(&ready, ONE), 1);
}

#[tokio::test(start_paused = true)]
async fn what_one_statement_cannot_take_is_left_to_another_lane() {
    let ready = Ready::new(2, false);
    for number in 0..=TOGETHER {
        ready.push(ONE, key(&format!("r{number}")));
    }
    let other = async {
        let waited = waits(&ready, OTHER).await;
        (waited, take(&ready, OTHER))
    };
    let taking = async {
        ready.due(ONE).await;
        take(&ready, ONE)
    };
    let (taken, (waited, rest)) = tokio::join!(taking, other);
    assert_eq!((taken, waited, rest), (TOGETHER, Some(PATIENCE), 1));
}
