//! A server that speaks as much of Postgres's protocol as it takes to be handed a password.

use std::sync::{Arc, Mutex, PoisonError};

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// The code in place of a version by which a client asks for TLS.
const ASKS_FOR_TLS: u32 = 80_877_103;

/// Passwords that clients have sent, and `user/database`.
#[derive(Default)]
struct Told {
    passwords: Vec<String>,
    users: Vec<String>,
}

/// Ended when dropped.
pub struct FakePostgres {
    port: u16,
    told: Arc<Mutex<Told>>,
    task: JoinHandle<()>,
}

impl FakePostgres {
    /// Without `tls` it says that it has none.
    pub async fn start(tls: Option<ServerConfig>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let port = listener.local_addr().expect("an address").port();
        let told = Arc::<Mutex<Told>>::default();
        let tls = tls.map(|config| TlsAcceptor::from(Arc::new(config)));
        let heard = Arc::clone(&told);
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (tls, told) = (tls.clone(), Arc::clone(&heard));
                tokio::spawn(async move {
                    // A client that leaves is one that did not trust it.
                    let _ = greet(socket, tls, &told).await;
                });
            }
        });
        Self { port, told, task }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The passwords that it was told.
    pub fn heard(&self) -> Vec<String> {
        self.lock().passwords.clone()
    }

    /// The users that wanted to connect, and the databases.
    pub fn users(&self) -> Vec<String> {
        self.lock().users.clone()
    }

    pub fn forget(&self) {
        *self.lock() = Told::default();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for FakePostgres {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn greet(
    mut socket: TcpStream,
    tls: Option<TlsAcceptor>,
    told: &Mutex<Told>,
) -> std::io::Result<()> {
    let (mut code, mut rest) = first(&mut socket).await?;
    if code == ASKS_FOR_TLS {
        if let Some(tls) = tls {
            socket.write_all(b"S").await?;
            let mut stream = tls.accept(socket).await?;
            (_, rest) = first(&mut stream).await?;
            return ask(stream, &rest, told).await;
        }
        socket.write_all(b"N").await?;
        (code, rest) = first(&mut socket).await?;
    }
    assert_eq!(code >> 16, 3, "the protocol's version");
    ask(socket, &rest, told).await
}

/// The first message of a connection: its code, and what is behind it.
async fn first(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<(u32, Vec<u8>)> {
    let length = stream.read_u32().await?;
    let code = stream.read_u32().await?;
    let mut rest = vec![0; (length as usize).saturating_sub(8)];
    stream.read_exact(&mut rest).await?;
    Ok((code, rest))
}

/// Asks for the password in clear, and turns the client away.
async fn ask(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    startup: &[u8],
    told: &Mutex<Told>,
) -> std::io::Result<()> {
    let text = String::from_utf8_lossy(startup).into_owned();
    let fields: Vec<&str> = text.split('\0').collect();
    let field = |name: &str| {
        let at = fields.iter().position(|field| *field == name);
        at.and_then(|at| fields.get(at + 1)).copied().unwrap_or("")
    };
    let lock = || told.lock().unwrap_or_else(PoisonError::into_inner);
    lock()
        .users
        .push(format!("{}/{}", field("user"), field("database")));
    // AuthenticationCleartextPassword.
    stream.write_all(&[b'R', 0, 0, 0, 8, 0, 0, 0, 3]).await?;
    if stream.read_u8().await? != b'p' {
        return Ok(());
    }
    let length = stream.read_u32().await? as usize;
    let mut password = vec![0; length.saturating_sub(4)];
    stream.read_exact(&mut password).await?;
    password.pop();
    lock()
        .passwords
        .push(String::from_utf8_lossy(&password).into_owned());
    let fields = b"SFATAL\0VFATAL\0C28P01\0Mthat was all that was wanted\0\0";
    stream.write_u8(b'E').await?;
    let length = u32::try_from(fields.len() + 4).expect("it is short");
    stream.write_u32(length).await?;
    stream.write_all(fields).await?;
    stream.shutdown().await
}
