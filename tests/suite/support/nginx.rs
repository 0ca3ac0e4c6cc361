//! A real nginx with one server, in a directory of its own.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use super::postgres::free_port;
use super::process::Process;

pub struct Nginx {
    pub dir: TempDir,
    pub port: u16,
    _process: Process,
}

impl Nginx {
    /// Starts this nginx. `location`: what it does with every request. `http`: what else its
    /// configuration has beside the server. A relative path is below its directory.
    pub async fn start(nginx: &Path, location: &str, http: &str) -> Self {
        Self::start_with(nginx, "", location, http).await
    }

    /// As [`Self::start`], with lines in front of all others: modules to load.
    pub async fn start_with(nginx: &Path, modules: &str, location: &str, http: &str) -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        let (here, port) = (dir.path().display(), free_port());
        let configuration = format!(
            "{modules}
             daemon off; master_process off; pid {here}/pid; error_log {here}/error.log;
             events {{}}
             http {{
               access_log off; client_body_temp_path {here}/body; proxy_temp_path {here}/proxy;
               fastcgi_temp_path {here}/fastcgi; uwsgi_temp_path {here}/uwsgi; scgi_temp_path {here}/scgi;
               {http}
               server {{
                 listen 127.0.0.1:{port}; root {here}/root;
                 location / {{ {location} }}
               }}
             }}"
        );
        let file = dir.path().join("nginx.conf");
        std::fs::write(&file, configuration).expect("the directory is writable");
        std::fs::create_dir(dir.path().join("root")).expect("the directory is writable");
        let mut command = Command::new(nginx);
        command.arg("-p").arg(dir.path()).arg("-c").arg(&file);
        command.arg("-e").arg(dir.path().join("start.log"));
        let mut process = Process::start(&mut command);
        process.listens_on(port).await;
        Self {
            dir,
            port,
            _process: process,
        }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}
