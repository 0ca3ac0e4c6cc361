//! Requests that come back to a proxy they have passed.

use super::{MODES, before};
use crate::support::{Answer, Proxy, Request, Store, eventually, fenced, get, put};

/// The name that a proxy goes by in `Via`, as its upstream sees it.
fn name(via: &str) -> &str {
    via.rsplit(' ').next().unwrap_or_default()
}

/// One of each kind: fenced, unfenced on a fenced route, bypassed, observed, unmatched; a claim.
fn every_kind() -> Vec<Request> {
    vec![
        put("/orders/7").token(1),
        get("/orders/7"),
        put("/open/x"),
        put("/seen/7").token(1),
        get("/elsewhere"),
        crate::support::post("/.well-known/fencing/claim")
            .token(1)
            .header("X-Fencing-Resource", "order:7"),
    ]
}

#[tokio::test]
async fn what_has_passed_this_proxy_before_is_refused_wherever_it_goes() {
    let (upstream, proxy) = fenced(MODES).await;
    proxy.forward(put("/orders/1").token(1)).await;
    let seen = upstream.only();
    let own = name(seen.head.get("via").expect("one line")).to_owned();
    assert!(own.starts_with("fencepost-") && own.len() == 22, "{own}");
    let kinds = every_kind().len();
    let via = format!("1.0 a, 1.1 {}", own.to_uppercase());
    for request in every_kind() {
        let answer = proxy.send(request.header("Via", &via)).await;
        let problem = answer.assert_problem(508, "loop-detected");
        assert_eq!(problem["retry"], "never");
    }
    // Another line, another member.
    let other = put("/orders/7")
        .token(1)
        .header("Via", "1.1 a, 1.1 fencepost-0000000000000000")
        .header("Via", format!("1.1 {own}"));
    proxy.refuse(other, 508, "loop-detected").await;
    assert_eq!(upstream.count(), 1, "nothing goes over");
    assert_eq!(proxy.token("order:7").await, None, "nothing is marked");
    let labels = [("outcome", "loop-detected")];
    let counted = proxy.count("fencepost_requests_total", &labels).await;
    assert_eq!(counted, kinds as u64 + 1);
}

#[tokio::test]
async fn two_proxies_in_a_row_both_pass_it() {
    let (upstream, inner) = fenced(MODES).await;
    let outer = format!("http://{}", inner.data());
    let outer = before(&outer, MODES).await;
    for request in every_kind().into_iter().take(5) {
        let answer = outer.send(request.header("Via", "1.1 fencepost")).await;
        answer.assert_forwarded();
        let arrival = upstream.last();
        let via = arrival.head.get("via").expect("one line").to_owned();
        let names: Vec<&str> = via.split(", ").map(name).collect();
        assert_eq!((names.len(), names[0]), (3, "fencepost"), "{via}");
        assert_ne!(names[1], names[2], "{via}");
        let back = answer.header("via").expect("one line");
        let back: Vec<&str> = back.split(", ").map(name).collect();
        assert_eq!(back, [names[2], names[1]]);
    }
}

#[tokio::test]
async fn an_upstream_that_leads_back_here_is_found_out_at_the_second_round() {
    let (_upstream, config, proxy) = Proxy::with_config(&Store::sqlite(), MODES).await;
    let here = format!("upstream: {{ url: 'http://{}' }}", proxy.data());
    proxy.reload(&config.with(&here));
    let round: Answer = eventually("the new upstream", || async {
        let answer = proxy.send(put("/orders/7").token(2)).await;
        (answer.status() != 200).then_some(answer)
    })
    .await;
    // The answer is the upstream's: that of the second round.
    assert_eq!((round.status(), round.outcome()), (508, None));
    assert_eq!(round.json()["type"], "urn:fencepost:problem:loop-detected");
    // The first round has its answer: nothing is left in flight, newer tokens pass on to the same
    // end.
    let newer = proxy.send(put("/orders/7").token(3)).await;
    assert_eq!(newer.status(), 508);
    let mark = proxy.mark("order:7").await.expect("a mark");
    assert_eq!(mark["in_flight"], 0, "{mark}");
}
