//! What a security reviewer asks before anything runs: which route takes this request, and
//! whether the store and the upstream are there.

use crate::support::postgres::free_port;
use crate::support::proxy::fencepost;
use crate::support::run::{Exit, run_fed};
use crate::support::{Upstream, fenced, request};

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

    let by_4 = ["PUT", "/orders/7.json", "-H", "X-Fencing-Token: 4"];
    let [route, key, result] = explained(WITH_A_HOLE, &by_4).await;
    assert_eq!((&*route, &*key), ("/orders/{id} (enforce)", "order:7.json"));
    assert!(result.starts_with("fenced: "), "{result}");

    let [.., dots] = explained(WITH_A_HOLE, &["PUT", "/a/../orders/7"]).await;
    let refused = "refused, 400 ambiguous-request: ";
    assert!(dots.starts_with(refused), "{dots}");
    let json = "routes: [{ path: /pay, resource: 'pay:{json.id}' }]\n";
    let with_body = "POST /pay -H X-Fencing-Token:1 -H Content-Type:application/json -d {\"id\":9}";
    let with_body: Vec<_> = with_body.split(' ').collect();
    let [_, key, _] = explained(json, &with_body).await;
    assert_eq!(key, "pay:9");
}

/// The proxy does what was explained.
#[tokio::test]
async fn the_explanation_is_what_the_proxy_does() {
    let routes = "routes: [{ path: '/orders/{id}', resource: 'order:{id}' }, \
        { path: '/seen/{id}', resource: 's:{id}', mode: observe }, \
        { path: '/open/{*rest}', mode: bypass }]\n";
    let (_upstream, proxy) = fenced(routes).await;
    for (method, target, token) in [
        ("PUT", "/orders/7", ""),
        ("PUT", "/orders/7/", ""),
        ("PUT", "/orders/7;a", "1"),
        ("PUT", "/orders/8", "1"),
        ("POST", "/seen/1", ""),
        ("POST", "/open/1", ""),
    ] {
        let (mut arguments, mut asks) = (vec![method, target], request(method, target));
        if !token.is_empty() {
            arguments.extend(["-H", "X-Fencing-Token: 1"]);
            asks = asks.token(token);
        }
        let [.., result] = explained(routes, &arguments).await;
        let answer = proxy.send(asks).await;
        let found = match answer.outcome() {
            None => String::new(),
            Some(outcome) => format!("refused, {} {outcome}: ", answer.status()),
        };
        assert!(result.starts_with(&found), "{target}: {result}, {found}");
        assert_eq!(result.starts_with("refused"), !found.is_empty(), "{target}");
    }
}

#[tokio::test]
async fn what_cannot_be_explained_is_told() {
    for (arguments, code, words) in [
        (&["PUT", "orders"][..], 2, "begins with `/`"),
        (&["PUT", "/a#b"], 2, "fragment"),
        (&["P UT", "/a"], 2, "invalid"),
        (&["PUT", "/a", "-H", "x"], 2, "Name: value"),
        (&["PUT", "/a", "--config", "/nowhere"], 1, "cannot be read"),
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
    let unread = "warning: -:2: admin.token_file: /nowhere/token cannot be read: ";
    for (file, ends, parts) in [
        (files, 0, [unread, ""]),
        (
            "lissen: x\nfrob: 1\n",
            1,
            ["error: -:1: lissen: ", "\nerror: -:2: frob: "],
        ),
    ] {
        let (code, out, _) = run(&["check", "-"], file).await;
        assert_eq!(code, Some(ends), "{out}");
        let told = parts.iter().all(|part| out.contains(part));
        assert!(told, "{parts:?}: {out}");
    }
}

#[tokio::test]
async fn a_check_asks_the_store_and_the_upstream() {
    let upstream = Upstream::start().await;
    let there = format!("upstream: {{ url: '{}' }}\n", upstream.url());
    let (code, out, error) = run(&["check", "-", "--connect"], &there).await;
    assert_eq!(code, Some(0), "{out}{error}");
    assert_eq!(upstream.count(), 0, "no request was sent");

    let address = format!("127.0.0.1:{}", free_port());
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
