//! The command line: what each command prints, and its exit code.

use serde_json::Value;
use tempfile::TempDir;

use crate::support::proxy::fencepost;
use crate::support::run::{run, run_with};
use crate::support::{
    Config, Proxy, Step, Store, Upstream, fenced, get, over_both_stores, post, put,
};

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
    let version = run_with(&["--version"]).await.out;
    assert!(version.contains(env!("CARGO_PKG_VERSION")));
}

async fn check(text_of_file: &str) -> (Option<i32>, String) {
    let dir = TempDir::new().expect("a temporary directory");
    let file = dir.path().join("fencepost.yaml");
    std::fs::write(&file, text_of_file).expect("the directory is writable");
    let mut command = fencepost();
    command.arg("check").arg(&file);
    let ended = run(command).await;
    (ended.code, ended.text())
}

const GOOD: &str = "\
listen: 127.0.0.1:7080
upstream:
  url: http://127.0.0.1:3000
store:
  url: sqlite:fencepost.db
routes:
  - path: /orders/{id}/{*rest}
    resource: \"order:{id}\"
    reuse: once
  - path: /health
    mode: bypass
";

#[tokio::test]
async fn check_passes_a_good_file() {
    let (code, said) = check(GOOD).await;
    assert_eq!(code, Some(0), "{said}");
}

#[tokio::test]
async fn check_reads_off_as_off() {
    let (code, said) = check(&format!("{GOOD}claim: off\n")).await;
    assert_eq!(code, Some(0), "{said}");
}

#[tokio::test]
async fn check_tells_all_problems_at_once_with_line_and_hint() {
    let bad = GOOD
        .replace("listen: 127", "lisen: 127")
        .replace("http://127.0.0.1:3000", "ftp://127.0.0.1:3000")
        .replace("order:{id}", "order:{di}")
        .replace("reuse: once", "reuse: twice");
    let (code, said) = check(&bad).await;
    assert_eq!(code, Some(1), "{said}");
    for (line, word) in [(1, "lisen"), (3, "ftp"), (8, "di"), (9, "twice")] {
        assert!(
            said.lines()
                .any(|one| one.contains(&format!(":{line}"))
                    || one.contains(&format!("line {line}"))),
            "line {line}: {said}",
        );
        assert!(said.contains(word), "{word}: {said}");
    }
    assert!(
        said.contains("listen"),
        "a suggestion for the misspelt field: {said}"
    );
}

#[tokio::test]
async fn check_refuses_what_would_not_start() {
    for (from, to, word) in [
        (
            "/health\n    mode: bypass",
            "/orders/{other}/{*more}\n    resource: x",
            "/orders/",
        ),
        (
            "sqlite:fencepost.db",
            "postgres://db/fencepost",
            "namespace",
        ),
        (
            "    reuse: once",
            "    reuse: once\n    reuse: once",
            "reuse",
        ),
        ("/health", "health", "health"),
        (
            "url: http://127.0.0.1:3000",
            "url: http://127.0.0.1:3000/path",
            "path",
        ),
    ] {
        let bad = GOOD.replace(from, to);
        assert_ne!(bad, GOOD, "{from}");
        let (code, said) = check(&bad).await;
        assert_eq!(code, Some(1), "{to}: {said}");
        assert!(said.contains(word), "{to}: {said}");
    }
    let (code, said) = check(&GOOD.replace("store:", "barrier: { settle: 5s }\nstore:")).await;
    assert_eq!(code, Some(0), "a warning is no error: {said}");
    assert!(
        said.contains("settle"),
        "`upstream.timeout` is longer than `barrier.settle`: {said}"
    );
}

