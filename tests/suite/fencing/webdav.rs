//! fencepost in front of a real `WebDAV` server.

use std::path::Path;

use crate::support::nginx::Nginx;
use crate::support::process::Process;
use crate::support::proxy::fencepost;
use crate::support::skip::lacks;
use crate::support::store::program;
use crate::support::store::tool;
use crate::support::{Config, Proxy, Request, Store, delete, get, or_return, put, request};

const EXTENSION: &str = "/usr/lib/nginx/modules/ngx_http_dav_ext_module.so";
const DAV: &str = "dav_methods PUT DELETE MKCOL COPY MOVE; create_full_put_path on;";

fn text(nginx: &Nginx, file: &str) -> Option<String> {
    std::fs::read_to_string(nginx.dir.path().join("root").join(file)).ok()
}

fn to(destination: &str, method: &str, target: &str) -> Request {
    request(method, target).header("Destination", destination)
}

#[tokio::test]
async fn a_zombie_overwrites_nothing_by_a_move_or_a_copy() {
    let nginx = or_return!(tool("nginx"));
    let nginx = Nginx::start(&nginx, DAV, "").await;
    let routes = "{ routes: [
        { path: '/{*path}', resource: '{path}', methods: [PUT, DELETE, COPY, MOVE] },
        { path: '/kits/{kit}/{*rest}', resource: 'kit:{kit}', methods: [PUT, MOVE] },
        { path: '/tmp/{*rest}', mode: bypass },
        { path: '/trash/{*rest}', mode: bypass, allow: [any-destination] },
    ] }";
    let proxy = Proxy::start(&Config::to(&nginx.url(), &Store::sqlite()).with(routes)).await;
    let put = |target: &str, token: u64, body: &str| put(target).token(token).body(body);
    for (request, status) in [
        (put("/x", 9, "holder"), 201),
        (put("/x.part", 5, "zombie"), 201),
        (put("/x", 5, "zombie"), 412),
        (put("/tmp/x", 5, "zombie"), 201),
    ] {
        assert_eq!(proxy.send(request).await.status(), status);
    }
    for source in ["/x.part", "/tmp/x"] {
        for destination in ["/x", "http://app.test/x", "/%78", "/tmp/../x"] {
            for method in ["MOVE", "COPY"] {
                let answer = proxy.send(to(destination, method, source).token(5)).await;
                assert_eq!(answer.status(), 400, "{method} {source} {destination}");
            }
        }
    }
    assert_eq!(text(&nginx, "x").as_deref(), Some("holder"));
    assert_eq!(text(&nginx, "x.part").as_deref(), Some("zombie"));

    // One resource for both.
    for (request, status) in [
        (put("/kits/a/part", 5, "old"), 201),
        (to("/kits/a/whole", "MOVE", "/kits/a/part").token(5), 204),
        (put("/kits/a/part", 6, "new"), 201),
        (
            to("http://app.test/kits/a/whole", "MOVE", "/kits/a/part").token(5),
            412,
        ),
        (to("/kits/b/whole", "MOVE", "/kits/a/part").token(6), 400),
    ] {
        assert_eq!(proxy.send(request).await.status(), status);
    }
    assert_eq!(text(&nginx, "kits/a/whole").as_deref(), Some("old"));
    assert_eq!(proxy.send(put("/trash/x", 5, "old")).await.status(), 201);
    let bypassed = to("/trash/y", "MOVE", "/trash/x");
    assert_eq!(proxy.send(bypassed).await.status(), 204);
    assert_eq!(text(&nginx, "trash/y").as_deref(), Some("old"));

    // A limit that the documents name: what a DELETE takes with it is not looked at.
    for (request, status) in [
        (put("/dir/x", 42, "below"), 201),
        (delete("/dir/x").token(2), 412),
        (delete("/dir/").token(2).header("Depth", "infinity"), 204),
    ] {
        assert_eq!(proxy.send(request).await.status(), status);
    }
    assert_eq!(text(&nginx, "dir/x"), None);
}

#[tokio::test]
async fn safe_methods_need_no_token() {
    let Some(nginx) = program("nginx").filter(|_| Path::new(EXTENSION).exists()) else {
        return lacks("nginx");
    };
    let nginx = extended(&nginx).await;
    let proxy = Proxy::start(&Config::to(&nginx.url(), &Store::sqlite()).with(WHOLE)).await;
    let created = proxy.send(put("/a").token(5).body("x")).await;
    assert_eq!(created.status(), 201, "{}", created.text());
    let list = || request("PROPFIND", "/").header("Depth", "1");
    let answer = proxy.send(list()).await;
    assert_eq!(answer.status(), 207, "{}", answer.text());
    assert!(
        answer.text().contains("<D:href>/a</D:href>"),
        "{}",
        answer.text()
    );
    proxy.stale(list().token(4)).await;
    proxy.forward(get("/a")).await;
}

