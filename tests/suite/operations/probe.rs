//! The fence drill: `fencepost probe` passes where the fence holds, and fails where it does not.

use super::holes::run;
use crate::support::postgres::free_port;
use crate::support::{Proxy, Step, Upstream, fenced, put};

const ROUTES: &str = "routes:\n\
    - { path: '/orders/{id}', resource: 'order:{id}' }\n\
    - { path: '/seen/{id}', resource: 's:{id}', mode: observe }\n\
    - { path: '/open/{*rest}', mode: bypass }\n";

const CANARY: &str = "/orders/__canary__";
const CHECKS: [&str; 3] = ["current-token", "stale-token", "direct"];

/// The result of a drill: its exit code, and what it printed.
struct Told {
    code: Option<i32>,
    out: String,
}

impl Told {
    /// The checks: the verdict, the name, and what came of it.
    fn steps(&self) -> Vec<[&str; 3]> {
        let lines = self.out.lines().filter_map(|line| line.strip_prefix("  "));
        let steps = lines.map(|line| {
            let (verdict, line) = line.split_once(' ').expect("a verdict");
            let (check, got) = line.trim_start().split_once(' ').expect("a name");
            [verdict, check, got.trim_start()]
        });
        steps.collect()
    }

    /// Asserts the verdict of each check, and with it the exit code.
    #[track_caller]
    fn assert(&self, verdicts: &[&str]) -> &Self {
        let steps = self.steps();
        let found = steps.iter().map(|[verdict, check, _]| (*check, *verdict));
        let wanted = CHECKS.into_iter().zip(verdicts.iter().copied());
        assert!(found.eq(wanted), "{verdicts:?}: {}", self.out);
        let holds = verdicts.iter().all(|verdict| *verdict == "ok");
        assert_eq!(self.code, Some(i32::from(!holds)), "{}", self.out);
        self
    }

    /// Asserts what came of a check.
    #[track_caller]
    fn got(&self, step: usize, part: &str) -> &Self {
        let [.., got] = self.steps()[step];
        assert!(got.contains(part), "{}", self.out);
        self
    }
}

/// A drill of a path at this URL.
async fn drill_at(url: &str, path: &str, arguments: &[&str]) -> Told {
    let all = [&["probe", "--url", url, "--path", path], arguments].concat();
    let (code, out, error) = run(&all, "").await;
    assert!(!out.is_empty(), "{error}");
    let held = out.contains("The fence held.");
    assert_eq!(held, code == Some(0), "{out}{error}");
    Told { code, out }
}

async fn drill(proxy: &Proxy, path: &str, arguments: &[&str]) -> Told {
    drill_at(&format!("http://{}", proxy.data()), path, arguments).await
}

/// As [`drill`], where no way around the proxy is tried.
async fn indirect(proxy: &Proxy, path: &str, arguments: &[&str]) -> Told {
    drill(proxy, path, &[&["--no-direct"], arguments].concat()).await
}

/// A URL where nothing listens.
fn nowhere() -> String {
    format!("http://127.0.0.1:{}", free_port())
}

#[tokio::test]
async fn a_drill_passes_where_the_fence_holds() {
    let (upstream, proxy) = fenced(ROUTES).await;
    let nowhere = nowhere();
    let direct = ["--direct", &nowhere, "-d", "{}"];
    for _ in 0..2 {
        let told = drill(&proxy, CANARY, &direct).await;
        told.assert(&["ok", "ok", "ok"]);
        told.got(0, ": 200")
            .got(1, ": 412 stale-token")
            .got(2, "refused");
    }
    let sent = "0, which found no mark, and the current tokens";
    assert_eq!(upstream.count(), 3, "{sent}");

    // A token that is given does not have to be the latest: the next one is above the mark.
    proxy.forward(put(CANARY).token(40)).await;
    let told = indirect(&proxy, CANARY, &["--token", "7"]).await;
    told.assert(&["ok", "ok"])
        .got(0, "token 41: 200, above the mark 40");
    let words = "The fence held. No way around it was tried.";
    assert!(told.out.contains(words), "{}", told.out);
    assert_eq!(proxy.token("order:__canary__").await, Some(41));
}

/// No drill leaps past the bounds of a token: the refusal would be counted, and raise an alert.
#[tokio::test]
async fn drills_stay_within_the_bounds_of_a_token() {
    let routes = "routes:\n\
        - { path: '/all/{id}', resource: 'a:{id}', token: { max_jump: 1000, max: 5000 } }\n\
        - { path: '/once/{id}', resource: 'o:{id}', token: { max_jump: 1 }, reuse: once }\n";
    let (_upstream, proxy) = fenced(routes).await;
    for current in 1..4 {
        for path in ["/all/c", "/once/c"] {
            let told = indirect(&proxy, path, &[]).await;
            told.assert(&["ok", "ok"])
                .got(0, &format!("token {current}: 200"));
        }
    }
    let refused = [("outcome", "implausible-token")];
    assert_eq!(proxy.count("fencepost_requests_total", &refused).await, 0);
    // One that was told a token beyond the bound goes on above the mark.
    for number in ["4999", "5001"] {
        let told = indirect(&proxy, "/all/c", &["--token", number]).await;
        told.assert(&["ok", "ok"]);
    }
    assert_eq!(proxy.token("a:c").await, Some(5));
}

