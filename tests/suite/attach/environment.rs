//! Proxy settings that the command inherits: none of them leads its requests past the fence.

use super::{WRITE, attach, fenced, run, run_script, url};
use crate::support::Upstream;

#[tokio::test]
async fn an_inherited_no_proxy_does_not_lead_past_the_fence() {
    let (upstream, proxy) = fenced().await;
    let direct = upstream.address().to_string();
    let named = format!("--http-proxy={direct}");
    let target = format!("{}/orders/7", upstream.url());
    let script = format!("curl -sS -X PUT -d x {target}; echo kept=$NO_PROXY,$no_proxy.");
    let arguments = ["--token", "41", &named, "--", "sh", "-c", &script];
    let (upper, lower) = (&["NO_PROXY"][..], &["no_proxy"][..]);
    let both = &["NO_PROXY", "no_proxy"][..];
    for (written, (list, spelling)) in (1..).zip([
        ("*", both),
        ("other.example,127.0.0.1", upper),
        (&format!("{direct}, other.example"), lower),
        (".0.0.1 other.example", both),
        ("other.example,127.0.0.0/8", upper),
        ("*.0.0.1,other.example", lower),
    ]) {
        let mut command = attach(&url(&proxy), &arguments);
        command.envs(spelling.iter().map(|name| (name, list)));
        let ran = run(&mut command).await;
        let others = if list == "*" { "" } else { "other.example" };
        ran.assert(0, &format!("kept={others},{others}."));
        assert_eq!(upstream.last().token(), Some(41), "{list}: {}", ran.said);
        assert_eq!(upstream.count(), written, "{list}");
    }
}

#[tokio::test]
async fn an_inherited_proxy_does_not_take_the_requests_elsewhere() {
    let (upstream, proxy) = fenced().await;
    let elsewhere = Upstream::start().await;
    let script = format!("{WRITE}; echo kept=$NO_PROXY,$no_proxy.");
    let arguments = ["--token", "41", "--", "sh", "-c", &script];
    for (names, no_proxy) in [
        (&["http_proxy"][..], None),
        (&["http_proxy", "ALL_PROXY"], Some("other.example")),
        (&["all_proxy"], Some("other.example")),
        (&["http_proxy"], Some("*")),
    ] {
        let mut command = attach(&url(&proxy), &arguments);
        command.envs(names.iter().map(|name| (name, elsewhere.url())));
        command.envs(no_proxy.map(|list| ("NO_PROXY", list)));
        let before = upstream.count();
        let ran = run(&mut command).await;
        let kept = match no_proxy {
            Some("other.example") => "kept=other.example,127.0.0.1,other.example,127.0.0.1.",
            _ => "kept=",
        };
        ran.assert(0, kept);
        assert_eq!(elsewhere.count(), 0, "{names:?}: {}", ran.said);
        assert_eq!(upstream.count(), before + 1, "{names:?}: {}", ran.said);
        assert_eq!(upstream.last().token(), Some(41));
    }
}

#[tokio::test]
async fn a_command_that_sends_nothing_through_it_is_named() {
    let (_upstream, proxy) = fenced().await;
    let says = "the command sent no request through fencepost attach";
    for (script, said) in [("true", true), (WRITE, false)] {
        let ran = run_script(&proxy, &["--token", "41"], script).await;
        assert_eq!(ran.code, Some(0), "{}", ran.said);
        assert_eq!(ran.said.contains(says), said, "{}", ran.said);
    }
}

/// Transparent huge pages are switched off for the proxy's own memory only.
#[tokio::test]
async fn the_command_keeps_the_machines_huge_pages() {
    let (_upstream, proxy) = fenced().await;
    let own = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let Some(own) = own.lines().find(|line| line.starts_with("THP_enabled")) else {
        return;
    };
    let script = "exec grep THP_enabled /proc/self/status";
    let ran = run_script(&proxy, &["--token", "41"], script).await;
    assert!(ran.has_line(own), "{}", ran.said);
}
