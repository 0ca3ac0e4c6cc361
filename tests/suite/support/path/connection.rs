//! One connection over the path: a socket toward the proxy, one toward the upstream, and a
//! direction each way.

use std::io;
use std::net::Shutdown;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::io::ioctl_fionread;
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Cut, PathShared, Weather, filter, kernel};

/// The size of one read.
const PIECE: usize = 64 << 10;
/// The size of a trickle's reads, and how often it reads.
const LITTLE: usize = 2 << 10;
const NOW_AND_THEN: Duration = Duration::from_millis(80);
/// How often a closed window is looked behind.
const LOOK: Duration = Duration::from_millis(40);

/// A connection, as the path has its hand on it.
pub struct PathLink {
    proxy: TcpStream,
    upstream: TcpStream,
    weather: watch::Sender<Weather>,
    /// How it is cut, once `is_cut`.
    how: Mutex<Cut>,
    is_cut: CancellationToken,
}

/// How a direction has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The stream has.
    Closed,
    /// One of the sides was reset.
    Reset,
}

impl PathLink {
    pub fn has(&self, weather: Weather) {
        filter::from_proxy(&self.proxy, weather);
        filter::from_upstream(&self.upstream, weather);
        self.weather.send_replace(weather);
    }

    pub fn cut(&self, how: Cut) {
        *self.how.lock().expect("no panics") = how;
        self.is_cut.cancel();
    }

    /// Ends both sides with a reset.
    fn reset(&self) {
        for side in [&self.proxy, &self.upstream] {
            // Refused only by a socket that is closed already.
            let _ = side.set_zero_linger();
        }
    }

    /// The bytes in the proxy's kernel for this connection that were not acknowledged; `None`: it
    /// has given the connection up.
    fn behind(&self) -> Option<u64> {
        let (here, there) = (self.proxy.local_addr().ok()?, self.proxy.peer_addr().ok()?);
        kernel::unacknowledged(Some(there), here)
    }
}

/// Takes a connection of the proxy's to the upstream, until either is over.
pub async fn connection(proxy: TcpStream, desk: Arc<PathShared>) {
    let Ok(upstream) = TcpStream::connect(desk.upstream).await else {
        let _ = proxy.set_zero_linger();
        return;
    };
    for side in [&proxy, &upstream] {
        // Refused only by a socket that is closed already.
        let _ = side.set_nodelay(true);
    }
    let link = Arc::new(PathLink {
        proxy,
        upstream,
        weather: watch::Sender::new(Weather::Clear),
        how: Mutex::new(Cut::Reset),
        is_cut: CancellationToken::new(),
    });
    desk.register(&link);
    let both = async {
        let (up, down) = (up(&link, &desk), down(&link, &desk));
        tokio::pin!(up, down);
        let end = tokio::select! {
            end = &mut up => match end {
                End::Closed => down.await,
                End::Reset => end,
            },
            end = &mut down => match end {
                End::Closed => up.await,
                End::Reset => end,
            },
        };
        if end == End::Reset {
            link.reset();
        }
    };
    let cut = link.is_cut.run_until_cancelled(both).await.is_none();
    if cut && *link.how.lock().expect("no panics") == Cut::Reset {
        link.reset();
    }
}

/// From the proxy to the upstream.
async fn up(link: &PathLink, desk: &PathShared) -> End {
    let mut piece = vec![0; PIECE];
    let mut held = false;
    loop {
        if link.proxy.readable().await.is_err() {
            return End::Reset;
        }
        // A reset behind what can still be read has taken it back.
        if !matches!(link.proxy.take_error(), Ok(None)) {
            return End::Reset;
        }
        let weather = *link.weather.borrow();
        if weather == Weather::Shut && !drained(&link.proxy) && link.behind() != Some(0) {
            held = true;
            tokio::time::sleep(LOOK).await;
            continue;
        }
        if std::mem::take(&mut held) && link.behind().is_none() {
            return End::Reset;
        }
        let room = match weather {
            Weather::Trickle => &mut piece[..LITTLE],
            _ => &mut piece[..],
        };
        match link.proxy.try_read(room) {
            Ok(0) => {
                let _ = SockRef::from(&link.upstream).shutdown(Shutdown::Write);
                return End::Closed;
            }
            Ok(count) => {
                desk.linger().await;
                let reset = link.proxy.ready(Interest::ERROR);
                tokio::select! {
                    written = write(&link.upstream, &piece[..count]) => {
                        if written.is_err() {
                            return End::Reset;
                        }
                    }
                    // It takes back what an upstream that reads late has yet to get.
                    _ = reset => return End::Reset,
                }
                if weather == Weather::Trickle && !drained(&link.proxy) {
                    tokio::time::sleep(NOW_AND_THEN).await;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return End::Reset,
        }
    }
}

/// From the upstream to the proxy.
async fn down(link: &PathLink, desk: &PathShared) -> End {
    let mut piece = vec![0; PIECE];
    loop {
        if link.upstream.readable().await.is_err() {
            return End::Reset;
        }
        match link.upstream.try_read(&mut piece) {
            Ok(0) => {
                let _ = SockRef::from(&link.proxy).shutdown(Shutdown::Write);
                return End::Closed;
            }
            Ok(count) => {
                desk.linger().await;
                if write(&link.proxy, &piece[..count]).await.is_err() {
                    return End::Reset;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return End::Reset,
        }
    }
}

/// Returns whether there is nothing to read at the moment.
fn drained(stream: &TcpStream) -> bool {
    ioctl_fionread(stream).is_ok_and(|count| count == 0)
}

async fn write(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        to.writable().await?;
        match to.try_write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