#[tokio::test]
async fn check_warns_of_keys_that_two_routes_share() {
    let routes = |resource: &str, more: &str| {
        format!(
            "upstream: {{ url: http://a }}\nroutes:\n  - {{ path: '/files/{{name}}', resource: '{resource}' }}\n\
             \x20 - {{ path: '/orders/{{id}}', resource: 'order:{{id}}'{more} }}\n"
        )
    };
    let (code, said) = check(&routes("order:{name}", ", token: { format: hex }")).await;
    assert_eq!(code, Some(0), "{said}");
    for part in [
        "/orders/{id} shares keys with /files/{name}",
        "different formats",
        "X-Fencing-Target",
        "1 warning",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let (_, said) = check(&routes("file:{name}", "")).await;
    assert!(said.contains("no errors, 0 warnings"), "{said}");
}

/// Not every name of a file is UTF-8.
#[tokio::test]
async fn check_takes_every_name_of_a_file() {
    use std::os::unix::ffi::OsStrExt as _;
    let dir = TempDir::new().expect("a temporary directory");
    let file = dir.path().join(std::ffi::OsStr::from_bytes(b"f\xff.yaml"));
    std::fs::write(&file, GOOD).expect("the directory is writable");
    let mut command = fencepost();
    command.arg("check").arg(&file);
    let ended = run(command).await;
    assert_eq!(ended.code, Some(0), "{}", ended.err);
}

#[tokio::test]
async fn check_of_no_file_is_an_error() {
    let ended = run_with(&["check", "/nowhere/fencepost.yaml"]).await;
    assert_eq!(ended.code, Some(1));
    assert!(ended.text().contains("/nowhere/fencepost.yaml"));
}

#[tokio::test]
async fn schema_is_a_json_schema_of_every_field() {
    let ended = run_with(&["schema"]).await;
    assert_eq!(ended.code, Some(0));
    let schema: Value = serde_json::from_str(&ended.out).expect("JSON");
    for field in [
        "listen",
        "upstream",
        "store",
        "barrier",
        "body",
        "shutdown",
        "admin",
        "unmatched",
        "safe_methods",
        "stale_status",
        "routes",
        "claim",
        "disclose",
    ] {
        let described = &schema["properties"][field]["description"];
        assert!(
            described.as_str().is_some_and(|text| !text.is_empty()),
            "{field}"
        );
    }
    assert_eq!(
        schema["additionalProperties"], false,
        "unknown fields are refused"
    );
}

#[tokio::test]
async fn a_bad_configuration_does_not_start() {
    let upstream = Upstream::start().await;
    let config =
        Config::new(&upstream, &Store::sqlite()).with("{ barrier: { wait: soon }, frob: 1 }");
    Proxy::refused_for(&config, &["soon", "frob"]).await;
}

#[tokio::test]
async fn without_a_file_every_unsafe_request_is_fenced_by_its_path() {
    let upstream = Upstream::start().await;
    let mut proxy = Proxy::start_fileless(&[
        "--upstream",
        upstream.url(),
        "--listen",
        "127.0.0.1:0",
        "--admin-listen",
        "127.0.0.1:0",
        "--log-format",
        "json",
    ])
    .await;
    proxy.forward(put("/any/where").token(5)).await;
    assert_eq!(upstream.only().resource(), Some("/any/where"));
    proxy.stale(put("/any/where").token(4)).await;
    proxy
        .refuse(put("/any/where/"), 428, "token-required")
        .await;
    proxy.stale(put("/any/where/").token(4)).await;
    proxy.forward(post("/").token(1)).await;
    proxy.forward(get("/any/where")).await;
    assert!(
        proxy.file().with_file_name("fencepost.db").exists(),
        "the marks are in ./fencepost.db"
    );
    proxy.stop().await;
}

#[tokio::test]
async fn a_flag_stands_above_the_environment_above_the_file() {
    let (one, two) = (Upstream::start().await, Upstream::start().await);
    let config = Config::to("http://127.0.0.1:9", &Store::sqlite());
    let mut command = fencepost();
    command.env("FENCEPOST_UPSTREAM", one.url());
    // Kubernetes puts this there for a Service named `fencepost`.
    command.env("FENCEPOST_PORT", "tcp://10.0.0.1:7080");
    let proxy = Proxy::start_by(&config, command, &[]).await;
    proxy.forward(put("/orders/7").token(1)).await;
    assert_eq!(one.count(), 1);
    drop(proxy);

    let config = Config::to("http://127.0.0.1:9", &Store::sqlite());
    let mut command = fencepost();
    command.env("FENCEPOST_UPSTREAM", one.url());
    let proxy = Proxy::start_by(&config, command, &["--upstream", two.url()]).await;
    proxy.forward(put("/orders/7").token(1)).await;
    assert_eq!((one.count(), two.count()), (1, 1));
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

over_both_stores! {
    async fn marks_are_read_and_corrected_from_a_shell(store: Store) {
        let more = "barrier: { wait: 200ms, settle: 300s }";
        let (_upstream, config, mut proxy) = Proxy::with_config(&store, more).await;
        for id in [7, 8] {
            proxy.forward(put(&format!("/orders/{id}")).token(40 + id)).await;
        }
        let (good, said) = marks(&proxy, &["list"]).await;
        assert!(good && said.contains("order:7") && said.contains("47") && said.contains("order:8"), "{said}");
        let (good, said) = marks(&proxy, &["get", "order:7", "--json"]).await;
        let mark: Value = serde_json::from_str(&said).expect("JSON");
        assert!(good && mark["mark"] == "47", "{said}");

        let (good, said) = marks(&proxy, &["advance", "order:7", "60"]).await;
        assert!(good, "{said}");
        proxy.stale(put("/orders/7").token(59)).await;
        let (good, _) = marks(&proxy, &["advance", "order:7", "59"]).await;
        assert!(!good, "an advance never lowers");

        // Lowering needs a reason, and nothing in flight anywhere: not an open epoch either.
        let (good, _) = marks(&proxy, &["override", "order:8", "5"]).await;
        assert!(!good, "no reason, no override");
        proxy.stop().await;
        let proxy = Proxy::start(&config).await;
        let (good, said) = marks(&proxy, &["override", "order:8", "5", "--reason", "the lock service was restored"]).await;
        assert!(good, "{said}");
        proxy.stale(put("/orders/8").token(4)).await;
        proxy.forward(put("/orders/8").token(6)).await;
        assert_eq!(proxy.count("fencepost_overrides_total", &[]).await, 1);
        let audit = proxy.mark("order:8").await.expect("it has a mark")["audit"].to_string();
        assert!(audit.contains("the lock service was restored"), "{audit}");
    }

    async fn an_override_is_refused_while_an_epoch_is_open(store: Store) {
        let (upstream, proxy) = Proxy::before(&store, "barrier: { settle: 300s }").await;
        upstream.next([Step::Reset]);
        proxy.refuse(put("/orders/7").token(47), 502, "outcome-unknown").await;
        let (good, said) = marks(&proxy, &["override", "order:7", "5", "--reason", "why not"]).await;
        assert!(!good, "{said}");
        proxy.stale(put("/orders/7").token(46)).await;
        assert_eq!(proxy.token("order:7").await, Some(47));
    }

    async fn an_unknown_outcome_is_resolved_from_a_shell(store: Store) {
        let more = "barrier: { wait: 200ms, settle: 300s }";
        let (upstream, proxy) = Proxy::before(&store, more).await;
        upstream.next([Step::Reset]);
        proxy.refuse(put("/orders/7").token(47), 502, "outcome-unknown").await;
        proxy.refuse(put("/orders/7").token(48), 503, "older-in-flight").await;
        let mark = proxy.mark("order:7").await.expect("it has a mark");
        let id = mark["unknown"][0]["id"].as_str().expect("an id").to_owned();
        let (good, said) = marks(&proxy, &["resolve", "order:7", &id, "--reason", "it was applied"]).await;
        assert!(good, "{said}");
        proxy.forward(put("/orders/7").token(48)).await;
        let (good, _) = marks(&proxy, &["resolve", "order:7", &id, "--reason", "again"]).await;
        assert!(!good, "there is none of that name any more");
    }
}

#[tokio::test]
async fn marks_says_what_is_wrong() {
    let ended = run_with(&["marks", "list", "--admin", "http://127.0.0.1:9"]).await;
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("127.0.0.1:9"), "{}", ended.err);
}

#[tokio::test]
async fn admin_writes_need_the_token() {
    let (_upstream, proxy) = fenced("{}").await;
    proxy.forward(put("/orders/7").token(5)).await;
    let advance = || {
        post("/v1/marks/order%3A7/advance")
            .header("Content-Type", "application/json")
            .body(r#"{"token":"9"}"#)
    };
    for unasked in [
        advance(),
        advance().header("Authorization", "Bearer wrong"),
        advance().header("Authorization", "Basic b25seS1mb3ItdGVzdHM="),
    ] {
        assert_eq!(unasked.send(proxy.admin()).await.status(), 401);
    }
    assert_eq!(proxy.token("order:7").await, Some(5));
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
