//! The way to the file: links that lead to it.

use std::os::unix::fs::symlink;
use std::path::Path;

use super::{PATIENT, beside, refuses, tokens, until_it_refuses, why};
use crate::support::store::quick_dir;
use crate::support::{Config, Proxy, Store, Upstream, put};

/// A configuration whose store is at this path.
fn config_at(path: &Path, upstream: &Upstream) -> Config {
    let url = format!("store: {{ url: 'sqlite:{}' }}", path.display());
    Config::new(upstream, &Store::sqlite())
        .with(PATIENT)
        .with(&url)
}

#[tokio::test]
async fn a_link_that_is_made_to_lead_elsewhere_is_a_moved_file() {
    let dir = quick_dir();
    let [one, two, current] = ["one", "two", "current"].map(|name| dir.path().join(name));
    for made in [&one, &two] {
        std::fs::create_dir(made).expect("it can be made");
    }
    symlink(&one, &current).expect("it can be made");
    let upstream = Upstream::start().await;
    let config = config_at(&current.join("marks.db"), &upstream);
    let first = Proxy::start(&config).await;
    let forwarded = first.send(put("/orders/7").token(5)).await;
    forwarded.assert_forwarded();

    std::fs::remove_file(&current).expect("it is there");
    symlink(&two, &current).expect("it can be made");
    until_it_refuses(&first, 5).await;
    let second = Proxy::start(&config).await;
    let forwarded = second.send(put("/orders/7").token(3)).await;
    forwarded.assert_forwarded();
    for token in [5, 6] {
        refuses(&first, token).await;
    }
    assert_eq!(tokens(&upstream), [5, 3]);
    let why = why(&first).await;
    assert!(why.contains("was made to lead elsewhere"), "{why}");
}

#[tokio::test]
async fn a_store_is_made_where_a_link_leads() {
    let (dir, volume) = (quick_dir(), quick_dir());
    let (link, target) = (dir.path().join("marks.db"), volume.path().join("real.db"));
    symlink(&target, dir.path().join("link")).expect("it can be made");
    symlink("link", &link).expect("it can be made");
    let upstream = Upstream::start().await;
    let config = config_at(&link, &upstream);
    // The log of a store that was there is not overlooked.
    std::fs::write(beside(&target, "-wal"), "something").expect("it can be made");
    let (status, said) = Proxy::refused(&config).await;
    assert!(
        !status.success() && said.contains("the store was moved or deleted"),
        "{said}"
    );
    assert!(!target.exists(), "a refusal makes nothing");
    std::fs::remove_file(beside(&target, "-wal")).expect("it is there");

    let mut proxy = Proxy::start(&config).await;
    let forwarded = proxy.send(put("/orders/7").token(5)).await;
    forwarded.assert_forwarded();
    assert!(beside(&target, "-wal").exists());
    proxy.kill9();
    let proxy = Proxy::start(&config).await;
    let stale = proxy.send(put("/orders/7").token(4)).await;
    stale.assert_problem(412, "stale-token");
}

#[tokio::test]
async fn links_without_an_end_are_refused() {
    let dir = quick_dir();
    let [one, two] = ["one.db", "two.db"].map(|name| dir.path().join(name));
    symlink(&one, &two).expect("it can be made");
    symlink(&two, &one).expect("it can be made");
    let upstream = Upstream::start().await;
    let (status, said) = Proxy::refused(&config_at(&one, &upstream)).await;
    assert!(
        !status.success() && said.contains("from link to link without an end"),
        "{said}"
    );
}
