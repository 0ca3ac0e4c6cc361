//! The operator's way out under fire: advance, override and resolve while traffic runs, proxies
//! die, freeze and are cut off, and a second proxy remembers what was before.
//!
//! After an override nobody refuses by the old mark for longer than it takes to hear of it, and
//! nobody ever writes the old mark back. Traffic that would keep an epoch open is shut out by an
//! advance first: that is how an operator gets there too.

use serde_json::{Value, json};

use crate::support::pair::Pair;
use crate::support::proxy::escape;
use crate::support::relay::{Point, Statement};
use crate::support::{
    Answer, Config, Gate, Proxy, Step, Store, Upstream, all_forwarded, eventually, forwarded,
    joined, or_return, over_both_stores, put,
};

mod outcomes;
mod storm;

const KEY: &str = "order:7";

/// No wait for anything to settle would end within a test's patience.
const PATIENT: &str =
    "{ store: { lease: 5s, timeout: 15s }, barrier: { wait: 400s, grace: 300s, settle: 300s } }";

/// Deaths are soon found, and settle soon.
const MORTAL: &str = "{ upstream: { undelivered: 500ms }, store: { lease: 2s }, \
    barrier: { wait: 25s, grace: 300s, settle: 1s } }";

fn with_token(token: u64) -> crate::support::Request {
    put("/orders/7").token(token)
}

async fn act(proxy: &Proxy, verb: &str, words: &Value) -> Answer {
    let target = format!("/v1/marks/{}/{verb}", escape(KEY));
    proxy.command(&target, words).await
}

async fn advance(proxy: &Proxy, token: u64) {
    let words = json!({ "token": token.to_string(), "reason": "shut out who is there" });
    let answer = act(proxy, "advance", &words).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
}

async fn try_override(proxy: &Proxy, token: u64) -> Answer {
    let words = json!({ "token": token.to_string(), "reason": "the lock service began anew" });
    act(proxy, "override", &words).await
}

/// Overrides as soon as the epochs that an advance has shut are over.
async fn override_to(proxy: &Proxy, token: u64) {
    eventually("the override", || async {
        let answer = try_override(proxy, token).await;
        match answer.status() {
            200 => Some(()),
            409 => None,
            status => panic!("{status}: {}", answer.text()),
        }
    })
    .await;
}

/// Waits until the proxy takes a token that is below the mark of before.
async fn takes(proxy: &Proxy, token: u64) {
    eventually("the lower token to be taken", || async {
        let answer = proxy.send(with_token(token)).await;
        let status = answer.status();
        assert!([200, 412, 503].contains(&status), "{}", answer.text());
        (status == 200).then_some(())
    })
    .await;
}

/// Nobody took the override for a loss, and the mark is what it ought to be: as the first says,
/// whose connections have not been cut.
async fn assert_nothing_written_back(proxies: &[&Proxy], mark: u64) {
    for proxy in proxies {
        let regressions = proxy.count("fencepost_mark_regressions_total", &[]).await;
        assert_eq!(regressions, 0, "an override is not a loss");
    }
    assert_eq!(proxies[0].token(KEY).await, Some(mark));
}

/// Waits until no epoch of the resource is open any more.
async fn closed(proxy: &Proxy) {
    eventually("every epoch to be over", || async {
        let mark = proxy.mark(KEY).await?;
        mark["epochs"].as_array()?.is_empty().then_some(())
    })
    .await;
}

/// The newest act of an operator on the resource: what was done, and the mark before and after.
async fn audited(proxy: &Proxy) -> Value {
    let mark = proxy.mark(KEY).await.expect("it has a mark");
    let act = &mark["audit"][0];
    json!([act["action"], act["before"], act["after"]])
}

/// The unknown outcomes of the resource, as this proxy lists them.
async fn unknown(proxy: &Proxy) -> Vec<Value> {
    let mark = proxy.mark(KEY).await.expect("it has a mark");
    mark["unknown"].as_array().expect("a list").clone()
}

