//! A name with several addresses, of which only one answers.

use std::net::{Ipv4Addr, SocketAddr};

use tempfile::TempDir;

use crate::support::bare::Silent;
use crate::support::network::{NAME, is_possible, resolving};
use crate::support::{Config, Proxy, Step, Store, Upstream, get, put, return_unless};

/// In whichever order the system has them, one that answers nothing comes before the one that does.
pub const ADDRESSES: [Ipv4Addr; 3] = [
    Ipv4Addr::LOCALHOST,
    Ipv4Addr::new(127, 0, 0, 2),
    Ipv4Addr::new(127, 0, 0, 3),
];
/// The one that answers.
pub const ALIVE: Ipv4Addr = ADDRESSES[1];

/// This port of the others; `None`: one is taken.
pub async fn silent(port: u16) -> Option<[Silent; 2]> {
    let at = |address| SocketAddr::from((address, port));
    Some([
        Silent::at(at(ADDRESSES[0])).await?,
        Silent::at(at(ADDRESSES[2])).await?,
    ])
}

/// An upstream whose port is silent at the other addresses.
async fn alive_at_one() -> (Upstream, [Silent; 2]) {
    loop {
        let upstream = Upstream::start_at(ALIVE).await;
        if let Some(silent) = silent(upstream.address().port()).await {
            return (upstream, silent);
        }
    }
}

#[tokio::test]
async fn an_address_that_answers_nothing_keeps_no_request_from_the_others() {
    return_unless!(is_possible());
    let (upstream, _silent) = alive_at_one().await;
    let dir = TempDir::new().expect("a temporary directory");
    let url = format!("http://{NAME}:{}", upstream.address().port());
    // Each request takes a connection of its own.
    upstream.otherwise(|_| vec![Step::ok(), Step::Close]);
    let config = Config::to(&url, &Store::sqlite())
        .with("upstream: { connect_timeout: 20s, idle_timeout: 0s }");
    let proxy = Proxy::start_under(&config, resolving(&ADDRESSES, dir.path())).await;
    for token in 1..=3 {
        proxy.forward(put("/orders/7").token(token)).await;
        proxy.forward(get("/orders/7")).await;
    }
    assert_eq!(upstream.count(), 6);
}

/// The time is that of the connection, and not of each address.
#[tokio::test]
async fn addresses_that_all_answer_nothing_share_the_time() {
    return_unless!(is_possible());
    let (upstream, _silent) = alive_at_one().await;
    let dir = TempDir::new().expect("a temporary directory");
    let url = format!("http://{NAME}:{}", upstream.address().port());
    let config = Config::to(&url, &Store::sqlite()).with("upstream: { connect_timeout: 1s }");
    let dead = [ADDRESSES[0], ADDRESSES[2]];
    let proxy = Proxy::start_under(&config, resolving(&dead, dir.path())).await;
    let answer = proxy.send(put("/orders/7").token(1)).await;
    let problem = answer.assert_problem(502, "upstream-unreachable");
    assert_eq!(problem["retry"], "same-token");
    let late = |line: &serde_json::Value| {
        let reason = line["reason"].as_str();
        reason.is_some_and(|reason| reason.contains("no connection within 1s"))
    };
    proxy.logged("the reason", late).await;
}
