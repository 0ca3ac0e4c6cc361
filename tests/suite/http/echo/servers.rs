//! nginx and `HAProxy` as they are, set up to pass on what they get with as little of their own as
//! they can.

use std::net::SocketAddr;
use std::process::Command;

use tempfile::TempDir;

use crate::support::eventually;
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
    _process: Process,
    _dir: TempDir,
}

impl RealServer {
    /// `None`, and a line that says so, if it is not installed.
    pub async fn start(kind: ServerKind, to: SocketAddr) -> Option<Self> {
        let name = if kind.is_nginx() { "nginx" } else { "haproxy" };
        let binary = tool(name)?;
        let dir = TempDir::new().expect("a temporary directory");
        let port = free_port();
        let file = dir.path().join("configuration");
        let here = dir.path().display().to_string();
        let configuration = match kind {
            ServerKind::Nginx => nginx(&here, port, to, STREAMING),
            ServerKind::NginxAsInstalled => nginx(&here, port, to, ""),
            ServerKind::HaProxy => haproxy(port, to),
        };
        std::fs::write(&file, configuration).expect("the directory is writable");
        let mut command = Command::new(binary);
        match kind {
            ServerKind::Nginx | ServerKind::NginxAsInstalled => {
                let log = dir.path().join("start.log");
                command.arg("-p").arg(dir.path()).arg("-e").arg(log);
                command.arg("-c").arg(&file);
            }
            ServerKind::HaProxy => {
                command.arg("-db").arg("-f").arg(&file);
            }
        }
        let mut process = Process::start(&mut command);
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        eventually(&format!("{name} to listen"), || {
            let ended = process.ended();
            async move {
                assert!(ended.is_none(), "{name} ended instead of listening");
                tokio::net::TcpStream::connect(address).await.ok()
            }
        })
        .await;
        Some(Self {
            address,
            _process: process,
            _dir: dir,
        })
    }
}

/// How nginx is set up as the front of a service that streams.
const STREAMING: &str =
    "proxy_http_version 1.1; proxy_set_header Connection ''; proxy_buffering off;
    proxy_request_buffering off;";

fn nginx(here: &str, port: u16, to: SocketAddr, how: &str) -> String {
    format!(
        "daemon off; master_process off; pid {here}/pid; error_log {here}/error.log;
         events {{}}
         http {{
           access_log off; client_body_temp_path {here}/body; proxy_temp_path {here}/proxy;
           fastcgi_temp_path {here}/fastcgi; uwsgi_temp_path {here}/uwsgi; scgi_temp_path {here}/scgi;
           underscores_in_headers on; ignore_invalid_headers off; client_max_body_size 0;
           large_client_header_buffers 8 64k; keepalive_requests 100000;
           upstream behind {{ server {to} max_fails=0; keepalive 8; }}
           server {{
             listen 127.0.0.1:{port};
             location / {{
               proxy_pass http://behind; proxy_next_upstream off; proxy_set_header Host $http_host;
               proxy_pass_header Date; proxy_pass_header Server; proxy_buffer_size 128k; proxy_buffers 8 128k; {how}
             }}
           }}
         }}"
    )
}

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