/// Each write of a drill is an operation of its own, so that none is answered from the record.
#[tokio::test]
async fn drills_pass_where_outcomes_are_remembered() {
    let routes = "routes: [{ path: '/pay/{id}', resource: 'p:{id}', outcome: { body: 4KiB } }]";
    let (upstream, proxy) = fenced(routes).await;
    for writes in [2, 3] {
        let told = indirect(&proxy, "/pay/c", &[]).await;
        told.assert(&["ok", "ok"]);
        assert_eq!(upstream.count(), writes);
    }
    // A name of one's own is kept, and what went wrong is told in full.
    let own = ["-H", "X-Fencing-Operation: mine"];
    let told = indirect(&proxy, "/pay/c", &own).await;
    told.assert(&["ok", "ok"]);
    let told = indirect(&proxy, "/pay/c", &own).await;
    told.assert(&["FAILED", "FAILED"])
        .got(0, "200 replayed, above");
    let told = indirect(&proxy, "/pay/c", &["-H", "X-Fencing-Operation: "]).await;
    told.assert(&["FAILED", "FAILED"])
        .got(0, "400 ambiguous-request: this route remembers");
}

/// Where refusals do not name the mark, a token is given each time.
#[tokio::test]
async fn drills_pass_where_refusals_name_no_mark() {
    let routes = "disclose: false\nroutes:\n\
        - { path: '/any/{id}', resource: 'a:{id}' }\n\
        - { path: '/few/{id}', resource: 'f:{id}', token: { max_jump: 1000 } }\n";
    let (_upstream, proxy) = fenced(routes).await;
    for _ in 0..3 {
        for path in ["/any/c", "/few/c"] {
            let told = indirect(&proxy, path, &["--token=7"]).await;
            told.assert(&["ok", "ok"]);
        }
    }
    let told = indirect(&proxy, "/any/c", &[]).await;
    told.assert(&["FAILED", "FAILED"]).got(0, "use --token");
}

#[tokio::test]
async fn a_drill_fails_where_a_stale_write_passes() {
    let (_upstream, proxy) = fenced(ROUTES).await;
    for path in ["/seen/c", "/open/c"] {
        let told = indirect(&proxy, path, &[]).await;
        told.assert(&["ok", "FAILED"])
            .got(1, "THE UPSTREAM TOOK A STALE WRITE");
    }
}

#[tokio::test]
async fn a_drill_fails_where_somebody_answers_without_the_proxy() {
    let (upstream, proxy) = fenced(ROUTES).await;
    let own = format!("http://{}", proxy.data());
    let around = "200: THE UPSTREAM ANSWERS WITHOUT THE PROXY";
    // What speaks no HTTP/1.1, an HTTP/2 server say, is reached all the same.
    let other = Upstream::start().await;
    other.otherwise(|_| vec![Step::raw("\0\0\0\u{4}\0")]);
    for (direct, said) in [
        (upstream.url(), around),
        (&own, "412: fencepost answers there"),
        ("http://no-such-host.invalid:80", "nothing was tried"),
        (other.url(), "something answers"),
    ] {
        let told = drill(&proxy, CANARY, &["--direct", direct]).await;
        told.assert(&["ok", "ok", "FAILED"]).got(2, said);
    }
}

/// A stale token is not sent behind a current one that did not pass: its refusal would prove
/// nothing.
#[tokio::test]
async fn a_drill_fails_where_the_current_token_does_not_pass() {
    let (upstream, proxy) = fenced(ROUTES).await;
    let url = format!("http://{}", proxy.data());
    upstream.next([Step::answer("404 Not Found", "", "")]);
    for (url, expect, said) in [
        (&url, None, ": 404"),
        (&url, Some("--expect=404"), ": 200"),
        (&nowhere(), None, "refused"),
    ] {
        let flags = [&["--no-direct"], expect.as_slice()].concat();
        let told = drill_at(url, CANARY, &flags).await;
        told.assert(&["FAILED", "FAILED"])
            .got(0, said)
            .got(1, "not tried");
    }
}

#[tokio::test]
async fn wrong_usage_of_the_drill_is_told() {
    for (arguments, words) in [
        ("--url http://a", "--path"),
        ("--url http://a --path x", "begins with `/`"),
        ("--url ftp://a --path /x", "http:// or https://"),
        ("--url http://a/b --path /x", "no path behind the port"),
        ("--url http://u:p@a --path /x", "are not sent"),
        ("--url http://a --path /x --expect 2xx", "--expect"),
        ("--path /x --no-direct", "--url"),
        ("--url http://a --path /x", "--direct"),
    ] {
        let all: Vec<&str> = ["probe"].into_iter().chain(arguments.split(' ')).collect();
        let (code, out, error) = run(&all, "").await;
        assert_eq!(code, Some(2), "{arguments}: {out}{error}");
        assert!(error.contains(words), "{arguments}: {error}");
    }
}
