//! Operators state the outcomes that nobody else can know: those of the dead, and those that
//! settle.

use super::{
    KEY, PATIENT, assert_nothing_written_back, audited, override_to, resolve, takes, unknown,
    with_token,
};
use crate::support::pair::Pair;
use crate::support::relay::{Point, Statement};
use crate::support::{
    Gate, Proxy, Step, Store, all_forwarded, eventually, joined, or_return, post,
};

#[tokio::test]
async fn an_operator_need_not_wait_for_the_dead_to_settle() {
    let pair = or_return!(Pair::start(PATIENT).await);
    let (b, a, _, upstream, _) = pair.parts();
    b.forward(with_token(42)).await;
    b.pause().await;
    let left = eventually("B to be known as dead", || async { unknown(a).await.pop() }).await;
    let answer = resolve(a, &left["id"]).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    override_to(a, 10).await;
    a.forward(with_token(11)).await;
    b.resume();
    takes(b, 12).await;
    assert_eq!(upstream.tokens(KEY), [42, 11, 12]);
    assert_nothing_written_back(&[a, b], 12).await;
}

#[tokio::test]
async fn an_outcome_resolved_lets_newer_tokens_through_at_both_proxies() {
    let pair = or_return!(Pair::start(PATIENT).await);
    let (b, a, _, upstream, _) = pair.parts();
    // Both have one, the first of their runs, of the same token.
    for proxy in [a, b] {
        upstream.on_token(41, [Step::Reset]);
        proxy.refuse(with_token(41), 502, "outcome-unknown").await;
    }
    let newer = [a, b].map(|proxy| proxy.start_request(with_token(42)));
    a.waiting(KEY, 1).await;
    b.waiting(KEY, 1).await;
    let (of_a, of_b) = (unknown(a).await, unknown(b).await);
    let (of_a, of_b) = (&of_a[0]["id"], &of_b[0]["id"]);
    // An id names one outcome, wherever it is said.
    let answer = resolve(b, of_a).await;
    assert!([404, 409].contains(&answer.status()), "{}", answer.text());
    assert_eq!(unknown(b).await.len(), 1, "B's own still stands");
    assert_eq!(resolve(a, of_a).await.status(), 200);
    assert_eq!(unknown(a).await.len(), 0);
    let wait = newer.iter().all(|newer| !newer.is_finished());
    assert!(wait, "B's is not known yet");
    assert_eq!(resolve(b, of_b).await.status(), 200);
    all_forwarded(newer).await;
    assert_eq!(upstream.tokens(KEY), [41, 41, 42, 42]);
}

#[tokio::test]
async fn what_the_dead_left_is_resolved_at_one_proxy_for_all() {
    let store = or_return!(Store::postgres().await);
    let (upstream, config, mut dead) = Proxy::with_config(&store, PATIENT).await;
    let (b, c) = (Proxy::start(&config).await, Proxy::start(&config).await);
    upstream.on_token(41, [Step::Wait(Gate::shut()), Step::ok()]);
    let older = dead.begin(&with_token(41), b"").await;
    upstream.reached(1).await;
    let row = dead.mark(KEY).await.expect("it has a mark")["epochs"][0].clone();
    let instance = row["instance"].as_str().expect("text");
    let name = format!("{instance}/{}", row["number"]);
    // It lives: only it can know.
    assert_eq!(resolve(&b, &name.clone().into()).await.status(), 409);
    dead.kill9();
    drop(older);
    let newer = [&b, &c].map(|proxy| proxy.start_request(with_token(42)));
    b.waiting(KEY, 1).await;
    c.waiting(KEY, 1).await;
    eventually("its death to be known", || async {
        (unknown(&b).await.pop()?["id"] == *name).then_some(())
    })
    .await;
    assert_eq!(resolve(&b, &name.into()).await.status(), 200);
    all_forwarded(newer).await;
    let act = audited(&c).await;
    assert_eq!((&act[0], &act[2]), (&"resolve".into(), &"41".into()));
}

#[tokio::test]
async fn tokens_of_before_are_spent_by_nobody_after_an_override() {
    let more = "{ upstream: { undelivered: 500ms }, store: { lease: 4s, timeout: 25s }, \
        barrier: { wait: 25s, settle: 1s }, routes: \
        [{ path: '/orders/{id}', resource: 'order:{id}', reuse: once }] }";
    let pair = or_return!(Pair::start(more).await);
    let (b, a, relay, upstream, _) = pair.parts();
    // B has its permit, and is held at the spending: the second advance of the request.
    let opening = relay.hold(Point::After(Statement::Advance));
    let asked = b.start_request(post("/orders/7").token(42));
    opening.sprung().await;
    let spending = relay.hold(Point::Before(Statement::Advance));
    opening.release();
    spending.sprung().await;
    let hold_renewal = |_| relay.hold(Point::Before(Statement::Renew));
    let renewals: Vec<_> = (0..100).map(hold_renewal).collect();
    override_to(a, 10).await;
    spending.release();
    joined(asked).await.assert_problem(503, "store-unavailable");
    drop(renewals);
    let mark = a.token(KEY).await;
    assert_eq!(mark, Some(10), "an old permit raises nothing");
    assert_eq!(upstream.count(), 0);
    b.until_forwarded(post("/orders/7").token(11)).await;
    assert_nothing_written_back(&[a, b], 11).await;
}
