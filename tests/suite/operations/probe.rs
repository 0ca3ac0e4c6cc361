//! The fence drill: `fencepost probe` passes where the fence holds, and fails where it does not.

use super::holes::run;
use crate::support::postgres::free_port;
use crate::support::{Config, Proxy, Step, Store, Upstream, put};

const ROUTES: &str = "routes:\n\
    - { path: '/orders/{id}', resource: 'order:{id}' }\n\
    - { path: '/seen/{id}', resource: 's:{id}', mode: observe }\n\
    - { path: '/open/{*rest}', mode: bypass }\n";

const CANARY: &str = "/orders/__canary__";

/// What a drill printed.
struct Told(String);

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Told {
    /// The checks: the verdict, the name, and what came of it.
    fn steps(&self) -> impl Iterator<Item = [&str; 3]> {
        let lines = self.0.lines().filter_map(|line| line.strip_prefix("  "));
        lines.map(|line| {
            let (verdict, line) = line.split_once(' ').expect("a verdict");
            let (check, got) = line.trim_start().split_once(' ').expect("a name");
            [verdict, check, got.trim_start()]
        })
    }
}

/// The result of a drill: its exit code, and what it printed.
async fn drill(arguments: &[&str]) -> (Option<i32>, Told) {
    let (code, out, error) = run(&[&["probe"], arguments].concat(), "").await;
    assert!(!out.is_empty(), "{error}");
    let held = out.contains("The fence held.");
    assert_eq!(held, code == Some(0), "{out}{error}");
    (code, Told(out))
}

/// The checks of a result with what came of them.
fn checks(told: &Told) -> Vec<(&str, bool)> {
    let steps = told.steps();
    steps
        .map(|[verdict, check, _]| match verdict {
            "ok" => (check, true),
            "FAILED" => (check, false),
            other => panic!("{other} in {told}"),
        })
        .collect()
}

fn got(told: &Told, step: usize) -> &str {
    let [.., got] = told.steps().nth(step).expect("a step");
    got
}

/// A URL where nothing listens.
fn nowhere() -> String {
    format!("http://127.0.0.1:{}", free_port())
}

async fn proxy(upstream: &Upstream) -> Proxy {
    Proxy::start(&Config::new(upstream, &Store::sqlite()).with(ROUTES)).await
}

#[tokio::test]
async fn a_drill_passes_where_the_fence_holds() {
    let upstream = Upstream::start().await;
    let proxy = proxy(&upstream).await;
    let url = format!("http://{}", proxy.data());
    let direct = nowhere();
    for _ in 0..2 {
        let (code, told) = drill(&[
            "--url", &url, "--path", CANARY, "--direct", &direct, "-d", "{}",
        ])
        .await;
        assert_eq!(code, Some(0), "{told}");
        let all = [
            ("current-token", true),
            ("stale-token", true),
            ("direct", true),
        ];
        assert_eq!(checks(&told), all);
        assert!(got(&told, 0).contains(": 200"), "{told}");
        assert!(got(&told, 1).ends_with(": 412 stale-token"), "{told}");
        assert!(got(&told, 2).contains("refused"), "{told}");
    }
    assert_eq!(
        upstream.count(),
        3,
        "0, which found no mark, and the current tokens"
    );

    let (code, out, _) = run(
        &["probe", "--url", &url, "--path", CANARY, "--no-direct"],
        "",
    )
    .await;
    assert_eq!(code, Some(0), "{out}");
    assert!(
        out.contains("The fence held. No way around it was tried."),
        "{out}"
    );
}

/// No drill leaps past the bounds of a token: the refusal would be counted, and raise an alert.
#[tokio::test]
async fn drills_stay_within_the_bounds_of_a_token() {
    let upstream = Upstream::start().await;
    let routes = "routes:\n\
        - { path: '/all/{id}', resource: 'a:{id}', token: { max_jump: 1000, max: 5000 } }\n\
        - { path: '/once/{id}', resource: 'o:{id}', token: { max_jump: 1 }, reuse: once }\n";
    let config = Config::new(&upstream, &Store::sqlite()).with(routes);
    let proxy = Proxy::start(&config).await;
    let url = format!("http://{}", proxy.data());
    for current in 1..4 {
        for path in ["/all/c", "/once/c"] {
            let (code, told) = drill(&["--url", &url, "--path", path, "--no-direct"]).await;
            assert_eq!(code, Some(0), "{told}");
            let expected = format!("token {current}: 200");
            assert!(got(&told, 0).starts_with(&expected), "{told}");
        }
    }
    let refused = [("outcome", "implausible-token")];
    let refused = proxy.sum("fencepost_requests_total", &refused).await;
    assert!(refused.abs() < f64::EPSILON, "{refused}");
    // One that was told a token beyond the bound goes on above the mark.
    let flags = ["--url", &url, "--path", "/all/c", "--no-direct", "--token"];
    for number in ["4999", "5001"] {
        let (code, told) = drill(&[&flags[..], &[number]].concat()).await;
        assert_eq!(code, Some(0), "{told}");
    }
    assert_eq!(proxy.token("a:c").await, Some(5));
}