async fn resolve(proxy: &Proxy, id: &Value) -> Answer {
    let words = json!({ "id": id, "reason": "looked: it has ended" });
    act(proxy, "resolve", &words).await
}

over_both_stores! {
    async fn after_an_override_lower_tokens_pass_at_once_where_it_was_done(store: Store) {
        let (_upstream, proxy) = Proxy::before(&store, PATIENT).await;
        proxy.forward(with_token(42)).await;
        proxy.stale(with_token(41)).await;
        // Idle here: it need not be shut out first.
        override_to(&proxy, 10).await;
        proxy.stale(with_token(9)).await;
        proxy.forward(with_token(11)).await;
        assert_nothing_written_back(&[&proxy], 11).await;
        assert_eq!(proxy.count("fencepost_overrides_total", &[]).await, 1);
        assert_eq!(audited(&proxy).await, json!(["override", "42", "10"]));
    }

    async fn an_override_lets_a_spent_token_pass_once_more(store: Store) {
        let upstream = Upstream::start().await;
        let config = Config::new(&upstream, &store).with(PATIENT).route("reuse: once");
        let mut proxies = vec![Proxy::start(&config).await];
        if store.is_shared() {
            proxies.push(Proxy::start(&config).await);
        }
        let (first, last) = (&proxies[0], &proxies[proxies.len() - 1]);
        first.forward(with_token(42)).await;
        first.stale(with_token(42)).await;
        override_to(first, 42).await;
        last.forward(with_token(42)).await;
        for proxy in &proxies {
            proxy.stale(with_token(42)).await;
        }
        assert_eq!(upstream.tokens(KEY), [42, 42]);
    }

    async fn what_a_killed_run_left_is_resolved_by_who_comes_after(store: Store) {
        let (upstream, config, mut killed) = Proxy::with_config(&store, PATIENT).await;
        upstream.on_token(41, [Step::Wait(Gate::shut()), Step::ok()]);
        let older = killed.begin(&with_token(41), b"").await;
        upstream.reached(1).await;
        killed.kill9();
        drop(older);
        let proxy = Proxy::start(&config).await;
        let newer = proxy.start_request(with_token(42));
        proxy.waiting(KEY, 1).await;
        // It is known to be dead once its lease is over.
        let left = eventually("the unknown outcome of the dead", || async {
            unknown(&proxy).await.pop()
        }).await;
        assert_eq!((&left["token"], &left["inherited"]), (&"41".into(), &true.into()), "{left}");
        // While it stands, the mark is not lowered either.
        assert_eq!(try_override(&proxy, 5).await.status(), 409);
        assert!(!newer.is_finished());
        let answer = resolve(&proxy, &left["id"]).await;
        assert_eq!(answer.status(), 200, "{}", answer.text());
        forwarded(newer).await;
        assert_eq!(resolve(&proxy, &left["id"]).await.status(), 404, "once");
        assert_eq!(unknown(&proxy).await, Vec::<Value>::new());
    }
}

/// The other proxy has an epoch of the resource. Its lease outlives the test, and nothing that it
/// publishes ends the epoch.
#[tokio::test]
async fn an_override_waits_for_an_idle_epoch_of_another_proxy_and_for_no_busy_one() {
    let more = "{ store: { lease: 60s, timeout: 30s }, barrier: { settle: 300s } }";
    let pair = or_return!(Pair::start(more).await);
    let (b, a, relay, upstream, _) = pair.parts();
    a.forward(with_token(41)).await;
    let renewal = relay.hold(Point::Before(Statement::Renew));
    renewal.sprung().await;
    let (at_work, gate) = b.held(upstream, with_token(42)).await;
    let refused = try_override(a, 10).await;
    refused.assert_admin_problem(409, "epochs-open");
    gate.open();
    forwarded(at_work).await;
    override_to(a, 10).await;
    a.forward(with_token(11)).await;
    renewal.release();
    takes(b, 12).await;
    a.stale(with_token(11)).await;
    assert_eq!(upstream.tokens(KEY), [41, 42, 11, 12]);
    assert_nothing_written_back(&[a, b], 12).await;
}

