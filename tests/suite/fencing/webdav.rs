//! fencepost in front of a real `WebDAV` server.

use std::path::Path;

use super::two_resources::to;
use crate::support::nginx::Nginx;
use crate::support::store::tool;
use crate::support::{Config, Proxy, Store, or_return, put};

pub const EXTENSION: &str = "/usr/lib/nginx/modules/ngx_http_dav_ext_module.so";
const DAV: &str = "dav_methods PUT DELETE MKCOL COPY MOVE; create_full_put_path on;";

fn text(nginx: &Nginx, file: &str) -> Option<String> {
    std::fs::read_to_string(nginx.dir.path().join("root").join(file)).ok()
}

#[tokio::test]
async fn a_zombie_overwrites_nothing_by_a_move_or_a_copy() {
    let nginx = or_return!(tool("nginx"));
    let nginx = Nginx::start(&nginx, DAV, "").await;
    let routes = "{ routes: [
        { path: '/{*path}', resource: '{path}', methods: [PUT, DELETE, COPY, MOVE] },
        { path: '/kits/{kit}/{*rest}', resource: 'kit:{kit}', methods: [PUT, MOVE] },
        { path: '/tmp/{*rest}', mode: bypass },
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
                let moved = to(destination, method, source).token(5);
                proxy.refuse(moved, 400, "ambiguous-request").await;
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
}

/// With its extended DAV module.
pub async fn extended(nginx: &Path) -> Nginx {
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
