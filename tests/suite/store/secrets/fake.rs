//! A server that speaks as much of Postgres's protocol as it takes to be handed a password.

use std::sync::{Arc, Mutex};

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// The code in place of a version by which a client asks for TLS.
const ASKS_FOR_TLS: u32 = 80_877_103;

/// The passwords that clients have sent, and `user/database`.
#[derive(Default)]
struct Told {
    passwords: Vec<String>,
    users: Vec<String>,
}

/// Ended when dropped.
pub struct FakePostgres {
    port: u16,
    told: Arc<Mutex<Told>>,
    _tasks: JoinSet<()>,
}

impl FakePostgres {
    /// Without `tls` it says that it has none.
    pub async fn start(tls: Option<ServerConfig>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let port = listener.local_addr().expect("an address").port();
        let told = Arc::<Mutex<Told>>::default();
        let tls = tls.map(|config| TlsAcceptor::from(Arc::new(config)));
        let heard = Arc::clone(&told);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (tls, told) = (tls.clone(), Arc::clone(&heard));
                // A client that leaves is one that did not trust it.
                tokio::spawn(async move { greet(socket, tls, &told).await });
            }
        });
        Self {
            port,
            told,
            _tasks: tasks,
        }
    }

    /// Its URL, for this user (with a password) at this host.
    pub fn url(&self, user: &str, host: &str, parameters: &str) -> String {
        format!("postgres://{user}@{host}:{}/db?{parameters}", self.port)
    }

    /// The passwords that it was told.
    pub fn heard(&self) -> Vec<String> {
        self.told.lock().expect("unpoisoned").passwords.clone()
    }

    /// The users that wanted to connect since the last call, and the databases.
    pub fn users(&self) -> Vec<String> {
        std::mem::take(&mut self.told.lock().expect("unpoisoned").users)
    }
}

async fn greet(
    mut socket: TcpStream,
    tls: Option<TlsAcceptor>,
    told: &Mutex<Told>,
) -> std::io::Result<()> {
    let (mut code, mut startup) = first(&mut socket).await?;
    if code == ASKS_FOR_TLS {
        if let Some(tls) = tls {
            socket.write_all(b"S").await?;
            let mut stream = tls.accept(socket).await?;
            (_, startup) = first(&mut stream).await?;
            return ask(stream, &startup, told).await;
        }
        socket.write_all(b"N").await?;
        (code, startup) = first(&mut socket).await?;
    }
    assert_eq!(code >> 16, 3, "the protocol's version");
    ask(socket, &startup, told).await
}

/// The first message of a connection: its code, and what is behind it.
async fn first(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<(u32, String)> {
    let length = stream.read_u32().await?;
    let code = stream.read_u32().await?;
    Ok((code, text(stream, length - 8).await?))
}

async fn text(stream: &mut (impl AsyncRead + Unpin), length: u32) -> std::io::Result<String> {
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes).await?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Asks for the password in clear, and turns the client away.
async fn ask(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    startup: &str,
    told: &Mutex<Told>,
) -> std::io::Result<()> {
    let field = |name: &str| {
        let mut fields = startup.split('\0').skip_while(|field| *field != name);
        fields.nth(1).unwrap_or_default()
    };
    let user = format!("{}/{}", field("user"), field("database"));
    told.lock().expect("unpoisoned").users.push(user);
    // AuthenticationCleartextPassword.
    stream.write_all(&[b'R', 0, 0, 0, 8, 0, 0, 0, 3]).await?;
    if stream.read_u8().await? != b'p' {
        return Ok(());
    }
    let length = stream.read_u32().await?;
    let password = text(&mut stream, length - 4).await?;
    let password = password.trim_end_matches('\0').to_owned();
    told.lock().expect("unpoisoned").passwords.push(password);
    stream
        .write_all(b"E\0\0\0\x38SFATAL\0VFATAL\0C28P01\0Mthat was all that was wanted\0\0")
        .await?;
    stream.shutdown().await
}
