//! The service that a user would write today: nginx (`auth_request`) or Envoy (`ext_authz`) asks it
//! about each request. It checks the token and advances the mark in one Postgres transaction, and
//! answers 200 or 403.
//!
//! It does not fence: a request that has passed may still arrive after one with a newer token. The
//! yardstick measures what even that costs.

use std::error::Error;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_postgres::{Client, NoTls, Statement};

type Failure = Box<dyn Error + Send + Sync>;

/// As many connections as a pool usually has.
const CONNECTIONS: usize = 16;

/// One statement, and so one transaction: writes the token unless a newer one is there.
const ADVANCE: &str = "INSERT INTO marks (resource, token) VALUES ($1, $2) \
    ON CONFLICT (resource) DO UPDATE SET token = $2 WHERE marks.token <= $2 RETURNING token";

struct Pool {
    permits: Semaphore,
    idle: Mutex<Vec<(Client, Statement)>>,
}

impl Pool {
    async fn connect(dsn: &str) -> Result<Self, Failure> {
        let mut idle = Vec::new();
        for _ in 0..CONNECTIONS {
            let (client, connection) = tokio_postgres::connect(dsn, NoTls).await?;
            tokio::spawn(connection);
            let statement = client.prepare(ADVANCE).await?;
            idle.push((client, statement));
        }
        Ok(Self {
            permits: Semaphore::new(CONNECTIONS),
            idle: Mutex::new(idle),
        })
    }

    /// Whether the token is not older than the resource's mark, which is raised to it.
    async fn advance(&self, resource: &str, token: i64) -> Result<bool, Failure> {
        let _permit = self.permits.acquire().await?;
        let (client, statement) = self
            .idle
            .lock()
            .expect("no panic")
            .pop()
            .expect("one per permit");
        let found = client.query_opt(&statement, &[&resource, &token]).await;
        self.idle
            .lock()
            .expect("no panic")
            .push((client, statement));
        Ok(found?.is_some())
    }
}

/// The resource and the token of a head: nginx names the path in a header, Envoy asks with the path
/// itself.
fn read(head: &str) -> Option<(&str, i64)> {
    let mut lines = head.split("\r\n");
    let mut resource = lines.next()?.split(' ').nth(1)?;
    let mut token = None;
    for line in lines {
        let Some((name, value)) = line.split_once(": ") else {
            continue;
        };
        if name.eq_ignore_ascii_case("x-original-uri") {
            resource = value;
        } else if name.eq_ignore_ascii_case("x-fencing-token") {
            token = value.trim().parse().ok();
        }
    }
    Some((resource, token?))
}

/// Answers one request after the other. Those that ask have no body.
async fn serve(mut stream: TcpStream, pool: Arc<Pool>) -> Result<(), Failure> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::with_capacity(4096);
    loop {
        while let Some(end) = buffer.windows(4).position(|found| found == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
            buffer.drain(..end + 4);
            let allowed = match read(&head) {
                Some((resource, token)) => pool.advance(resource, token).await?,
                None => false,
            };
            let status = if allowed { "200 OK" } else { "403 Forbidden" };
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).await?;
        }
        if stream.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
    }
}

/// `today ADDRESS DSN`
#[tokio::main]
async fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().collect();
    let [_, address, dsn] = words.as_slice() else {
        return Err("usage: today ADDRESS DSN".into());
    };
    let pool = Arc::new(Pool::connect(dsn).await?);
    let listener = TcpListener::bind(address).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let pool = Arc::clone(&pool);
        tokio::spawn(async move {
            if let Err(problem) = serve(stream, pool).await {
                eprintln!("{problem}");
            }
        });
    }
}
