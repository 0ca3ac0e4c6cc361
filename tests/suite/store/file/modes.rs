//! The file's mode, and that of the files beside it.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use super::{at, beside};
use crate::support::store::quick_dir;
use crate::support::{Config, Proxy, Store, Upstream, put};

#[tokio::test]
async fn the_files_are_their_owners_alone_whatever_the_umask() {
    let (dir, upstream) = (quick_dir(), Upstream::start().await);
    let mut careless = Command::new("sh");
    careless.args(["-c", r#"umask 0 && exec "$0" "$@""#]);
    let file = dir.path().join("marks.db");
    let config = at(Config::new(&upstream, &Store::sqlite()), &file);
    let proxy = Proxy::start_under(&config, careless).await;
    proxy.forward(put("/orders/7").token(5)).await;
    for suffix in ["", "-wal", "-shm"] {
        let name = beside(&file, suffix);
        let mode = std::fs::metadata(&name)
            .expect("it is there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o7777, 0o600, "{}: {mode:o}", name.display());
    }
}
