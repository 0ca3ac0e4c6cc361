//! A full disk under the store: what needs the store is refused, nothing is lost, and room alone
//! ends it.

use std::collections::BTreeSet;

use crate::support::postgres::Cluster;
use crate::support::small_disk::SmallDisk;
use crate::support::store::has_postgres;
use crate::support::{Config, Proxy, Store, Upstream, or_return, put, return_unless};

/// The lease outlasts the test's full disk; nothing else waits long.
const CONFIG: &str =
    "{ store: { lease: 60s, timeout: 2s }, barrier: { wait: 500ms, settle: 500ms } }";

/// More new resources than any file has room for that does not grow.
const MOST: u32 = 5000;

/// Sends requests for new resources until one is refused; returns which was.
async fn until_refused(proxy: &Proxy, kind: &str) -> u32 {
    for number in 0..MOST {
        let request = put(&format!("/orders/{kind}{number}")).token(1);
        let answer = proxy.send(request).await;
        if answer.status() != 200 {
            answer.assert_problem(503, "store-unavailable");
            return number;
        }
    }
    panic!("{MOST} new resources found room on a full disk");
}

/// Fills the disk under a proxy, looks what it does, makes room again, and waits until all is
/// forwarded.
async fn filled_and_freed(proxy: &Proxy, upstream: &Upstream, disk: &SmallDisk) {
    proxy.forward(put("/orders/known").token(5)).await;
    disk.fill();
    let refused = until_refused(proxy, "a").await;
    let resource = format!("order:a{refused}");
    assert!(upstream.tokens(&resource).is_empty(), "it was forwarded");

    // Requests that need no store go on.
    proxy.forward(put("/orders/known").token(5)).await;
    proxy.stale(put("/orders/known").token(4)).await;
    assert_eq!(proxy.ask("/livez").await.status(), 200);
    assert_eq!(proxy.ask("/readyz").await.status(), 200);

    disk.free();
    let again = format!("/orders/a{refused}");
    proxy.until_forwarded(put(&again).token(1)).await;
    proxy.forward(put("/orders/known").token(6)).await;
}

/// Every resource that the upstream has seen has its mark.
async fn all_are_marked(store: &Store, upstream: &Upstream) {
    let arrivals = upstream.arrivals();
    let seen = arrivals.iter().filter_map(|arrival| arrival.resource());
    let seen: BTreeSet<_> = seen.collect();
    assert!(seen.len() > 1, "{seen:?}");
    for resource in seen {
        let newest = upstream.tokens(resource).into_iter().max();
        let mark = format!("SELECT max(token) FROM marks WHERE resource = '{resource}'");
        let mark = u64::try_from(store.number(&mark).await).ok();
        assert!(mark >= newest, "{resource}: {mark:?}, {newest:?} was sent");
    }
    upstream.assert_no_overtaking();
}

#[tokio::test]
async fn a_full_disk_under_sqlite_refuses_and_loses_nothing() {
    let (upstream, store) = (Upstream::start().await, Store::sqlite());
    let folder = store.path().parent().expect("a directory").to_owned();
    let disk = or_return!(SmallDisk::over(&folder));
    let config = Config::new(&upstream, &store).with(CONFIG);
    let mut proxy = Proxy::start(&config).await;
    filled_and_freed(&proxy, &upstream, &disk).await;

    // One that dies on a full disk leaves what the next run needs.
    disk.fill();
    until_refused(&proxy, "b").await;
    proxy.kill9();
    disk.free();
    let mut proxy = Proxy::start(&config).await;
    proxy.stale(put("/orders/known").token(5)).await;
    proxy.forward(put("/orders/c").token(1)).await;
    proxy.stop().await;
    let sound = "SELECT count(*) FROM pragma_integrity_check WHERE integrity_check = 'ok'";
    assert_eq!(store.number(sound).await, 1);
    all_are_marked(&store, &upstream).await;
}

#[tokio::test]
async fn a_full_disk_under_postgres_refuses_and_loses_nothing() {
    return_unless!(has_postgres());
    let (disk, cluster) = or_return!(Cluster::start_on_small_disk());
    let store = Store::on(&cluster).await;
    let (upstream, proxy) = Proxy::before(&store, CONFIG).await;
    filled_and_freed(&proxy, &upstream, &disk).await;
    all_are_marked(&store, &upstream).await;
    assert!(
        cluster.log().contains("No space left on device"),
        "it was full"
    );
}
