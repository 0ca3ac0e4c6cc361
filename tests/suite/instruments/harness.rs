//! The upstream sees each way in which an older token can overtake a newer one, without a proxy in
//! between.

use crate::support::upstream::Arrival;
use crate::support::{Request, Upstream, put};

fn write(token: u64) -> Request {
    put("/orders/7")
        .token(token)
        .header("X-Fencing-Resource", "order:7")
        .body("x")
}

async fn writes(upstream: &Upstream, token: u64) {
    let answer = write(token).send(upstream.address()).await;
    answer.assert_forwarded();
}

#[tokio::test]
#[should_panic(expected = "arrived after")]
async fn an_older_token_that_lands_last_is_seen() {
    let upstream = Upstream::start().await;
    for token in [1, 1, 3] {
        writes(&upstream, token).await;
    }
    upstream.assert_no_overtaking();
    writes(&upstream, 2).await;
    upstream.assert_no_overtaking();
}

#[tokio::test]
#[should_panic(expected = "before an older one had ended")]
async fn work_that_goes_on_after_its_caller_has_left_counts() {
    let upstream = Upstream::start().await;
    let gate = upstream.hold(&write(41));
    let given_up = write(41).start(upstream.address());
    upstream.reached(1).await;
    given_up.abort();
    upstream.until("it is let go", |all| all[0].left).await;
    writes(&upstream, 42).await;
    gate.open();
    let ended = |all: &[Arrival]| all[0].ended.is_some();
    upstream.until("its work ends", ended).await;
    upstream.assert_no_overtaking();
}