#[tokio::test]
async fn the_other_proxy_hears_of_an_override_with_its_next_renewal() {
    let more = "{ store: { lease: 60s }, barrier: { settle: 300s } }";
    let pair = or_return!(Pair::start(more).await);
    let (b, a, relay, upstream, _) = pair.parts();
    a.forward(with_token(42)).await;
    b.stale(with_token(41)).await;
    // Sent, and on its way for so long that the override comes first.
    let renewal = relay.hold(Point::Before(Statement::Renew));
    renewal.sprung().await;
    override_to(a, 10).await;
    let problem = b.stale(with_token(11)).await;
    assert_eq!(problem["mark"], "42", "it cannot know yet");
    renewal.release();
    takes(b, 11).await;
    assert_eq!(upstream.tokens(KEY), [42, 11]);
    assert_nothing_written_back(&[a, b], 11).await;
}

#[tokio::test]
async fn an_advance_shuts_older_tokens_out_everywhere_and_lets_what_runs_end() {
    let pair = or_return!(Pair::start(PATIENT).await);
    let (a, b, relay, upstream, _) = pair.parts();
    let gate = Gate::shut();
    upstream.on_token(41, [Step::Wait(gate.clone()), Step::ok()]);
    let running = b.start_request(with_token(41));
    upstream.reached(1).await;
    let told = relay.passed(Statement::Notify);
    advance(a, 43).await;
    relay.until_passed(Statement::Notify, told + 1).await;
    a.stale(with_token(42)).await;
    b.until_status(412, with_token(41)).await;
    let newer = a.start_request(with_token(43));
    a.waiting(KEY, 1).await;
    gate.open();
    all_forwarded([running, newer]).await;
    upstream.assert_no_overtaking();
    assert_eq!(audited(a).await, json!(["advance", "41", "43"]));
}

#[tokio::test]
async fn an_advance_that_an_override_overtakes_is_asked_for_anew_or_not_at_all() {
    let more = "{ store: { timeout: 8s, lease: 20s }, barrier: { wait: 25s, settle: 300s } }";
    let pair = or_return!(Pair::start(more).await);
    let (b, a, relay, upstream, _) = pair.parts();
    a.forward(with_token(42)).await;
    b.stale(with_token(41)).await;
    // Its caller waits: a newer token that is truly asked for raises the mark of the new era.
    let trap = relay.hold(Point::Before(Statement::Advance));
    let asked = b.start_request(with_token(60));
    trap.sprung().await;
    override_to(a, 10).await;
    trap.release();
    forwarded(asked).await;
    assert_nothing_written_back(&[a, b], 60).await;

    // Its caller was told that nothing is known: what comes late is of the old era, and changes
    // nothing.
    advance(a, 61).await;
    closed(a).await;
    let trap = relay.hold(Point::Before(Statement::Advance));
    let asked = b.start_request(with_token(70));
    trap.sprung().await;
    joined(asked).await.assert_problem(503, "store-unavailable");
    override_to(a, 20).await;
    let before = relay.passed(Statement::Advance);
    trap.release();
    relay.until_passed(Statement::Advance, before + 1).await;
    takes(b, 21).await;
    assert_eq!(upstream.tokens(KEY), [42, 60, 21]);
    assert_nothing_written_back(&[a, b], 21).await;
}

#[tokio::test]
async fn an_advance_whose_answer_is_held_keeps_the_mark_from_being_overridden() {
    let pair = or_return!(Pair::start(PATIENT).await);
    let (b, a, relay, upstream, _) = pair.parts();
    // Committed, and not known to be where it was asked: its epoch is open.
    let trap = relay.hold(Point::After(Statement::Advance));
    let asked = b.start_request(with_token(43));
    trap.sprung().await;
    assert_eq!(try_override(a, 10).await.status(), 409);
    trap.release();
    forwarded(asked).await;
    assert_eq!(a.token(KEY).await, Some(43));
    advance(a, 44).await;
    // The answer is lost for good: the epoch goes without having been used.
    let trap = relay.cut(Point::After(Statement::Advance));
    b.refuse(with_token(45), 503, "store-unavailable").await;
    assert!(trap.has_sprung());
    assert_eq!(a.token(KEY).await, Some(45));
    override_to(a, 10).await;
    takes(b, 11).await;
    assert_eq!(upstream.tokens(KEY), [43, 11]);
    assert_nothing_written_back(&[a, b], 11).await;
}

