//! What a security reviewer asks before anything runs: which route takes this request, and
//! whether the store and the upstream are there.

use crate::support::proxy::fencepost;
use crate::support::run::{Exit, run_fed};
use crate::support::{Config, Proxy, Step, Store, Upstream, post, put};

/// An enforced route, and a wider one that lets a spelling of it through.
const WITH_A_HOLE: &str = "upstream: { url: 'http://127.0.0.1:9' }\nroutes:\n\
    - { path: '/orders/{id}', resource: 'order:{id}' }\n\
    - { path: '/{*rest}', mode: bypass }\n";

/// Runs the program with this on its standard input: exit code, standard output and error.
pub async fn run(arguments: &[&str], input: &str) -> (Option<i32>, String, String) {
    let mut command = fencepost();
    command.args(arguments);
    let Exit { code, out, err } = run_fed(command, input).await;
    (code, out, err)
}

/// The route, the key and the result of a request under this file, as they are explained.
async fn explained(file: &str, arguments: &[&str]) -> [String; 3] {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("f.yaml");
    std::fs::write(&path, file).expect("written");
    let path = path.to_string_lossy();
    let all = [&["explain", "--config", &path], arguments].concat();
    let (code, out, error) = run(&all, "").await;
    assert_eq!(code, Some(0), "{error}");
    let [method, target, ..] = arguments else {
        panic!("{arguments:?}")
    };
    assert_eq!(out.lines().next(), Some(&*format!("{method} {target}")));
    ["  route   ", "  key     ", "  result  "].map(|name| {
        let value = out.lines().find_map(|line| line.strip_prefix(name));
        value.unwrap_or_else(|| panic!("{out}")).to_owned()
    })
}

#[tokio::test]
async fn a_request_is_explained_by_its_route_and_key() {
    let [route, key, result] = explained(WITH_A_HOLE, &["PUT", "/orders/7/"]).await;
    assert_eq!((&*route, &*key), ("/{*rest} (bypass)", "-"));
    assert!(result.starts_with("passed without a check: "), "{result}");

    let [route, key, result] = explained(
        WITH_A_HOLE,
        &["PUT", "/orders/7.json", "-H", "X-Fencing-Token: 4"],
    )
    .await;
    assert_eq!((&*route, &*key), ("/orders/{id} (enforce)", "order:7.json"));
    assert!(result.starts_with("fenced: "), "{result}");

    let [.., dots] = explained(WITH_A_HOLE, &["PUT", "/a/../orders/7"]).await;
    assert!(
        dots.starts_with("refused, 400 ambiguous-request: "),
        "{dots}"
    );
    let json = "routes: [{ path: /pay, resource: 'pay:{json.id}' }]\n";
    let with_body = [
        "POST",
        "/pay",
        "-H",
        "X-Fencing-Token: 1",
        "-H",
        "Content-Type: application/json",
        "-d",
        "{\"id\":9}",
    ];
    let [_, key, _] = explained(json, &with_body).await;
    assert_eq!(key, "pay:9");
}

/// The proxy does what was explained.
#[tokio::test]
async fn the_explanation_is_what_the_proxy_does() {
    let upstream = Upstream::start().await;
    let routes = "routes: [{ path: '/orders/{id}', resource: 'order:{id}' }, \
        { path: '/seen/{id}', resource: 's:{id}', mode: observe }, \
        { path: '/open/{*rest}', mode: bypass }]\n";
    let proxy = Proxy::start(&Config::new(&upstream, &Store::sqlite()).with(routes)).await;
    for (request, method, target, token) in [
        (put("/orders/7"), "PUT", "/orders/7", None),
        (put("/orders/7/"), "PUT", "/orders/7/", None),
        (
            put("/orders/7;a"),
            "PUT",
            "/orders/7;a",
            Some("X-Fencing-Token: 1"),
        ),
        (
            put("/orders/8"),
            "PUT",
            "/orders/8",
            Some("X-Fencing-Token: 1"),
        ),
        (post("/seen/1"), "POST", "/seen/1", None),
        (post("/open/1"), "POST", "/open/1", None),
    ] {
        let mut arguments = vec![method, target];
        arguments.extend(token.iter().flat_map(|token| ["-H", token]));
        let [.., result] = explained(routes, &arguments).await;
        let request = if token.is_some() {
            request.token(1)
        } else {
            request
        };
        upstream.next([Step::ok()]);
        let answer = proxy.send(request).await;
        let outcome = answer.header("x-fencing-outcome");
        let refused = result.strip_prefix("refused, ").map(|refused| {
            let (refused, _) = refused.split_once(": ").expect("a reason");
            refused.split_once(' ').expect("a status and an outcome")
        });
        assert_eq!(
            outcome,
            refused.map(|(_, outcome)| outcome),
            "{target}: {result}"
        );
        if let Some((status, _)) = refused {
            assert_eq!(answer.status().to_string(), status, "{target}");
        }
    }
}

#[tokio::test]
async fn what_cannot_be_explained_is_told() {
    for (arguments, code, words) in [
        (&["PUT", "orders"][..], 2, "begins with `/`"),
        (&["PUT", "/a#b"], 2, "fragment"),
        (&["P UT", "/a"], 2, "invalid"),
        (&["PUT", "/a", "-H", "x"], 2, "Name: value"),
        (
            &["PUT", "/a", "--config", "/nowhere.yaml"],
            1,
            "cannot be read",
        ),
    ] {
        let (is, out, error) = run(&[&["explain"], arguments].concat(), "").await;
        assert_eq!(is, Some(code), "{arguments:?}: {out}{error}");
        assert!(error.contains(words), "{arguments:?}: {error}");
    }
}

#[tokio::test]
async fn a_check_reads_the_standard_input() {
    let (code, out, error) = run(&["check", "-"], WITH_A_HOLE).await;
    assert_eq!(code, Some(0), "{error}");
    let problem = out.lines().next().expect("a problem");
    let place = "warning: -:4: routes[1].path: ";
    assert!(problem.starts_with(place), "{out}");
    assert!(problem.contains("`/orders/x/`"), "{out}");
    assert!(out.contains("\n-: no errors, 1 warning\n"), "{out}");

    let files = "upstream: { url: 'http://a' }\nadmin: { token_file: /nowhere/token }\n";
    let (code, out, _) = run(&["check", "-"], files).await;
    assert_eq!(code, Some(0), "{out}");
    assert!(
        out.contains("warning: -:2: admin.token_file: /nowhere/token cannot be read: "),
        "{out}"
    );

    let (code, out, _) = run(&["check", "-"], "lissen: x\n").await;
    assert_eq!(code, Some(1), "{out}");
    assert!(out.starts_with("error: -:1: lissen: "), "{out}");
}

#[tokio::test]
async fn a_check_asks_the_store_and_the_upstream() {
    let upstream = Upstream::start().await;
    let there = format!("upstream: {{ url: '{}' }}\n", upstream.url());
    let (code, out, error) = run(&["check", "-", "--connect"], &there).await;
    assert_eq!(code, Some(0), "{out}{error}");
    assert_eq!(upstream.count(), 0, "no request was sent");

    // A port that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("bound");
    drop(free);
    let gone = format!(
        "upstream: {{ url: 'http://{address}' }}\n\
         store: {{ url: 'postgres://fencepost@{address}/none', namespace: a, timeout: 1s }}\n"
    );
    let (code, out, _) = run(&["check", "-", "--connect"], &gone).await;
    assert_eq!(code, Some(1), "{out}");
    for part in ["error: -: store: ", "error: -: upstream.url: "] {
        assert!(out.contains(part), "{part}: {out}");
    }
}
