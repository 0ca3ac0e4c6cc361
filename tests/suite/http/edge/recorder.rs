//! The recording upstream behind the corpus. It keeps every byte that comes, reads it by
//! [`strict`], and names the request in its answer (`X-Saw`). It gives up a connection at the first
//! byte out of place. The scripted upstream ([`crate::support::upstream`]) cannot stand in for it:
//! its reader is lenient, and keeps no bytes.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::strict::{self, Message};

/// The complaint about a request that its sender gave up.
pub const BROKEN_OFF: &str = "broken off";

/// One request that came, or what came in place of one.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    pub raw: Vec<u8>,
    /// The request, or what is wrong with it.
    pub read: Result<Message, String>,
}

impl RecordedRequest {
    /// Method and target.
    pub fn line(&self) -> String {
        match &self.read {
            Ok(message) => format!("{} {}", message.method, message.target),
            Err(why) => format!("({why})"),
        }
    }

    /// Returns whether a case's name is in it.
    pub fn names(&self, id: &str) -> bool {
        self.raw.windows(id.len()).any(|part| part == id.as_bytes())
    }
}

/// The server. Ends when dropped.
pub struct Recorder {
    pub address: SocketAddr,
    arrivals: Arc<Mutex<Vec<RecordedRequest>>>,
    _tasks: JoinSet<()>,
}

impl Recorder {
    /// Starts on a free port of the loopback.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("the loopback has free ports");
        let address = listener.local_addr().expect("it is bound");
        let arrivals = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        let kept = Arc::clone(&arrivals);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(connection(stream, Arc::clone(&kept)));
            }
        });
        Self {
            address,
            arrivals,
            _tasks: tasks,
        }
    }

    /// All that has come so far.
    pub fn arrivals(&self) -> Vec<RecordedRequest> {
        self.arrivals.lock().expect("no panic under it").clone()
    }
}

async fn connection(mut stream: TcpStream, kept: Arc<Mutex<Vec<RecordedRequest>>>) {
    let keep = |raw: &[u8], read| {
        let raw = raw.to_vec();
        let mut kept = kept.lock().expect("no panic under it");
        kept.push(RecordedRequest { raw, read });
    };
    let mut buffer = Vec::new();
    loop {
        let more = stream.read_buf(&mut buffer).await.unwrap_or(0);
        if more == 0 {
            if !buffer.is_empty() {
                keep(&buffer, Err(BROKEN_OFF.into()));
            }
            return;
        }
        let message = match strict::message(&buffer) {
            Err(None) => continue,
            Ok((message, used)) if used == buffer.len() => message,
            Ok((_, used)) => {
                return keep(&buffer, Err(format!("bytes behind its end, after {used}")));
            }
            Err(Some(why)) => return keep(&buffer, Err(why)),
        };
        let (method, target) = (&message.method, &message.target);
        let content = ["seen\n", ""][usize::from(method == "HEAD")];
        let answer = format!(
            "HTTP/1.1 200 OK\r\nX-Saw: {method} {target}\r\nContent-Length: 5\r\n\r\n{content}"
        );
        keep(&buffer, Ok(message));
        buffer.clear();
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}