#[tokio::test]
async fn an_epoch_that_was_opened_late_does_not_stand_in_the_way() {
    let more = "{ store: { timeout: 2s, lease: 20s }, barrier: { settle: 300s } }";
    let pair = or_return!(Pair::start(more).await);
    let (b, _, relay, upstream, _) = pair.parts();
    let trap = relay.hold(Point::Before(Statement::Advance));
    b.refuse(with_token(42), 503, "store-unavailable").await;
    trap.sprung().await;
    trap.release();
    b.until_token(KEY, 42).await;
    // Nobody uses it, and nothing supersedes it: it is over with a publication.
    override_to(b, 10).await;
    b.forward(with_token(11)).await;
    assert_eq!(upstream.tokens(KEY), [11]);
}

#[tokio::test]
async fn an_override_outlives_the_proxy_that_did_it() {
    let store = or_return!(Store::postgres().await);
    let (upstream, config, mut a) = Proxy::with_config(&store, PATIENT).await;
    let b = Proxy::start(&config).await;
    a.forward(with_token(42)).await;
    b.stale(with_token(41)).await;
    override_to(&a, 10).await;
    a.kill9();
    takes(&b, 11).await;
    let a = Proxy::start(&config).await;
    a.stale(with_token(10)).await;
    a.forward(with_token(11)).await;
    assert_eq!(upstream.tokens(KEY), [42, 11, 11]);
    assert_nothing_written_back(&[&a, &b], 11).await;
}

/// B is frozen, or cut off from the store, and back.
async fn away(pair: &Pair, frozen: bool, yes: bool) {
    match (frozen, yes) {
        (true, true) => pair.a.pause().await,
        (true, false) => pair.a.resume(),
        (false, _) => {
            pair.way_of_a.refuse(yes);
            if yes {
                pair.way_of_a.cut_all();
            }
        }
    }
}

#[tokio::test]
async fn a_proxy_that_was_frozen_or_cut_off_hears_of_the_override_when_it_is_back() {
    let pair = or_return!(Pair::start(PATIENT).await);
    let (b, a, _, upstream, _) = pair.parts();
    let mut taken = vec![42];
    a.forward(with_token(42)).await;
    for (frozen, mark) in [(true, 30), (false, 20)] {
        // B knows the mark, and has nothing open.
        b.stale(with_token(mark)).await;
        away(&pair, frozen, true).await;
        override_to(a, mark - 1).await;
        if !frozen {
            b.refuse(with_token(mark + 20), 503, "store-unavailable")
                .await;
        }
        away(&pair, frozen, false).await;
        takes(b, mark).await;
        taken.push(mark);
        assert_nothing_written_back(&[a, b], mark).await;
        advance(a, mark + 1).await;
        closed(a).await;
    }
    assert_eq!(upstream.tokens(KEY), taken);
}

#[tokio::test]
async fn who_had_an_epoch_open_and_was_cut_off_or_frozen_writes_nothing_back() {
    let pair = or_return!(Pair::start(MORTAL).await);
    let (b, a, _, upstream, _) = pair.parts();
    for (frozen, mark) in [(true, 30), (false, 20)] {
        b.forward(with_token(mark + 12)).await;
        away(&pair, frozen, true).await;
        // Its epoch is open: nothing may be lowered until it is dead and settled.
        assert_eq!(try_override(a, mark).await.status(), 409);
        override_to(a, mark).await;
        away(&pair, frozen, false).await;
        takes(b, mark + 1).await;
        assert_nothing_written_back(&[a, b], mark + 1).await;
        // B's epoch, to begin the next round from.
        advance(a, mark + 2).await;
        override_to(a, mark - 19).await;
    }
    assert_eq!(upstream.tokens(KEY), [42, 31, 32, 21]);
}
