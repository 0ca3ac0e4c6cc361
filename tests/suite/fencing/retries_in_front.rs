//! Something in front of fencepost that repeats requests: an unmodified nginx which passes a request
//! on to the next server after a 502. Whatever it repeats, fencepost cannot tell from the client's
//! own.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use super::lock_services::{listens, programs};
use crate::support::postgres::free_port;
use crate::support::process::Process;
use crate::support::{Config, Proxy, Step, Store, Upstream, put};

/// Returns an nginx with these settings in front of fencepost, which it knows as two servers.
async fn balancer(nginx: &Path, dir: &TempDir, settings: &str, fence: &Proxy) -> (Process, u16) {
    let (here, port, fence) = (dir.path().display(), free_port(), fence.data());
    let configuration = format!(
        "daemon off; master_process off; pid {here}/pid; error_log {here}/error.log;
         events {{}}
         http {{
           access_log off; client_body_temp_path {here}/body; proxy_temp_path {here}/proxy;
           fastcgi_temp_path {here}/fastcgi; uwsgi_temp_path {here}/uwsgi; scgi_temp_path {here}/scgi;
           upstream fence {{ server {fence}; server {fence}; }}
           server {{
             listen 127.0.0.1:{port};
             location / {{ proxy_pass http://fence; {settings} }}
           }}
         }}"
    );
    let file = dir.path().join("nginx.conf");
    std::fs::write(&file, configuration).expect("the directory is writable");
    let mut command = Command::new(nginx);
    command.arg("-p").arg(dir.path()).arg("-c").arg(&file);
    command.arg("-e").arg(dir.path().join("start.log"));
    let process = Process::start(&mut command);
    listens("nginx", port).await;
    (process, port)
}

/// How often the upstream gets a write whose answer is lost, with these settings of nginx and of the
/// route.
async fn arrivals(nginx: &Path, settings: &str, route: &str) -> usize {
    let (upstream, dir) = (
        Upstream::start().await,
        TempDir::new().expect("a directory"),
    );
    let config = Config::new(&upstream, &Store::sqlite()).route(route);
    let proxy = Proxy::start(&config).await;
    let (_nginx, port) = balancer(nginx, &dir, settings, &proxy).await;
    upstream.next([Step::Close]);
    let write = put("/orders/7").token(5).body("pay 10");
    let answer = write.send(([127, 0, 0, 1], port).into()).await;
    let repeated = upstream.count() > 1;
    assert_eq!(answer.status() == 200, repeated, "{}", answer.status());
    upstream.count()
}

#[tokio::test]
async fn a_balancer_that_repeats_a_502_writes_twice() {
    let Some([nginx]) = programs("a_balancer_that_repeats_a_502_writes_twice", ["nginx"]) else {
        return;
    };
    let repeats = "proxy_next_upstream error timeout http_502;";
    assert_eq!(arrivals(&nginx, repeats, "{}").await, 2);
    // The two ways to switch it off.
    assert_eq!(arrivals(&nginx, "proxy_next_upstream off;", "{}").await, 1);
    assert_eq!(arrivals(&nginx, repeats, "{ reuse: once }").await, 1);
}
