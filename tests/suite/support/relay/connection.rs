//! One connection through the relay: the client's socket, and a direction each way.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::frames::{Cycle, Cycles, MessageKind, Opening, frame, opening};
use super::{News, Point, RelayShared};

/// The state that the two directions of a connection share.
pub struct RelayLink {
    /// The client's side is to be reset.
    pub cut: CancellationToken,
    /// The client's side is closed.
    pub gone: CancellationToken,
    /// The cycles that the server has not answered yet.
    unanswered: Mutex<VecDeque<MessageKind>>,
}

impl RelayLink {
    fn unanswered(&self) -> MutexGuard<'_, VecDeque<MessageKind>> {
        self.unanswered
            .lock()
            .expect("nothing panics under this lock")
    }
}

/// Takes connections until dropped.
pub async fn accept(listener: TcpListener, desk: Arc<RelayShared>) {
    let mut connections = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await.expect("accepting works");
        client.set_nodelay(true).expect("a live socket");
        if desk.refuses.load(Ordering::Relaxed) {
            reset(client);
            continue;
        }
        let link = RelayLink {
            cut: desk.lock().cut.child_token(),
            gone: CancellationToken::new(),
            unanswered: Mutex::default(),
        };
        connections.spawn(connection(client, Arc::clone(&desk), link));
        while connections.try_join_next().is_some() {}
    }
}

fn reset(stream: TcpStream) {
    // Refused only by a socket that is closed already.
    let _ = stream.set_zero_linger();
    drop(stream);
}

async fn connection(mut client: TcpStream, desk: Arc<RelayShared>, link: RelayLink) {
    let greeted = link
        .cut
        .run_until_cancelled(greet(&mut client, &desk))
        .await;
    let Some(Some(server)) = greeted else {
        reset(client);
        return;
    };
    let (read, write) = server.into_split();
    let (up, requests) = unbounded_channel();
    let (down, answers) = unbounded_channel();
    tokio::join!(
        front(client, &link, up, answers),
        upward(&desk, &link, requests, write),
        downward(&desk, &link, read, down),
    );
}

/// Takes the client's opening to the server. Encryption is declined, as a server without TLS does.
async fn greet(client: &mut TcpStream, desk: &RelayShared) -> Option<TcpStream> {
    let mut buffer = BytesMut::new();
    let first = loop {
        match opening(&mut buffer) {
            Some(Opening::AsksForEncryption) => client.write_all(b"N").await.ok()?,
            Some(Opening::Cancels(packet) | Opening::Starts(packet)) => break packet,
            None => {
                if client.read_buf(&mut buffer).await.ok()? == 0 {
                    return None;
                }
            }
        }
    };
    let mut server = TcpStream::connect(("127.0.0.1", desk.target)).await.ok()?;
    server.set_nodelay(true).ok()?;
    server.write_all(&first).await.ok()?;
    Some(server)
}

/// The client's socket. In hands of its own, so that a cut is carried out at once, whatever is
/// held.
async fn front(
    mut client: TcpStream,
    link: &RelayLink,
    up: UnboundedSender<Bytes>,
    mut answers: UnboundedReceiver<Bytes>,
) {
    let talk = async {
        let (mut read, mut write) = client.split();
        let mut buffer = BytesMut::new();
        let listen = async {
            while read.read_buf(&mut buffer).await.is_ok_and(|read| read > 0) {
                while let Some(message) = frame(&mut buffer) {
                    if up.send(message).is_err() {
                        return;
                    }
                }
            }
        };
        let speak = async {
            while let Some(bytes) = answers.recv().await {
                if write.write_all(&bytes).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = listen => {}
            () = speak => {}
        }
    };
    if link.cut.run_until_cancelled(talk).await.is_none() {
        reset(client);
    } else {
        drop(client);
    }
    link.gone.cancel();
}

/// Requests on their way to the server, until the client is gone and all that it sent has been
/// taken.
async fn upward(
    desk: &RelayShared,
    link: &RelayLink,
    mut requests: UnboundedReceiver<Bytes>,
    mut server: OwnedWriteHalf,
) {
    let mut cycles = Cycles::default();
    while let Some(message) = requests.recv().await {
        let Some(Cycle { bytes, kind }) = cycles.take(&message) else {
            continue;
        };
        if kind != MessageKind::Aside {
            desk.linger().await;
            if let MessageKind::Executes(statement) = kind {
                let here = |point| matches!(point, Point::Before(of) if of.takes(statement));
                if !desk.pass(here, link).await {
                    return;
                }
                *desk.lock().passed.entry(statement).or_default() += 1;
            }
            link.unanswered().push_back(kind);
        }
        if server.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

/// Answers on their way to the client, until the server has closed.
async fn downward(
    desk: &RelayShared,
    link: &RelayLink,
    mut server: OwnedReadHalf,
    client: UnboundedSender<Bytes>,
) {
    let mut news = desk.news.subscribe();
    let (mut buffer, mut answer, mut held) = (BytesMut::new(), BytesMut::new(), BytesMut::new());
    // A client that is gone gets nothing, and that is no reason to stop reading.
    let give = |bytes: &mut BytesMut| drop(client.send(bytes.split().freeze()));
    loop {
        tokio::select! {
            read = server.read_buf(&mut buffer) => {
                if !read.is_ok_and(|read| read > 0) {
                    give(&mut answer);
                    return;
                }
            }
            _ = news.changed() => {
                if *news.borrow_and_update() == News::Pass {
                    give(&mut held);
                }
                continue;
            }
        }
        while let Some(message) = frame(&mut buffer) {
            match (message[0], *news.borrow()) {
                (b'A', News::Lose) => {
                    desk.lost.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                (b'A', News::Hold) => {
                    held.extend_from_slice(&message);
                    continue;
                }
                _ => answer.extend_from_slice(&message),
            }
            if message[0] == b'Z' {
                let answered = link.unanswered().pop_front();
                if answered.is_some() {
                    desk.linger().await;
                }
                if let Some(MessageKind::Executes(statement)) = answered {
                    let here = |point| matches!(point, Point::After(of) if of.takes(statement));
                    if !desk.pass(here, link).await {
                        answer.clear();
                    }
                }
                give(&mut answer);
            } else if link.unanswered().is_empty() {
                give(&mut answer);
            }
        }
    }
}
