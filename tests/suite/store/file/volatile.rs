//! A file system in memory keeps no mark: a store there is refused, unless the configuration allows
//! it.

use std::path::Path;

use tempfile::TempDir;

use super::at;
use crate::support::skip::{is_skipped, lacks};
use crate::support::{Config, Proxy, Store, Upstream, or_return, put};

/// A directory of a tmpfs; `None`, and a line that says so, where there is none to write to.
fn in_memory() -> Option<TempDir> {
    let memory = Path::new("/dev/shm");
    // `TMPFS_MAGIC`, statfs(2).
    let is_tmpfs = rustix::fs::statfs(memory).is_ok_and(|found| found.f_type == 0x0102_1994);
    let dir = tempfile::tempdir_in(memory);
    match dir {
        Ok(dir) if is_tmpfs && !is_skipped("tmpfs") => Some(dir),
        _ => {
            lacks("tmpfs");
            None
        }
    }
}

#[tokio::test]
async fn a_store_in_memory_is_refused_unless_it_is_allowed() {
    let dir = or_return!(in_memory());
    let upstream = Upstream::start().await;
    // By a link, too: the file counts, not its name.
    let elsewhere = tempfile::tempdir().expect("a directory");
    let link = elsewhere.path().join("link");
    std::os::unix::fs::symlink(dir.path(), &link).expect("it is ours");
    let link = link.join("marks.db");
    let config = |path: &Path, volatile: bool| {
        let config = at(Config::new(&upstream, &Store::sqlite()), path);
        config.with(&format!("store: {{ volatile: {volatile} }}"))
    };
    for path in [&dir.path().join("marks.db"), &link] {
        let config = config(path, false);
        Proxy::refused_for(&config, &["in memory (tmpfs)", "store.volatile"]).await;
        assert!(!dir.path().join("marks.db").exists(), "nothing is left");
        let check = ["check", "--connect"];
        Proxy::fails_for(&config, &check, &["in memory (tmpfs)"]).await;
    }

    let proxy = Proxy::start(&config(&link, true)).await;
    proxy.forward(put("/orders/7").token(5)).await;
    let says = |line: &serde_json::Value| line["message"].to_string().contains("in memory (tmpfs)");
    let logged = proxy.logged("that the store is in memory", says).await;
    assert_eq!(logged["level"], "WARN");
}
