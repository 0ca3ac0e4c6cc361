//! Without a command: the token of a file, which is read again on SIGHUP only.

use rustix::process::Signal;
use tempfile::NamedTempFile;

use super::{Proxy, Sidecar, fenced, get, logged, put, url};

/// A sidecar before this proxy, and the file of its token, which is 41.
async fn holding_41(proxy: &Proxy) -> (NamedTempFile, Sidecar) {
    let file = NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "41").expect("it is writable");
    let name = file.path().to_str().expect("a name");
    let sidecar = Sidecar::start(&url(proxy), &["--token-file", name]).await;
    (file, sidecar)
}

#[tokio::test]
async fn a_file_with_the_next_holders_token_makes_no_zombie_pass() {
    let (upstream, proxy) = fenced().await;
    let (file, mut sidecar) = holding_41(&proxy).await;
    let write = || put("/orders/7").body("A");
    write().send(sidecar.at).await.assert_forwarded();
    assert_eq!(upstream.only().token(), Some(41));

    // As with a Lease: the elector of the next holder writes its number, and that holder writes.
    std::fs::write(file.path(), "42").expect("it is writable");
    proxy.forward(put("/orders/7").token(42)).await;
    for _ in 0..2 {
        let answer = write().send(sidecar.at).await;
        answer.assert_problem(412, "stale-token");
        assert_eq!(answer.header("x-fencing-retry"), Some("never"));
    }
    let answer = get("/orders/7").send(sidecar.at).await;
    answer.assert_problem(412, "stale-token");
    assert_eq!(upstream.count(), 2);
    let says = "token 41 is stale: PUT /orders/7 was refused";
    logged(&sidecar.process, says).await;
    let ended = sidecar.process.ended();
    assert!(ended.is_none(), "a restart would read the token again");

    // Whoever knows that this holder has the lock says so.
    sidecar.process.signal(Signal::HUP);
    logged(&sidecar.process, "the token was read again").await;
    write().send(sidecar.at).await.assert_forwarded();
    assert_eq!(upstream.last().token(), Some(42));
    sidecar.process.signal(Signal::TERM);
    assert_eq!(sidecar.process.exit().await.code(), Some(0));
}

#[tokio::test]
async fn the_same_token_again_ends_nothing() {
    let (_upstream, proxy) = fenced().await;
    let (file, mut sidecar) = holding_41(&proxy).await;
    proxy.forward(put("/orders/7").token(42)).await;
    let answer = put("/orders/7").send(sidecar.at).await;
    answer.assert_problem(412, "stale-token");
    sidecar.process.signal(Signal::HUP);
    logged(&sidecar.process, "the token is the same as before").await;
    file.close().expect("it is there");
    sidecar.process.signal(Signal::HUP);
    logged(&sidecar.process, "the token stays as it was").await;
    let answer = put("/orders/8").send(sidecar.at).await;
    answer.assert_problem(412, "stale-token");
    sidecar.process.signal(Signal::TERM);
    assert_eq!(sidecar.process.exit().await.code(), Some(75));
}
