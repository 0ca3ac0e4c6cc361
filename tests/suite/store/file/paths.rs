//! The way to the file: links that lead to it, and mounts.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{PATIENT, at, refuses, says_why, tokens, until_it_refuses, with_5};
use crate::support::skip::{is_skipped, lacks};
use crate::support::store::quick_dir;
use crate::support::{Config, Proxy, Store, Upstream, or_return, put};

/// A configuration whose store is at this path.
fn config_at(path: &Path, upstream: &Upstream) -> Config {
    at(Config::new(upstream, &Store::sqlite()).with(PATIENT), path)
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
    first.forward(put("/orders/7").token(5)).await;

    // In one step: a link that is gone for a moment would be another reason.
    let next = dir.path().join("next");
    symlink(&two, &next).expect("it can be made");
    std::fs::rename(&next, &current).expect("it can be put in its place");
    until_it_refuses(&first, 5).await;
    let second = Proxy::start(&config).await;
    second.forward(put("/orders/7").token(3)).await;
    for token in [5, 6] {
        refuses(&first, token).await;
    }
    assert_eq!(tokens(&upstream), [5, 3]);
    says_why(&first, &["was made to lead elsewhere"]).await;
}

#[tokio::test]
async fn a_link_to_a_store_is_followed_and_one_to_nothing_is_refused() {
    let (dir, volume) = (quick_dir(), quick_dir());
    let (link, target) = (dir.path().join("marks.db"), volume.path().join("real.db"));
    symlink(&target, dir.path().join("link")).expect("it can be made");
    symlink("link", &link).expect("it can be made");
    let [one, two] = ["one.db", "two.db"].map(|name| dir.path().join(name));
    symlink(&one, &two).expect("it can be made");
    symlink(&two, &one).expect("it can be made");
    let upstream = Upstream::start().await;
    let config = config_at(&link, &upstream);
    for config in [&config, &config_at(&one, &upstream)] {
        Proxy::refused_for(config, &["leads to no file"]).await;
    }
    assert!(!target.exists(), "a refusal makes nothing");

    let mut proxy = Proxy::start(&config_at(&target, &upstream)).await;
    proxy.forward(put("/orders/7").token(5)).await;
    proxy.kill9();
    let proxy = Proxy::start(&config).await;
    proxy.stale(put("/orders/7").token(4)).await;
}

/// A command that runs where `what` is mounted at `place`; `None`, and a line that says so, where
/// that is not allowed.
fn mounting(what: &Path, place: &Path) -> Option<Command> {
    let root = rustix::process::geteuid().is_root();
    let runner = || {
        let mut runner = Command::new("unshare");
        runner.args((!root).then_some("--map-root-user"));
        runner.args(["--mount", "sh", "-c"]);
        runner.arg(r#"mount --bind "$0" "$1" && shift && exec "$@""#);
        runner.args([what, place]);
        runner
    };
    let mut trial = runner();
    let trial = trial
        .arg("true")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if is_skipped("mounts") || !trial.status().is_ok_and(|status| status.success()) {
        lacks("mounts");
        return None;
    }
    Some(runner())
}

#[tokio::test]
async fn a_file_that_is_mounted_without_its_log_is_not_opened() {
    let store = Store::sqlite();
    let (upstream, _, mut proxy) = with_5(&store, "{}").await;
    proxy.stop().await;
    let place = quick_dir();
    let file = place.path().join("marks.db");
    std::fs::write(&file, "").expect("it can be made");
    let alone = or_return!(mounting(&store.path(), &file));
    let config = config_at(&file, &upstream).with("store: { create: never }");
    let (status, said) = Proxy::refused_under(&config, alone).await;
    assert!(
        !status.success() && said.contains("is mounted by itself, without its directory"),
        "{said}"
    );

    let store_path = store.path();
    let volume = store_path.parent().expect("a directory");
    let whole = mounting(volume, place.path()).expect("it was allowed");
    let proxy = Proxy::start_under(&config, whole).await;
    proxy.stale(put("/orders/7").token(4)).await;
}
