//! Overload: requests over the limit are refused at once, and those that were admitted are done.

use std::collections::HashSet;
use std::time::Instant;

use tokio::task::JoinSet;

use crate::support::{Config, Gate, Proxy, Request, Step, Store, Upstream, get, post, put, soon};

const PLACES: usize = 8;
const CLIENTS: usize = 200;

/// All ways in at once: every client of a resource of its own, so that nobody waits at a barrier.
fn request(number: usize) -> Request {
    match number % 4 {
        0 => post("/open/x").body("a body"),
        1 => get(&format!("/unmatched/{number}")),
        2 => put(&format!("/seen/{number}")).token(1).body("a body"),
        _ => put(&format!("/orders/{number}")).token(1).body("a body"),
    }
}

#[tokio::test]
async fn more_clients_than_places_are_refused_at_once_and_the_admitted_are_served() {
    let upstream = Upstream::start().await;
    let gate = Gate::shut();
    let script = gate.clone();
    upstream.otherwise(move |_| vec![Step::Wait(script.clone()), Step::ok()]);
    let config = Config::new(&upstream, &Store::sqlite()).with(&format!(
        "
        limits: {{ in_flight: {PLACES} }}
        routes:
          - {{ path: '/orders/{{id}}', resource: 'order:{{id}}' }}
          - {{ path: '/seen/{{id}}', resource: 'seen:{{id}}', mode: observe }}
          - {{ path: '/open/{{id}}', mode: bypass }}"
    ));
    let proxy = Proxy::start(&config).await;
    let began = Instant::now();
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let (request, to) = (request(number), proxy.data());
        clients.spawn(async move { request.send(to).await });
    }
    // While the gate is shut nobody who was admitted gets an answer: these are all refusals.
    for _ in 0..CLIENTS - PLACES {
        let answer = soon("a refusal", clients.join_next())
            .await
            .expect("one is left")
            .expect("no panic");
        answer.assert_problem(503, "overloaded");
        assert!(answer.retry_after().is_some_and(|seconds| seconds > 0));
    }
    upstream.reached(PLACES).await;
    assert_eq!(upstream.count(), PLACES, "as many as there are places");
    gate.open();
    while let Some(answer) = soon("the admitted", clients.join_next()).await {
        answer.expect("no panic").assert_forwarded();
    }
    let arrived: HashSet<String> = upstream
        .arrivals()
        .iter()
        .map(|one| one.target().to_owned())
        .collect();
    assert!(arrived.len() <= PLACES);
    assert_eq!(proxy.reached("in-flight").await, 192);
    // A line for each would cost more than the refusal: the first of each second are said.
    proxy.log_of("outcome", "overloaded").await;
    let lines = proxy.logs();
    let said = lines
        .iter()
        .filter(|line| line["outcome"] == "overloaded")
        .count();
    let most = usize::try_from(began.elapsed().as_secs()).expect("few") * 10 + 20;
    assert!((1..=most).contains(&said), "{said} lines");
    // All places are free again.
    proxy.until_forwarded(request(3)).await;
    for number in 0..PLACES {
        proxy.forward(request(number)).await;
    }
}
