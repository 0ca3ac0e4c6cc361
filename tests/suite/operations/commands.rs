//! The command line: what each command prints, and its exit code.

use serde_json::Value;
use tempfile::TempDir;

use crate::support::proxy::fencepost;
use crate::support::run::{run, run_with};
use crate::support::{Config, Proxy, Store, Upstream, get, post, put};

#[tokio::test]
async fn version_and_usage_have_their_exit_codes() {
    for (arguments, code) in [
        (&["--version"][..], 0),
        (&["--help"], 0),
        (&[], 2),
        (&["frob"], 2),
        (&["serve", "--frob"], 2),
    ] {
        let ended = run_with(arguments).await;
        assert_eq!(ended.code, Some(code), "{arguments:?}");
    }
    let schema = run_with(&["schema"]).await;
    let schema: Value = serde_json::from_str(&schema.out).expect("JSON");
    assert!(schema["properties"]["routes"].is_object(), "{schema}");
}

/// Not every name of a file is UTF-8.
#[tokio::test]
async fn check_takes_every_name_of_a_file() {
    use std::os::unix::ffi::OsStrExt as _;
    let dir = TempDir::new().expect("a temporary directory");
    let file = dir.path().join(std::ffi::OsStr::from_bytes(b"f\xff.yaml"));
    let check = || {
        let mut command = fencepost();
        command.arg("check").arg(&file);
        run(command)
    };
    let ended = check().await;
    assert_eq!(ended.code, Some(1));
    assert!(ended.text().contains("No such file"), "{ended:?}");
    std::fs::write(&file, "upstream: { url: 'http://a' }").expect("the directory is writable");
    let ended = check().await;
    assert_eq!(ended.code, Some(0), "{}", ended.err);
}

#[tokio::test]
async fn a_bad_configuration_does_not_start() {
    let upstream = Upstream::start().await;
    let config = Config::new(&upstream, &Store::sqlite());
    let bad = config.with("{ barrier: { wait: soon }, frob: 1 }");
    Proxy::refused_for(&bad, &["soon", "frob"]).await;
}

#[tokio::test]
async fn without_a_file_every_unsafe_request_is_fenced_by_its_path() {
    let upstream = Upstream::start().await;
    let at = "--listen 127.0.0.1:0 --admin-listen 127.0.0.1:0 --log-format json --upstream";
    let flags: Vec<_> = at.split(' ').chain([upstream.url()]).collect();
    let mut proxy = Proxy::start_fileless(&flags).await;
    let fenced = "enforced: /{*path} by key {path}";
    let says = |line: &Value| line.to_string().contains(fenced);
    proxy.logged(fenced, says).await;
    proxy.forward(put("/any/where").token(5)).await;
    assert_eq!(upstream.only().resource(), Some("/any/where"));
    proxy.stale(put("/any/where").token(4)).await;
    let closed = put("/any/where/");
    proxy.refuse(closed.clone(), 428, "token-required").await;
    proxy.stale(closed.token(4)).await;
    proxy.forward(post("/").token(1)).await;
    proxy.forward(get("/any/where")).await;
    let marks = proxy.file().with_file_name("fencepost.db");
    assert!(marks.exists(), "the marks are in ./fencepost.db");
    proxy.stop().await;
}

/// That the environment stands above the file is seen by [`super::overrides`].
#[tokio::test]
async fn a_flag_stands_above_the_environment() {
    let (one, two) = (Upstream::start().await, Upstream::start().await);
    let config = Config::to("http://127.0.0.1:9", &Store::sqlite());
    let mut command = fencepost();
    command.env("FENCEPOST_UPSTREAM", one.url());
    // Kubernetes puts this there for a Service named `fencepost`.
    command.env("FENCEPOST_PORT", "tcp://10.0.0.1:7080");
    let proxy = Proxy::start_by(&config, command, &["--upstream", two.url()]).await;
    proxy.forward(put("/orders/7").token(1)).await;
    assert_eq!((one.count(), two.count()), (0, 1));
}

/// As the image's environment does: port 1 is not what the file says.
#[tokio::test]
async fn a_default_of_the_environment_stands_below_the_file() {
    let upstream = Upstream::start().await;
    let mut command = fencepost();
    command.env("FENCEPOST_DEFAULT_ADMIN_LISTEN", "127.0.0.1:1");
    command.env("FENCEPOST_DEFAULT_LISTEN", "127.0.0.1:1");
    let config = Config::new(&upstream, &Store::sqlite());
    let proxy = Proxy::start_by(&config, command, &[]).await;
    assert_ne!((proxy.admin().port(), proxy.data().port()), (1, 1));
    let help = run_with(&["serve", "--help"]).await.out;
    assert!(help.contains("FENCEPOST_DEFAULT_ADMIN_LISTEN"), "{help}");
}

/// Runs `fencepost marks …` against a proxy.
pub async fn marks(proxy: &Proxy, arguments: &[&str]) -> (bool, String) {
    proxy.run_admin(&[&["marks"], arguments].concat()).await
}

#[tokio::test]
async fn the_demo_ends_as_it_should() {
    let dir = TempDir::new().expect("a temporary directory");
    let mut command = fencepost();
    command.arg("demo").current_dir(dir.path());
    let ended = run(command).await;
    let said = ended.text();
    assert_eq!(ended.code, Some(0), "{said}");
    assert!(said.contains("412 stale-token"), "{said}");
    assert!(
        said.ends_with("\nEvery story ended as it should.\n"),
        "{said}"
    );
    assert!(!said.contains('\u{1b}'), "no colours in a pipe");
}

/// The routes of a default that nobody wrote are not compared with those on record, and never take
/// their place.
#[tokio::test]
async fn a_migration_without_routes_leaves_those_on_record() {
    let upstream = Upstream::start().await;
    let store = Store::sqlite();
    let config = Config::new(&upstream, &store);
    Proxy::start(&config).await.stop().await;
    for (arguments, code, words) in [
        (&[][..], 0, "none were compared"),
        (&["--accept-new-keys"], 1, "--config"),
        (&["--mode", "enforce", "--accept-new-keys"], 1, "--config"),
        (&["--resource", "other:{path}"], 1, "will not start"),
    ] {
        let mut command = fencepost();
        command.arg("migrate").args(arguments);
        command.env("FENCEPOST_STORE", store.url());
        let ended = run(command).await;
        let said = ended.text();
        assert_eq!(ended.code, Some(code), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
    Proxy::start(&config).await.stop().await;
}
