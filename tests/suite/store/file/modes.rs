//! The file's mode and owner, and those of the files beside it.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::process::Command;

use super::beside;
use crate::support::skip::{is_skipped, lacks};
use crate::support::store::quick_dir;
use crate::support::{Config, Proxy, Store, Upstream, put};

fn config_in(directory: &Path, upstream: &Upstream) -> Config {
    let file = directory.join("marks.db");
    let url = format!("store: {{ url: 'sqlite:{}' }}", file.display());
    Config::new(upstream, &Store::sqlite()).with(&url)
}

fn allow(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
}

#[tokio::test]
async fn the_files_are_their_owners_alone_whatever_the_umask() {
    let (dir, upstream) = (quick_dir(), Upstream::start().await);
    let mut careless = Command::new("sh");
    careless.args(["-c", r#"umask 0 && exec "$0" "$@""#]);
    let proxy = Proxy::start_under(&config_in(dir.path(), &upstream), careless).await;
    proxy.forward(put("/orders/7").token(5)).await;
    for suffix in ["", "-wal", "-shm"] {
        let name = beside(&dir.path().join("marks.db"), suffix);
        let mode = std::fs::metadata(&name)
            .expect("it is there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o7777, 0o600, "{}: {mode:o}", name.display());
    }
}

#[tokio::test]
async fn a_place_that_every_user_may_write_to_is_refused() {
    let (dir, upstream) = (quick_dir(), Upstream::start().await);
    let config = config_in(dir.path(), &upstream);
    let file = dir.path().join("marks.db");
    allow(dir.path(), 0o777);
    let said = Proxy::refused_for(&config, &["has mode 0777"]).await;
    assert!(said.contains("chmod o-w") && !file.exists(), "{said}");
    // A group may be let in, as Kubernetes does.
    for mode in [0o2775, 0o1777] {
        allow(dir.path(), mode);
        let mut proxy = Proxy::start(&config).await;
        proxy.stop().await;
    }
    allow(&file, 0o666);
    Proxy::refused_for(&config, &["can change marks"]).await;
    allow(&file, 0o644);
    let mut proxy = Proxy::start(&config).await;
    proxy.stop().await;
    let lines = proxy.process().output();
    assert!(lines.contains("can read keys and marks"), "{lines}");
    allow(&file, 0o600);

    // Where every user may make files, another's are not taken for ours.
    if is_skipped("root") || !rustix::process::geteuid().is_root() {
        lacks("root");
        return;
    }
    for suffix in ["", "-wal"] {
        let name = beside(&file, suffix);
        let made = !name.exists();
        if made {
            std::fs::write(&name, "").expect("the directory is ours");
        }
        chown(&name, Some(65534), Some(65534)).expect("root may");
        let (status, said) = Proxy::refused(&config).await;
        assert!(
            !status.success() && said.contains("another user"),
            "{suffix}: {said}"
        );
        chown(&name, Some(0), Some(0)).expect("root may");
        if made {
            std::fs::remove_file(&name).expect("it is there");
        }
    }
    allow(dir.path(), 0o755);
    let _proxy = Proxy::start(&config).await;
}
