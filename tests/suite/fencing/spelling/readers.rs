//! The readers: nginx, Python and Node, each with what it would act on for a request target.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::support::eventually;
use crate::support::postgres::free_port;
use crate::support::process::Process;
use crate::support::skip::{is_skipped, lacks};
use crate::support::store::tool;
use crate::support::wait::soon;
use crate::support::wire::Wire;

/// The readings of a target by one reader, in each of its ways; `None`: it refuses.
pub type Things = Vec<Option<Vec<u8>>>;

/// Asks a script that takes lines of hex and answers with lines of hex columns.
fn ask(command: &mut Command, targets: &[Vec<u8>]) -> Vec<Things> {
    let dir = TempDir::new().expect("a temporary directory");
    let questions = dir.path().join("targets");
    let mut file = std::fs::File::create(&questions).expect("the directory is writable");
    for target in targets {
        writeln!(file, "{}", hex(target)).expect("the file is writable");
    }
    drop(file);
    let questions = std::fs::File::open(&questions).expect("it was just written");
    let output = command
        .stdin(questions)
        .stderr(Stdio::inherit())
        .output()
        .expect("the reader can be started");
    assert!(output.status.success(), "{command:?}: {}", output.status);
    let text = String::from_utf8(output.stdout).expect("hex");
    let answers: Vec<Things> = text.lines().map(things).collect();
    assert_eq!(answers.len(), targets.len(), "{command:?}");
    answers
}

fn things(line: &str) -> Things {
    let columns = line.split(' ');
    columns
        .map(|column| column.strip_prefix('=').map(unhex))
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    let digits: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.concat()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hex");
    (0..text.len()).step_by(2).map(digits).collect()
}

fn script(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/suite/fencing/spelling")
        .join(name)
}

/// Python's reading; `None`, and a line that says so, if it is not installed.
pub fn python(targets: &[Vec<u8>]) -> Option<Vec<Things>> {
    let python = tool("python3")?;
    let mut command = Command::new(python);
    Some(ask(command.arg(script("readers.py")), targets))
}

/// Node's reading; `None`, and a line that says so, if it is not installed.
pub fn node(targets: &[Vec<u8>]) -> Option<Vec<Things>> {
    let node = tool("node")?;
    let mut command = Command::new(node);
    command.arg("--no-deprecation").arg(script("readers.js"));
    Some(ask(&mut command, targets))
}

/// Readings by a script that needs a module of Debian's Python; `None`, and a line that
/// says so, if that is not installed.
pub fn script_of_python(module: &str, file: &str, targets: &[Vec<u8>]) -> Option<Vec<Things>> {
    let import = format!("import {module}");
    let has =
        |python: &&str| !is_skipped(module) && loads(Command::new(python).args(["-c", &import]));
    let Some(python) = ["python3", "/usr/bin/python3"].into_iter().find(has) else {
        lacks(module);
        return None;
    };
    Some(ask(Command::new(python).arg(script(file)), targets))
}

/// The same with Ruby.
pub fn ruby(library: &str, file: &str, targets: &[Vec<u8>]) -> Option<Vec<Things>> {
    let require = format!("require {library:?}");
    let has =
        |ruby: &&str| !is_skipped(library) && loads(Command::new(ruby).args(["-e", &require]));
    let Some(ruby) = ["ruby", "/usr/bin/ruby"].into_iter().find(has) else {
        lacks(library);
        return None;
    };
    Some(ask(Command::new(ruby).arg(script(file)), targets))
}

fn loads(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// nginx's readings: `$uri` with slashes merged, without, and the file behind an alias. `None`,
/// and a line that says so, if it is not installed.
pub async fn nginx(targets: &[Vec<u8>]) -> Option<Vec<Things>> {
    let binary = tool("nginx")?;
    let dir = TempDir::new().expect("a temporary directory");
    let here = dir.path().display();
    let ports = [free_port(), free_port(), free_port()];
    let configuration = format!(
        "daemon off; master_process off; pid {here}/pid; error_log {here}/error.log crit;
         events {{}}
         http {{
           access_log off; client_body_temp_path {here}/body; proxy_temp_path {here}/proxy;
           fastcgi_temp_path {here}/fastcgi; uwsgi_temp_path {here}/uwsgi; scgi_temp_path {here}/scgi;
           keepalive_requests 1000000; default_type text/plain;
           server {{ listen 127.0.0.1:{}; location / {{ return 200 \"$uri\"; }} }}
           server {{ listen 127.0.0.1:{}; merge_slashes off; location / {{ return 200 \"$uri\"; }} }}
           server {{ listen 127.0.0.1:{};
             location /things {{ alias /srv/stuff; return 200 \"$request_filename\"; }}
             location / {{ root /srv/rest; return 200 \"$request_filename\"; }}
           }}
         }}",
        ports[0], ports[1], ports[2]
    );
    let file = dir.path().join("nginx.conf");
    std::fs::write(&file, configuration).expect("the directory is writable");
    let _process = Process::start(
        Command::new(binary)
            .arg("-p")
            .arg(dir.path())
            .arg("-e")
            .arg(dir.path().join("start.log"))
            .arg("-c")
            .arg(&file),
    );
    let mut answers = vec![Vec::new(); targets.len()];
    for port in ports {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut wire = eventually("nginx to listen", || async {
            Wire::connect(address).await.ok()
        })
        .await;
        for (target, things) in targets.iter().zip(&mut answers) {
            let asked = soon("nginx's answer", one(&mut wire, target)).await;
            if asked.is_none() {
                wire = Wire::connect(address).await.expect("it listens");
            }
            things.push(asked);
        }
    }
    Some(answers)
}

/// One question; `None` if nginx refuses, and then the connection is over.
async fn one(wire: &mut Wire, target: &[u8]) -> Option<Vec<u8>> {
    let request = [b"GET ", target, b" HTTP/1.1\r\nHost: app.test\r\n\r\n"].concat();
    wire.send(&request).await.ok()?;
    let head = wire.head().await.ok()??;
    let mut body = Vec::new();
    let framing = head.response_framing(false);
    let read = wire.body(framing, |piece| body.extend_from_slice(piece));
    read.await.ok()?;
    (head.word(1) == "200").then_some(body)
}
