//! The log, and who reads it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

use super::commands::marks;
use crate::support::proxy::escape;
use crate::support::wire::Wire;
use crate::support::{Proxy, Store, fenced, put};

/// A name that reads backwards from its second letter on, and on two lines.
const STRANGE: &str = "a\u{202e}txt\u{2028}b";

/// So many requests are on their way at a time, no more than the socket's buffers take answers to.
const BATCH: usize = 50;

/// How many bytes of its standard error nobody has read.
fn unread(proxy: &mut Proxy) -> u64 {
    let end = format!("/proc/{}/fd/2", proxy.process().id());
    let pipe = std::fs::File::open(end).expect("its standard error is a pipe");
    rustix::io::ioctl_fionread(&pipe).expect("the kernel counts them")
}

#[tokio::test]
async fn a_reader_who_stops_holds_up_no_request() {
    let (_upstream, mut proxy) = fenced("{}").await;
    proxy.forward(put("/orders/7").token(9)).await;

    let deaf = Arc::clone(&proxy.process().deaf).lock_owned().await;
    // A pipe is full when it takes no more, which may be well below its 64 KiB: a line that does
    // not fit into what is left of a page begins a new one. Each reason to refuse has its own 100
    // lines a second, so a second without a new byte shows it.
    let (mut bytes, mut since) = (0, Instant::now());
    while since.elapsed() < Duration::from_secs(2) {
        proxy.stale(put("/orders/7").token(8)).await;
        proxy.refuse(put("/orders/7"), 428, "token-required").await;
        let no_number = put("/orders/7").token("none");
        proxy.refuse(no_number, 400, "malformed-token").await;
        let now = unread(&mut proxy);
        if now != bytes {
            (bytes, since) = (now, Instant::now());
        }
    }
    assert!(bytes > 32 << 10, "the pipe holds {bytes} bytes only");
    for token in 10..200 {
        proxy.stale(put("/orders/7").token(8)).await;
        proxy.forward(put("/orders/8").token(token)).await;
    }
    assert_eq!(proxy.ask("/livez").await.status(), 200);

    // Waiting lines are written when somebody reads, and before the process ends.
    drop(deaf);
    proxy.stop().await;
    proxy.log_of("message", "stopped").await;
}

/// Many refusals of one reason are written now and then, with how many were left out. The list has
/// them.
#[tokio::test]
async fn a_storm_of_refusals_is_no_storm_of_lines() {
    let (_upstream, proxy) = fenced("{}").await;
    let left_out = || {
        let lines = proxy.logs().into_iter();
        let of = |line: serde_json::Value| line["left_out"].as_u64().unwrap_or(0);
        lines.map(of).sum::<u64>()
    };
    let mut wire = Wire::connect(proxy.data()).await.expect("a connection");
    let batch = put("/orders/7").token("none").bytes().repeat(BATCH);
    let mut sent = 0;
    while left_out() == 0 {
        assert!(sent < 50_000, "nothing is left out");
        wire.send(&batch).await.expect("it is taken");
        for _ in 0..BATCH {
            assert_eq!(wire.status(b"").await, "400");
        }
        sent += BATCH;
    }
    let lines = proxy.logs().into_iter();
    let refused = lines.filter(|line| line["message"] == "refused").count();
    assert!(refused < sent, "{refused} lines for {sent} refusals");
    // Another reason has its own room.
    proxy.refuse(put("/orders/7"), 428, "token-required").await;
    proxy.log_of("outcome", "token-required").await;
}

/// Text from strangers shows as it is, wherever an operator reads it, and programs read the same
/// text.
#[tokio::test]
async fn no_stranger_steers_a_terminal() {
    let (_upstream, mut proxy) = fenced("{}").await;
    let target = format!("/orders/{}", escape(STRANGE));
    proxy.forward(put(&target).token(7)).await;
    proxy.stale(put(&target).token(6)).await;
    let key = format!("order:{STRANGE}");
    let hidden = |text: &str| {
        let strange = |c: char| c.is_control() || "\u{202e}\u{2028}\u{2066}\u{feff}".contains(c);
        text.lines().flat_map(str::chars).any(strange)
    };

    // The operator's act logs the key another way, and with what the operator has typed.
    let advance = json!({ "token": "8", "reason": "a\u{2066}b", "actor": "c\u{feff}d" });
    let target = format!("/v1/marks/{}", escape(&key));
    let answer = proxy.command(&format!("{target}/advance"), &advance).await;
    assert_eq!(answer.status(), 200);
    for message in ["refused", "an operator advanced a mark"] {
        let line = proxy.log_of("message", message).await;
        assert_eq!(line["resource"], key, "{line}");
    }
    for line in proxy.process().lines() {
        assert!(!hidden(&line), "{line:?}");
    }

    for target in ["/v1/marks", "/v1/rejections", &target] {
        let answer = proxy.ask(target).await;
        assert!(!hidden(&answer.text()), "{:?}", answer.text());
        assert!(answer.json().to_string().contains(&key), "{target}");
    }
    for arguments in [&["list"][..], &["list", "--json"], &["get", &key]] {
        let (good, said) = marks(&proxy, arguments).await;
        assert!(good && !hidden(&said), "{said:?}");
        let shown = ["a\\u202etxt\\u2028b", "a\\u{202e}txt\\u{2028}b"];
        assert!(shown.iter().any(|shown| said.contains(shown)), "{said}");
    }
}

#[tokio::test]
async fn the_level_follows_a_reload() {
    let (_upstream, config, proxy) = Proxy::with_config(&Store::sqlite(), "{}").await;
    let level = || async { proxy.ask("/v1/status").await.json()["log_level"].clone() };
    for order in ["/orders/1", "/orders/2"] {
        proxy.forward(put(order).token(9)).await;
    }
    assert_eq!(level().await, "info");

    // Each level tells of itself: whoever silences the log is seen to do so.
    let mut before = "info";
    for now in ["error", "warn", "off", "h2=off,info"] {
        let text = format!("{{ log: {{ level: '{now}' }} }}");
        proxy.reload(&config.clone().with(&text));
        let changed = proxy.logged(now, move |line| {
            line["message"] == "the log level was changed" && line["now"] == now
        });
        assert_eq!(changed.await["before"], before);
        before = now;
        if now == "error" {
            proxy.stale(put("/orders/1").token(1)).await;
        }
    }
    proxy.stale(put("/orders/2").token(1)).await;
    proxy.log_of("resource", "order:2").await;
    let lines = proxy.logs();
    let silent = lines.iter().all(|line| line["resource"] != "order:1");
    assert!(silent, "no line of this level was written");
    assert_eq!(level().await, "h2=off,info");
}
