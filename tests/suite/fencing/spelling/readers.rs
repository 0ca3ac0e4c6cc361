//! The readers: nginx, Python and Node, each with what it would act on for a request target.

use std::io::{Seek as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::nginx::Nginx;
use crate::support::postgres::free_port;
use crate::support::store::tool;
use crate::support::wait::soon;
use crate::support::wire::Wire;

/// The readings of a target by one reader, in each of its ways; `None`: it refuses.
pub type Things = Vec<Option<Vec<u8>>>;

fn unhex(text: &str) -> Vec<u8> {
    let digits = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hex");
    (0..text.len()).step_by(2).map(digits).collect()
}

/// The readings by a script that takes lines of hex and answers with lines of hex columns. `None`,
/// and a line that says so, if its program is not installed.
pub fn script(program: &str, file: &str, targets: &[Vec<u8>]) -> Option<Vec<Things>> {
    let mut command = Command::new(tool(program)?);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/fencing/spelling");
    let mut questions = tempfile::tempfile().expect("a temporary file");
    for target in targets {
        let digits: Vec<String> = target.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(questions, "{}", digits.concat()).expect("it is ours");
    }
    questions.rewind().expect("it is ours");
    command.arg(folder.join(file)).stdin(questions);
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.expect("the reader can be started");
    assert!(output.status.success(), "{command:?}: {}", output.status);
    let things = |line: &str| {
        let columns = line.split(' ').map(|column| column.strip_prefix('='));
        columns.map(|column| column.map(unhex)).collect()
    };
    let text = String::from_utf8(output.stdout).expect("hex");
    let answers: Vec<Things> = text.lines().map(things).collect();
    assert_eq!(answers.len(), targets.len(), "{command:?}");
    Some(answers)
}

/// nginx's readings: `$uri` with slashes merged, without, and the file behind an alias. `None`,
/// and a line that says so, if it is not installed.
pub async fn nginx(targets: &[Vec<u8>]) -> Option<Vec<Things>> {
    let binary = tool("nginx")?;
    let (apart, aliased) = (free_port(), free_port());
    let more = format!(
        "keepalive_requests 1000000; default_type text/plain;
         server {{ listen 127.0.0.1:{apart}; merge_slashes off; location / {{ return 200 \"$uri\"; }} }}
         server {{ listen 127.0.0.1:{aliased};
           location /things {{ alias /srv/stuff; return 200 \"$request_filename\"; }}
           location / {{ root /srv/rest; return 200 \"$request_filename\"; }}
         }}"
    );
    let nginx = Nginx::start(&binary, "return 200 \"$uri\";", &more).await;
    let mut answers = vec![Vec::new(); targets.len()];
    for port in [nginx.port, apart, aliased] {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut wire = Wire::connect(address).await.expect("it listens");
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
