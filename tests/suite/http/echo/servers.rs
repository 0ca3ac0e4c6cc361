//! nginx and `HAProxy` as they are, set up to pass on what they get with as little of their own as
//! they can.

use std::net::SocketAddr;
use std::process::Command;

use tempfile::TempDir;

use crate::support::nginx::Nginx;
use crate::support::postgres::free_port;
use crate::support::process::Process;
use crate::support::store::tool;

/// The server in front of the proxy, or behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerKind {
    Nginx,
    /// It asks in HTTP/1.0, closes after each request, and reads all of a message before it passes
    /// it on.
    NginxAsInstalled,
    HaProxy,
}

impl ServerKind {
    pub fn is_nginx(self) -> bool {
        self != Self::HaProxy
    }
}

/// One of them, in front of one address. Ends when dropped.
pub struct RealServer {
    pub address: SocketAddr,
    _nginx: Option<Nginx>,
    _haproxy: Option<(Process, TempDir)>,
}

impl RealServer {
    /// `None`, and a line that says so, if it is not installed.
    pub async fn start(kind: ServerKind, to: SocketAddr) -> Option<Self> {
        let (port, nginx, haproxy) = if kind.is_nginx() {
            let how = match kind {
                ServerKind::NginxAsInstalled => "",
                _ => STREAMING,
            };
            let http =
                format!("{NGINX} upstream behind {{ server {to} max_fails=0; keepalive 8; }}");
            let nginx = Nginx::start(&tool("nginx")?, &format!("{PASS} {how}"), &http).await;
            (nginx.port, Some(nginx), None)
        } else {
            let binary = tool("haproxy")?;
            let (dir, port) = (TempDir::new().expect("a temporary directory"), free_port());
            let file = dir.path().join("configuration");
            std::fs::write(&file, self::haproxy(port, to)).expect("the directory is writable");
            let mut process = Process::start(Command::new(binary).arg("-db").arg("-f").arg(file));
            process.listens_on(port).await;
            (port, None, Some((process, dir)))
        };
        Some(Self {
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            _nginx: nginx,
            _haproxy: haproxy,
        })
    }
}

/// What nginx does of its own in general.
const NGINX: &str = "underscores_in_headers on; ignore_invalid_headers off; client_max_body_size 0;
    large_client_header_buffers 8 64k; keepalive_requests 100000;";
/// What it does with each request.
const PASS: &str =
    "proxy_pass http://behind; proxy_next_upstream off; proxy_set_header Host $http_host;
    proxy_pass_header Date; proxy_pass_header Server; proxy_buffer_size 128k; proxy_buffers 8 128k;";
/// How nginx is set up as the front of a service that streams.
const STREAMING: &str =
    "proxy_http_version 1.1; proxy_set_header Connection ''; proxy_buffering off;
    proxy_request_buffering off;";

fn haproxy(port: u16, to: SocketAddr) -> String {
    format!(
        "global
           maxconn 500
           tune.bufsize 65536
         defaults
           mode http
           timeout connect 20s
           timeout client 60s
           timeout server 60s
           retries 0
         frontend here
           bind 127.0.0.1:{port}
           default_backend behind
         backend behind
           server it {to}\n"
    )
}
