//! A name with several addresses, of which only one answers.

use std::net::{Ipv4Addr, SocketAddr};

use tempfile::TempDir;

use super::discretion::is_logged;
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

/// An upstream whose port is silent at the other addresses, and a proxy before a name that has
/// these.
async fn alive_at_one(
    addresses: &[Ipv4Addr],
    more: &str,
) -> (Upstream, Proxy, ([Silent; 2], TempDir)) {
    let (upstream, silent) = loop {
        let upstream = Upstream::start_at(ALIVE).await;
        if let Some(silent) = silent(upstream.address().port()).await {
            break (upstream, silent);
        }
    };
    let dir = TempDir::new().expect("a temporary directory");
    let url = format!("http://{NAME}:{}", upstream.address().port());
    let config = Config::to(&url, &Store::sqlite()).with(more);
    let proxy = Proxy::start_under(&config, resolving(addresses, dir.path())).await;
    (upstream, proxy, (silent, dir))
}

#[tokio::test]
async fn an_address_that_answers_nothing_keeps_no_request_from_the_others() {
    return_unless!(is_possible());
    let more = "upstream: { connect_timeout: 20s, idle_timeout: 0s }";
    let (upstream, proxy, _kept) = alive_at_one(&ADDRESSES, more).await;
    // Each request takes a connection of its own.
    upstream.otherwise(|_| vec![Step::ok(), Step::Close]);
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
    let dead = [ADDRESSES[0], ADDRESSES[2]];
    let (_upstream, proxy, _kept) = alive_at_one(&dead, "upstream: { connect_timeout: 1s }").await;
    let answer = proxy.send(put("/orders/7").token(1)).await;
    let problem = answer.assert_problem(502, "upstream-unreachable");
    assert_eq!(problem["retry"], "same-token");
    is_logged(&proxy, "no connection within 1s").await;
}
