//! `fencepost init`: a first configuration, from the traffic that there was.

use std::path::Path;

use tempfile::TempDir;

use crate::support::proxy::fencepost;
use crate::support::run::{Exit, run_fed};

const UPSTREAM: [&str; 3] = ["init", "--upstream", "http://127.0.0.1:8080"];

const COMMON: &str = "\
::1 - ann [10/Oct/2026:13:55:36 +0000] \"PUT /orders/7 HTTP/1.1\" 200 23
::1 - - [10/Oct/2026:13:55:36 +0000] \"DELETE /orders/8/items/3 HTTP/1.1\" 204 0
::1 - - [10/Oct/2026:13:55:36 +0000] \"GET /orders/8 HTTP/1.1\" 200 23
";
const NGINX: &str =
    "{\"request_method\":\"PUT\",\"request_uri\":\"/orders/7?a=b\",\"status\":\"200\"}\n";
const YAML: &str = "openapi: 3.0.0\npaths:\n  /orders/{id}:\n    put: {responses: {200: {}}}\n";

/// Runs fencepost in this directory, with a standard input.
async fn run(dir: &Path, arguments: &[&str], input: &[u8]) -> (Option<i32>, String, String) {
    let mut command = fencepost();
    command.current_dir(dir).args(arguments);
    let Exit { code, out, err } = run_fed(command, input).await;
    (code, out, err)
}

async fn init(dir: &Path, arguments: &[&str], input: &[u8]) -> (Option<i32>, String, String) {
    run(dir, &[&UPSTREAM, arguments].concat(), input).await
}

/// A log in either form and a document lead to a file that passes `check`, and takes the request.
/// The unit tests of `src/init` have every format.
#[tokio::test]
async fn what_was_written_is_observed() {
    for (flag, text) in [
        ("--access-log", COMMON),
        ("--access-log", NGINX),
        ("--openapi", YAML),
    ] {
        let dir = TempDir::new().expect("a directory");
        let dir = dir.path();
        std::fs::write(dir.join("input"), text).expect("writable");
        let (code, said, errors) = init(dir, &[flag, "input"], b"").await;
        assert_eq!(code, Some(0), "{errors}");
        assert!(said.contains("fencepost check fencepost.yaml"), "{said}");
        let (code, said, errors) = run(dir, &["check", "fencepost.yaml"], b"").await;
        assert_eq!(code, Some(0), "{said}{errors}");
        assert!(said.contains("NOTHING IS ENFORCED"), "{said}");
        // That of a start without a file has other keys, so it would refuse these routes.
        assert!(said.contains("marks in sqlite:marks.db"), "{said}");
        // Without a token the key is shown as well.
        let request = ["explain", "PUT", "/orders/7", "fencepost.yaml"];
        let (_, said, errors) = run(dir, &request, b"").await;
        let shown = said.contains("route   /orders/{id}/{*rest} (observe)\n  key     orders:7\n");
        assert!(shown, "{text}: {said}{errors}");
        // The same from the standard input, and to the standard output.
        let file = std::fs::read_to_string(dir.join("fencepost.yaml")).expect("a file");
        let (code, printed, _) = init(dir, &[flag, "-", "--output", "-"], text.as_bytes()).await;
        assert_eq!(code, Some(0));
        let file = file.replace("# Read: input,", "# Read: standard input,");
        assert_eq!(printed, file);
    }
}

/// The paths without a key are comments, and are right without their `#`.
#[tokio::test]
async fn proposals_are_right() {
    let dir = TempDir::new().expect("a directory");
    let log = COMMON.to_owned()
        + &COMMON
            .replace("PUT /orders/7", "POST /orders")
            .replace("::1", "x");
    let from_to = ["--access-log", "-", "--output", "-"];
    let (_, file, _) = init(dir.path(), &from_to, log.as_bytes()).await;
    let lines = file.lines().map(|line| match line.strip_prefix("  # ") {
        Some(rest) if rest.starts_with("- path") || rest.starts_with("  ") => format!("  {rest}\n"),
        _ => format!("{line}\n"),
    });
    let whole: String = lines.collect();
    let (code, said, _) = run(dir.path(), &["check", "-"], whole.as_bytes()).await;
    assert_eq!(code, Some(0), "{whole}{said}");
    assert!(said.contains("bypassed: /orders\n"), "{said}");
}

/// Without traffic each path is observed.
#[tokio::test]
async fn a_file_is_replaced_by_force_only() {
    let dir = TempDir::new().expect("a directory");
    let file = dir.path().join("fencepost.yaml");
    std::fs::write(&file, "mine").expect("writable");
    let (code, _, errors) = init(dir.path(), &[], b"").await;
    assert_eq!(code, Some(1));
    let exists = "fencepost.yaml exists: use --force";
    assert!(errors.contains(exists), "{errors}");
    assert_eq!(std::fs::read_to_string(&file).expect("a file"), "mine");
    let (code, _, errors) = init(dir.path(), &["--force"], b"").await;
    assert_eq!(code, Some(0), "{errors}");
    let (code, said, _) = run(dir.path(), &["check", "fencepost.yaml"], b"").await;
    assert_eq!(code, Some(0), "{said}");
    let observed = "observed only: /{*path} by key {path}";
    assert!(said.contains(observed), "{said}");
    let names = std::fs::read_dir(dir.path()).expect("a directory").count();
    assert_eq!(names, 1, "no other file is left");
}

#[tokio::test]
async fn what_cannot_be_read_is_refused() {
    let dir = TempDir::new().expect("a directory");
    let zcat = "compressed with gzip: zcat FILE |";
    let no_request = "none of its 1 lines has a request";
    let twice = "cannot be used multiple times";
    let unwritten = "none/a.yaml cannot be written";
    for (arguments, input, code, reason) in [
        ("--access-log none", &b""[..], 1, "none: No such file"),
        ("--access-log .", b"", 1, ".: Is a directory"),
        ("--access-log -", b"\x1f\x8b", 1, zcat),
        ("--openapi -", b"\x1f\x8b", 1, "compressed with gzip"),
        ("--access-log -", b"", 1, "it is empty"),
        ("--access-log -", b"hello\n", 1, no_request),
        ("--openapi -", b"a: 1\n", 1, "not an OpenAPI document"),
        ("--openapi - --access-log -", b"", 2, "cannot be used with"),
        ("--upstream http://a/b", b"", 2, twice),
        ("--output none/a.yaml", b"", 1, unwritten),
    ] {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let (found, _, errors) = init(dir.path(), &arguments, input).await;
        assert_eq!(found, Some(code), "{arguments:?}: {errors}");
        assert!(errors.contains(reason), "{arguments:?}: {errors}");
    }
    let (code, _, errors) = run(dir.path(), &["init", "--upstream", "ftp://a"], b"").await;
    assert_eq!(code, Some(1));
    assert!(errors.contains("--upstream: upstream.url"), "{errors}");
    let files = std::fs::read_dir(dir.path()).expect("a directory").count();
    assert_eq!(files, 0);
}
