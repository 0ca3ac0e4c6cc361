//! What a command gets, and how its run ends.

use std::process::Command;

use rustix::process::Signal;
use tempfile::TempDir;

use super::{WRITE, attach, fenced, run, run_before, run_script, url};
use crate::support::process::Process;
use crate::support::{Step, Upstream, eventually, forwarded, put};

#[tokio::test]
async fn each_request_of_the_command_gets_the_token_and_nothing_else() {
    let (upstream, proxy) = fenced().await;
    upstream.next([Step::answer("200 OK", "", "done")]);
    run_script(&proxy, &["--token", "41"], WRITE)
        .await
        .assert(0, "done");
    let got = upstream.only();
    assert_eq!((got.method(), got.target()), ("PUT", "/orders/7"));
    assert_eq!((got.token(), got.text().as_str()), (Some(41), "paid"));
    // As far as the service can tell, the client has sent it to the fencepost itself.
    assert_eq!(got.head.get("x-forwarded-for"), Some("127.0.0.1"));
    let host = proxy.data().to_string();
    assert_eq!(got.head.get("x-forwarded-host"), Some(host.as_str()));
    assert_eq!(proxy.token("order:7").await, Some(41));
}

#[tokio::test]
async fn the_exit_code_is_the_commands() {
    let (_upstream, proxy) = fenced().await;
    for (command, code) in [
        (&["sh", "-c", "exit 7"][..], 7),
        (&["sh", "-c", "kill -KILL $$"], 128 + 9),
        (&["no-such-program"], 127),
        (&["/etc/passwd"], 126),
    ] {
        let arguments = [&["--token", "1", "--"], command].concat();
        run_before(&proxy, &arguments).await.assert(code, "");
    }
}