/// One resource for the whole tree.
const WHOLE: &str = "routes: [{ path: '/{*path}', resource: dav, \
    methods: [PUT, DELETE, MKCOL, COPY, MOVE, PROPPATCH, LOCK, UNLOCK] }]";

async fn extended(nginx: &Path) -> Nginx {
    let modules = format!("load_module {EXTENSION};");
    // The module names class 2 alone, and litmus looks for class 1 as well.
    let location = format!(
        "{DAV} add_header DAV 1; dav_ext_methods PROPFIND OPTIONS LOCK UNLOCK; dav_ext_lock zone=locks;"
    );
    Nginx::start_with(
        nginx,
        &modules,
        &location,
        "dav_ext_lock_zone zone=locks:1m;",
    )
    .await
}

/// The lines of each of litmus's tests, in their order, against a tree of its own.
async fn litmus(litmus: &Path, prefix: &[&str], to: &str) -> Vec<String> {
    let dir = tempfile::tempdir().expect("a directory");
    let script = format!(
        "cd {}; exec {} -k ${{http_proxy:+--proxy=$http_proxy}} {to}/",
        dir.path().display(),
        litmus.display()
    );
    let mut command = std::process::Command::new("env");
    command.args(prefix).args(["sh", "-c", &script]);
    let mut process = Process::start(&mut command);
    process.exit().await;
    let output = process.output();
    let mut results: Vec<String> = Vec::new();
    for line in output.lines() {
        let line = line.rsplit('\r').next().unwrap_or(line);
        let line = line.trim_start_matches([' ', '.']);
        let number = line.split_once(". ").map(|(number, _)| number.parse());
        if let Some(Ok::<u8, _>(_)) = number {
            results.push(line.to_owned());
        } else if line.starts_with("pass") || line.starts_with("FAIL") {
            // It comes behind a warning, in a line of its own.
            let last = results.last_mut().expect("a test");
            last.extend([" ", line]);
        }
    }
    assert!(results.len() > 60, "{output}");
    results
}

#[tokio::test]
async fn litmus_finds_the_server_behind_the_proxy() {
    let Some(nginx) = program("nginx").filter(|_| Path::new(EXTENSION).exists()) else {
        return lacks("nginx");
    };
    let tester = or_return!(tool("litmus"));
    let straight = extended(&nginx).await;
    let straight = litmus(&tester, &[], &straight.url()).await;
    let passed = |lines: &[String]| lines.iter().filter(|line| line.contains("pass")).count();
    assert!(passed(&straight) > 50, "{straight:#?}");

    let open = extended(&nginx).await;
    let bypass = "routes: [{ path: /fenced, resource: a },\
         { path: '/{*path}', mode: bypass, allow: [any-destination] }]";
    let proxy = Proxy::start(&Config::to(&open.url(), &Store::sqlite()).with(bypass)).await;
    let bypassed = litmus(&tester, &[], &format!("http://{}", proxy.data())).await;

    let tree = extended(&nginx).await;
    let proxy = Proxy::start(&Config::to(&tree.url(), &Store::sqlite()).with(WHOLE)).await;
    let attach = fencepost();
    let attach = attach.get_program().to_str().expect("a path");
    let to = format!("http://{}", proxy.data());
    // By `http_proxy`, the client and the fencepost see the same host.
    let prefix = [
        attach,
        "attach",
        "--to",
        &to,
        "--http-proxy",
        "--token",
        "7",
        "--",
    ];
    let fenced = litmus(&tester, &prefix, &to).await;
    assert_eq!(proxy.token("dav").await, Some(7));

    // nginx deletes `/frag/` at `DELETE /frag/#ment`, of which litmus warns. fencepost takes no
    // fragment, and attach cuts it off, as nginx does.
    let fragment = |line: &&String| line.contains("delete_fragment");
    let found = straight.iter().find(fragment).expect("it is played");
    assert!(found.contains("WARNING"), "{found}");
    for (way, through, says) in [
        ("bypassed", bypassed, " pass"),
        ("fenced", fenced, found.as_str()),
    ] {
        let found = through.iter().find(fragment).expect("it is played");
        assert!(found.ends_with(says), "{way}: {found}");
        let differ: Vec<_> = straight
            .iter()
            .zip(&through)
            .filter(|(one, other)| one != other && !fragment(one))
            .collect();
        assert!(
            differ.is_empty() && straight.len() == through.len(),
            "{way}: {differ:#?}"
        );
    }
}