/// Where refusals do not name the mark, a token is given each time.
#[tokio::test]
async fn drills_pass_where_refusals_name_no_mark() {
    let upstream = Upstream::start().await;
    let routes = "disclose: false\nroutes:\n\
        - { path: '/any/{id}', resource: 'a:{id}' }\n\
        - { path: '/few/{id}', resource: 'f:{id}', token: { max_jump: 1000 } }\n";
    let config = Config::new(&upstream, &Store::sqlite()).with(routes);
    let proxy = Proxy::start(&config).await;
    let url = format!("http://{}", proxy.data());
    for _ in 0..3 {
        for path in ["/any/c", "/few/c"] {
            let flags = ["--url", &url, "--path", path, "--no-direct", "--token=7"];
            let (code, told) = drill(&flags).await;
            assert_eq!(code, Some(0), "{told}");
        }
    }
    let flags = ["--url", &url, "--path", "/any/c", "--no-direct"];
    let (code, told) = drill(&flags).await;
    assert_eq!(code, Some(1), "{told}");
    assert!(got(&told, 0).contains("use --token"), "{told}");
}

/// A token that is given does not have to be the latest: the next one is above the mark.
#[tokio::test]
async fn a_drill_goes_on_above_a_mark_that_is_ahead_of_its_token() {
    let upstream = Upstream::start().await;
    let proxy = proxy(&upstream).await;
    proxy.forward(put(CANARY).token(40)).await;
    let url = format!("http://{}", proxy.data());
    let flags = [
        "--url",
        &url,
        "--path",
        CANARY,
        "--no-direct",
        "--token",
        "7",
    ];
    let (code, told) = drill(&flags).await;
    assert_eq!(code, Some(0), "{told}");
    assert!(
        got(&told, 0).starts_with("token 41: 200, above the mark 40"),
        "{told}"
    );
    assert_eq!(proxy.token("order:__canary__").await, Some(41));
}

#[tokio::test]
async fn a_drill_fails_where_a_stale_write_passes() {
    let upstream = Upstream::start().await;
    let proxy = proxy(&upstream).await;
    let url = format!("http://{}", proxy.data());
    for path in ["/seen/c", "/open/c"] {
        let (code, told) = drill(&["--url", &url, "--path", path, "--no-direct"]).await;
        assert_eq!(code, Some(1), "{told}");
        assert_eq!(
            checks(&told),
            [("current-token", true), ("stale-token", false)]
        );
        assert!(
            got(&told, 1).contains("THE UPSTREAM TOOK A STALE WRITE"),
            "{told}"
        );
    }
}

#[tokio::test]
async fn a_drill_fails_where_somebody_answers_without_the_proxy() {
    let upstream = Upstream::start().await;
    let proxy = proxy(&upstream).await;
    let url = format!("http://{}", proxy.data());
    let drilled = async |direct: &str| {
        let (code, told) = drill(&["--url", &url, "--path", CANARY, "--direct", direct]).await;
        assert_eq!(code, Some(1), "{told}");
        assert_eq!(checks(&told)[2], ("direct", false), "{told}");
        got(&told, 2).to_owned()
    };
    let around = drilled(upstream.url()).await;
    assert!(
        around.contains("200: THE UPSTREAM ANSWERS WITHOUT THE PROXY"),
        "{around}"
    );
    let own = drilled(&url).await;
    assert!(own.contains("412: fencepost answers there"), "{own}");
    let nobody = drilled("http://no-such-host.invalid:80").await;
    assert!(nobody.contains("nothing was tried"), "{nobody}");
    // What speaks no HTTP/1.1, an HTTP/2 server say, is reached all the same.
    upstream.when(
        |head| head.get("x-fencing-token") == Some("1"),
        [Step::raw("\0\0\0\u{4}\0")],
    );
    let other = drilled(upstream.url()).await;
    assert!(other.contains("something answers"), "{other}");
}

/// A stale token is not sent behind a current one that did not pass: its refusal would prove
/// nothing.
#[tokio::test]
async fn a_drill_fails_where_the_current_token_does_not_pass() {
    let upstream = Upstream::start().await;
    let proxy = proxy(&upstream).await;
    let url = format!("http://{}", proxy.data());
    let not_there = nowhere();
    upstream.next([Step::answer("404 Not Found", "", "")]);
    for (url, expect, said) in [
        (&url, None, ": 404"),
        (&url, Some("--expect=404"), ": 200"),
        (&not_there, None, "refused"),
    ] {
        let flags = ["--url", url, "--path", CANARY, "--no-direct"];
        let (code, told) = drill(&[&flags[..], expect.as_slice()].concat()).await;
        assert_eq!(code, Some(1), "{told}");
        assert_eq!(
            checks(&told),
            [("current-token", false), ("stale-token", false)]
        );
        assert!(got(&told, 0).contains(said), "{told}");
        assert!(got(&told, 1).starts_with("not tried"), "{told}");
    }
}

#[tokio::test]
async fn wrong_usage_of_the_drill_is_told() {
    for (arguments, words) in [
        (&["--url", "http://a"][..], "--path"),
        (&["--url", "http://a", "--path", "x"], "begins with `/`"),
        (&["--url", "ftp://a", "--path", "/x"], "http:// or https://"),
        (
            &["--url", "http://a/b", "--path", "/x"],
            "no path behind the port",
        ),
        (&["--url", "http://u:p@a", "--path", "/x"], "are not sent"),
        (
            &["--url", "http://a", "--path", "/x", "--expect", "2xx"],
            "--expect",
        ),
        (&["--path", "/x", "--no-direct"], "--url"),
        (&["--url", "http://a", "--path", "/x"], "--direct"),
    ] {
        let (code, out, error) = run(&[&["probe"], arguments].concat(), "").await;
        assert_eq!(code, Some(2), "{arguments:?}: {out}{error}");
        assert!(error.contains(words), "{arguments:?}: {error}");
    }
}
