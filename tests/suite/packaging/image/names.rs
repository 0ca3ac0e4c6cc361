//! A name server that knows one name, and keeps what it was asked.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use tokio::net::UdpSocket;
use tokio::task::JoinSet;

/// The server. Ends when dropped.
pub struct NameServer {
    asked: Arc<Mutex<BTreeSet<String>>>,
    _task: JoinSet<()>,
}

impl NameServer {
    /// Starts on port 53 of the loopback; `known` is 127.0.0.1, and all else does not exist.
    pub async fn start(known: &'static str) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:53")
            .await
            .expect("the network is the test's own");
        let asked = Arc::new(Mutex::new(BTreeSet::new()));
        let seen = Arc::clone(&asked);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut query = [0; 512];
            loop {
                let (length, from) = socket.recv_from(&mut query).await.expect("it is bound");
                let (name, answer) = answer(&query[..length], known);
                seen.lock().expect("no panic holds it").insert(name);
                socket.send_to(&answer, from).await.expect("it is bound");
            }
        });
        Self { asked, _task: task }
    }

    /// The names that it was asked for.
    pub fn asked(&self) -> BTreeSet<String> {
        self.asked.lock().expect("no panic holds it").clone()
    }
}

/// The name in a query (RFC 1035, section 4.1), and the answer to it.
fn answer(query: &[u8], known: &str) -> (String, Vec<u8>) {
    let mut labels = Vec::new();
    let mut at = 12;
    while query[at] != 0 {
        let end = at + 1 + usize::from(query[at]);
        labels.push(String::from_utf8_lossy(&query[at + 1..end]).into_owned());
        at = end;
    }
    let name = labels.join(".");
    let question = &query[12..at + 5];
    let is_a = question[question.len() - 4..] == [0, 1, 0, 1];
    let (code, found) = if name == known {
        (0, u8::from(is_a))
    } else {
        (3, 0)
    };
    let mut answer = query[..2].to_vec();
    answer.extend([0x81, 0x80 | code, 0, 1, 0, found, 0, 0, 0, 0]);
    answer.extend(question);
    if found == 1 {
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4, 127, 0, 0, 1]);
    }
    (name, answer)
}