/// The number behind a name in the last line of the log.
fn number(said: &str, name: &str) -> Option<f64> {
    let (_, rest) = said.rsplit_once(&format!(" {name}="))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[tokio::test]
async fn the_end_tells_how_long_the_lock_took_and_was_held() {
    let (_upstream, proxy) = fenced().await;
    let since_1970 = std::time::UNIX_EPOCH.elapsed().expect("after 1970");
    // A pipe, which has the token once the lock is there.
    let dir = TempDir::new().expect("a directory");
    let pipe = dir.path().join("token");
    let pipe = pipe.to_str().expect("a name");
    let made = Command::new("mkfifo").arg(pipe).status();
    assert!(made.expect("it runs").success());
    let late = format!("{{ sleep 0.2; echo 41; }} >{pipe}");
    let lock = Command::new("sh").args(["-c", &late]).spawn();
    let mut lock = lock.expect("it runs");
    let from_pipe = ["--token-file", pipe];
    let seconds = format!("{:.3}", since_1970.as_secs_f64() - 100.0);
    let from_seconds = ["--token", "41", "--acquire-started", &seconds];
    for (arguments, least) in [(&from_pipe[..], 0.2), (&from_seconds, 100.0)] {
        let ran = run_script(&proxy, arguments, "sleep 0.1").await;
        ran.assert(0, "");
        let of = |name| number(&ran.said, name).unwrap_or_else(|| panic!("{name}: {}", ran.said));
        let (took, held) = (of("acquire_seconds"), of("held_seconds"));
        assert!((least..least + 60.0).contains(&took), "{}", ran.said);
        assert!(held >= 0.1, "{}", ran.said);
        assert!(of("renewals").abs() < f64::EPSILON, "{}", ran.said);
    }
    assert!(lock.wait().expect("it has ended").success());
    // A clock that was set back costs the number, not the run.
    let ahead = ["--token", "41", "--acquire-started", "99999999999"];
    let ran = run_script(&proxy, &ahead, "true").await;
    ran.assert(0, "ahead of the clock");
    assert_eq!(number(&ran.said, "acquire_seconds"), None, "{}", ran.said);
    for wrong in ["yesterday", "-1", "1e300", "NaN", ""] {
        let flag = format!("--acquire-started={wrong}");
        let ran = run_script(&proxy, &["--token", "41", &flag], "true").await;
        ran.assert(2, "");
    }
}

#[tokio::test]
async fn a_zombie_is_ended_and_told_who_is_newer() {
    let (upstream, proxy) = fenced().await;
    proxy.forward(put("/orders/7").token(42)).await;
    // It would go on for ever, as a script does that looks at no answer.
    let script = format!("while :; do {WRITE} || exit 9; sleep 0.01; done");
    let ran = run_script(&proxy, &["--token", "41"], &script).await;
    let refused = "token 41 is stale: PUT /orders/7 was refused";
    ran.assert(
        75,
        &format!("{refused}, because the holder of token 42 is newer"),
    );
    ran.assert(75, "end=\"stale\" exit_code=75");
    assert_eq!(upstream.count(), 1, "the newer one's write, and no other");
}

#[tokio::test]
async fn nothing_is_forwarded_once_one_request_was_refused() {
    let (upstream, proxy) = fenced().await;
    proxy.forward(put("/orders/7").token(42)).await;
    // Another resource, where nobody is newer yet: the lock is lost there too. It ignores SIGTERM.
    let script = format!(
        "trap '' TERM; {WRITE}; for n in 1 2 3; do
           curl -sS -X PUT -d x -w ' %{{http_code}} ' $FENCEPOST_URL/orders/8; done"
    );
    let ran = run_script(&proxy, &["--token", "41"], &script).await;
    ran.assert(75, "");
    assert_eq!(ran.said.matches("} 412").count(), 3, "{}", ran.said);
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn signals_reach_the_command() {
    let (_upstream, proxy) = fenced().await;
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::USR1] {
        let script = "trap 'exit 33' TERM INT HUP USR1; echo ready; while :; do sleep 0.02; done";
        let arguments = ["--token", "1", "--", "sh", "-c", script];
        let mut process = Process::start(&mut attach(&url(&proxy), &arguments));
        eventually("the command to be ready", || async {
            process.lines().contains(&"ready".to_owned()).then_some(())
        })
        .await;
        process.signal(signal);
        assert_eq!(process.exit().await.code(), Some(33), "{signal:?}");
    }
}

/// A claim, as docs/attach.md has it.
const CLAIM: &str = "curl -fsS -X POST -H 'X-Fencing-Target: PUT /orders/7' \
     $FENCEPOST_URL/.well-known/fencing/claim";

#[tokio::test]
async fn a_claim_comes_before_the_rest_of_the_command() {
    let (upstream, proxy) = fenced().await;
    let (older, gate) = proxy.held(&upstream, put("/orders/7").token(40)).await;
    let script = format!("{CLAIM} && echo begun");
    let arguments = ["--token", "41", "--", "sh", "-c", &script];
    let mut process = Process::start(&mut attach(&url(&proxy), &arguments));
    // It waits longer than the barrier does, by asking again.
    proxy.until_outcome("older-in-flight", 1).await;
    assert!(process.ended().is_none() && !process.lines().contains(&"begun".to_owned()));
    gate.open();
    forwarded(older).await;
    assert_eq!(process.exit().await.code(), Some(0));
    let said = process.output();
    let whole = said.contains("begun") && said.contains("requests=1");
    assert!(whole, "{said}");
    assert_eq!(proxy.token("order:7").await, Some(41));
}

#[tokio::test]
async fn without_its_claim_the_command_does_not_begin() {
    let (_upstream, proxy) = fenced().await;
    proxy.forward(put("/orders/7").token(42)).await;
    let script = format!("{CLAIM} && echo begun");
    let claim = async |to: &str, code: i32, says: &str| {
        let flags = ["--token", "41", "--retry-for", "100ms", "--"];
        let arguments = [&flags[..], &["sh", "-c", &script]].concat();
        let ran = run(&mut attach(to, &arguments)).await;
        ran.assert(code, says);
        assert!(!ran.has_line("begun"), "{}", ran.said);
    };
    let stale = "POST /.well-known/fencing/claim was refused";
    claim(&url(&proxy), 75, stale).await;
    // Nobody is there, or something that is no fencepost.
    claim("http://127.0.0.1:1", 22, "upstream-unreachable").await;
    let plain = Upstream::start().await;
    plain.next([Step::answer("404 Not Found", "", "")]);
    claim(plain.url(), 22, "did not come through a fencepost").await;
}

#[tokio::test]
async fn the_token_comes_from_one_of_three_places() {
    let (_upstream, proxy) = fenced().await;
    let dir = TempDir::new().expect("a directory");
    let file = dir.path().join("token");
    std::fs::write(&file, "43\n").expect("it is writable");
    let file = file.to_str().expect("a name");
    for (token, source) in [
        (41, ["--token", "41"]),
        (42, ["--token-env", "LOCK_REV"]),
        (43, ["--token-file", file]),
    ] {
        let arguments = [&source[..], &["--", "sh", "-c", WRITE]].concat();
        let ran = run(attach(&url(&proxy), &arguments).env("LOCK_REV", "42")).await;
        ran.assert(0, "");
        assert_eq!(proxy.token("order:7").await, Some(token));
    }
    for (source, says) in [
        ("--token-env NO_REV", "no environment variable NO_REV"),
        ("--token-file /nowhere/token", "/nowhere/token"),
        ("--token 1 --listen 0.0.0.0:0", "loopback"),
        ("--token 1 --ca-file /nowhere/ca", "--ca-file"),
    ] {
        let source: Vec<&str> = source.split(' ').collect();
        let ran = run_script(&proxy, &source, "echo begun").await;
        ran.assert(1, says);
        assert!(!ran.has_line("begun"), "{}", ran.said);
    }
    let mut http2 = attach("h2c://127.0.0.1:1", &["--token", "1", "--", "true"]);
    run(&mut http2).await.assert(1, "HTTP/1.1");
    for wrong in [&[][..], &["--token", "1", "--token-env", "LOCK_REV"]] {
        run_script(&proxy, wrong, "true").await.assert(2, "");
    }
}

#[tokio::test]
async fn a_program_whose_url_cannot_be_changed_comes_by_http_proxy() {
    let (upstream, proxy) = fenced().await;
    let curl = async |flag: &str, target: &str, status: &str| {
        let curl = ["-sS", "-X", "PUT", "-d", "x", "-w", " %{http_code}", target];
        let arguments = [&["--token", "41", flag, "--", "curl"], &curl[..]].concat();
        let ran = run_before(&proxy, &arguments).await;
        assert!(ran.said.contains(status), "{target}: {}", ran.said);
    };
    let legacy = "http://legacy.example:8080/orders/7";
    curl("--http-proxy=legacy.example:8080", legacy, " 200").await;
    let got = upstream.only();
    assert_eq!((got.target(), got.token()), ("/orders/7", Some(41)));
    // By default it is the fencepost's own address that leads there; others are not guessed at.
    let own = format!("{}/orders/7", url(&proxy));
    curl("--http-proxy", &own, " 200").await;
    curl("--http-proxy", legacy, " 400").await;
    // A Unix socket has none.
    let arguments = ["--token", "41", "--http-proxy", "--", "true"];
    let mut nameless = attach("unix:/nowhere", &arguments);
    run(&mut nameless).await.assert(1, "name it");
}
