//! Reads over the admin port do not slow down requests.

use crate::support::faulty_disk::FaultyDisk;
use crate::support::proxy::fencepost;
use crate::support::{Config, Proxy, Store, Upstream, or_return, put, soon};

/// Reads have a connection of their own: they are answered while a commit waits for the disk, so a
/// commit never waits for them.
#[tokio::test]
async fn reads_share_no_connection_with_commits() {
    let disk = or_return!(FaultyDisk::new());
    let (upstream, store) = (Upstream::start().await, Store::sqlite());
    let config = Config::new(&upstream, &store).with("store: { lease: 200s, timeout: 100s }");
    let mut command = fencepost();
    command.envs(disk.of(store.path().parent().expect("a directory")));
    let mut proxy = Proxy::start_by(&config, command, &[]).await;
    proxy.forward(put("/orders/7").token(5)).await;

    disk.stick();
    let committing = proxy.start_request(put("/orders/7").token(6));
    disk.waited_for().await;
    let list = soon("the list of marks", proxy.ask("/v1/marks")).await;
    assert_eq!(list.status(), 200, "{}", list.text());
    assert_eq!(list.json()["marks"][0]["resource"], "order:7");
    assert_eq!(soon("the mark", proxy.token("order:7")).await, Some(5));
    assert_eq!(upstream.tokens("order:7"), [5]);
    disk.loosen();

    committing.await.expect("an answer").assert_forwarded();
    assert_eq!(
        proxy.token("order:7").await,
        Some(6),
        "a read sees what is durable"
    );

    // The connection for reads goes before the other one, which puts everything into the file.
    proxy.stop().await;
    let log = store.path().with_file_name("marks.db-wal");
    assert!(!log.exists(), "the log stayed beside the file");
}
