//! One connection through the relay: the client's socket, and a direction each way.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::frames::{Cycles, frame};
use super::{News, Point, RelayShared, Statement};

/// The codes of a first packet that asks for encryption: by TLS, by GSSAPI.
const ASKS_FOR_ENCRYPTION: [u32; 2] = [80_877_103, 80_877_104];

/// The state that the two directions of a connection share.
pub struct RelayLink {
    /// The client's side is to be reset.
    pub cut: CancellationToken,
    /// The client's side is closed.
    pub gone: CancellationToken,
    /// The cycles that the server has not answered yet.
    unanswered: Mutex<VecDeque<Option<Statement>>>,
}

/// Takes connections until dropped.
pub async fn accept(listener: TcpListener, desk: Arc<RelayShared>) {
    let mut connections = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await.expect("accepting works");
        client.set_nodelay(true).expect("a live socket");
        if desk.lock().refuses {
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
    let greeting = greet(&mut client, &desk);
    let greeted = link.cut.run_until_cancelled(greeting).await;
    let Some(Some(server)) = greeted else {
        reset(client);
        return;
    };
    let (read, write) = server.into_split();
    let (up, requests) = unbounded_channel();
    let (down, answers) = unbounded_channel();
    let (desk, link) = (&desk, &link);
    // In hands of its own, so that a cut is carried out at once, whatever is held.
    let front = async move {
        let talk = talk(&mut client, up, answers);
        if link.cut.run_until_cancelled(talk).await.is_none() {
            reset(client);
        } else {
            drop(client);
        }
        link.gone.cancel();
    };
    tokio::join!(
        front,
        upward(desk, link, requests, write),
        downward(desk, link, read, down),
    );
}

/// Takes the client's opening to the server. Encryption is declined, as a server without TLS does.
async fn greet(client: &mut TcpStream, desk: &RelayShared) -> Option<TcpStream> {
    let mut buffer = BytesMut::new();
    let first = loop {
        match frame(&mut buffer, true) {
            Some(packet) if !ASKS_FOR_ENCRYPTION.contains(&(&packet[4..]).get_u32()) => {
                break packet;
            }
            Some(_) => client.write_all(b"N").await.ok()?,
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

/// Reads and writes the client's socket, until either side is gone.
async fn talk(
    client: &mut TcpStream,
    up: UnboundedSender<Bytes>,
    mut answers: UnboundedReceiver<Bytes>,
) -> Option<()> {
    let (mut read, mut write) = client.split();
    let mut buffer = BytesMut::new();
    loop {
        tokio::select! {
            read = read.read_buf(&mut buffer) => {
                read.ok().filter(|read| *read > 0)?;
                while let Some(message) = frame(&mut buffer, false) {
                    up.send(message).ok()?;
                }
            }
            answer = answers.recv() => write.write_all(&answer?).await.ok()?,
        }
    }
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
        let Some((bytes, is_answered, statement)) = cycles.take(&message) else {
            continue;
        };
        if is_answered {
            desk.linger().await;
            if let Some(statement) = statement {
                if !desk.pass(Point::Before, statement, link).await {
                    return;
                }
                *desk.lock().passed.entry(statement).or_default() += 1;
            }
            link.unanswered
                .lock()
                .expect("no panics")
                .push_back(statement);
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
        while let Some(message) = frame(&mut buffer, false) {
            match (message[0], *news.borrow()) {
                (b'A', News::Lose) => {
                    desk.lock().lost += 1;
                    continue;
                }
                (b'A', News::Hold) => {
                    held.extend_from_slice(&message);
                    continue;
                }
                _ => answer.extend_from_slice(&message),
            }
            if message[0] == b'Z' {
                let answered = link.unanswered.lock().expect("no panics").pop_front();
                if answered.is_some() {
                    desk.linger().await;
                }
                if let Some(Some(statement)) = answered
                    && !desk.pass(Point::After, statement, link).await
                {
                    answer.clear();
                }
                give(&mut answer);
            } else if link.unanswered.lock().expect("no panics").is_empty() {
                give(&mut answer);
            }
        }
    }
}
