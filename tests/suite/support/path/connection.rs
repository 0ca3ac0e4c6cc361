//! One connection over the path: a socket toward the proxy, one toward the upstream, and a
//! direction each way.

use std::io::{ErrorKind, Result};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::ioctl_fionread;
use socket2::{SockRef, Socket};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::watch;
use tokio::time::sleep;

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
    proxy: Socket,
    upstream: Socket,
    weather: watch::Sender<Weather>,
    cut: watch::Sender<Option<Cut>>,
}

impl PathLink {
    pub fn has(&self, weather: Weather) {
        filter::lose(&self.proxy, weather, true);
        filter::lose(&self.upstream, weather, false);
        self.weather.send_replace(weather);
    }

    pub fn cut(&self, how: Cut) {
        self.cut.send_replace(Some(how));
    }

    /// The bytes in the proxy's kernel for this connection that were not acknowledged; `None`: it
    /// has given the connection up.
    fn behind(&self) -> Option<u64> {
        let (here, there) = (self.proxy.local_addr().ok()?, self.proxy.peer_addr().ok()?);
        kernel::unacknowledged(there.as_socket(), here.as_socket()?)
    }
}

/// Takes a connection of the proxy's to the upstream, until either is over.
pub async fn connection(mut proxy: TcpStream, desk: Arc<PathShared>) {
    let Ok(mut upstream) = TcpStream::connect(desk.upstream).await else {
        let _ = proxy.set_zero_linger();
        return;
    };
    let [to_proxy, to_upstream] = [&proxy, &upstream].map(|side| {
        // Refused only by a socket that is closed already.
        let _ = side.set_nodelay(true);
        SockRef::from(side).try_clone().expect("a live socket")
    });
    let link = Arc::new(PathLink {
        proxy: to_proxy,
        upstream: to_upstream,
        weather: watch::Sender::new(Weather::Clear),
        cut: watch::Sender::new(None),
    });
    desk.register(&link);
    let ((from_proxy, to_proxy), (from_upstream, to_upstream)) = (proxy.split(), upstream.split());
    let both = async {
        let up = up(&link, &desk, from_proxy, to_upstream);
        tokio::try_join!(up, down(&desk, from_upstream, to_proxy))
    };
    let mut cut = link.cut.subscribe();
    let end = tokio::select! {
        both = both => both.map_or(Cut::Reset, |_| Cut::Close),
        Ok(how) = cut.wait_for(Option::is_some) => how.unwrap_or(Cut::Reset),
    };
    if end == Cut::Reset {
        for side in [&link.proxy, &link.upstream] {
            // Refused only by a socket that is closed already.
            let _ = side.set_linger(Some(Duration::ZERO));
        }
    }
}

/// From the proxy to the upstream; an error: one of the sides was reset.
async fn up(
    link: &PathLink,
    desk: &PathShared,
    from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
) -> Result<()> {
    let mut piece = vec![0; PIECE];
    let mut held = false;
    // Nothing to read at the moment.
    let drained = || ioctl_fionread(&link.proxy).is_ok_and(|count| count == 0);
    loop {
        from.readable().await?;
        // A reset behind what can still be read has taken it back.
        link.proxy.take_error()?.map_or(Ok(()), Err)?;
        let weather = *link.weather.borrow();
        if weather == Weather::Shut && !drained() && link.behind() != Some(0) {
            held = true;
            sleep(LOOK).await;
            continue;
        }
        if std::mem::take(&mut held) && link.behind().is_none() {
            return Err(ErrorKind::ConnectionReset.into());
        }
        let trickles = weather == Weather::Trickle;
        let room = if trickles { LITTLE } else { PIECE };
        let count = match from.try_read(&mut piece[..room]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            read => read?,
        };
        if count == 0 {
            return to.shutdown().await;
        }
        desk.linger().await;
        tokio::select! {
            written = to.write_all(&piece[..count]) => written?,
            // It takes back what an upstream that reads late has yet to get.
            _ = from.ready(Interest::ERROR) => return Err(ErrorKind::ConnectionReset.into()),
        }
        if trickles && !drained() {
            sleep(NOW_AND_THEN).await;
        }
    }
}

/// From the upstream to the proxy, likewise.
async fn down(desk: &PathShared, mut from: ReadHalf<'_>, mut to: WriteHalf<'_>) -> Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        let count = from.read(&mut piece).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        desk.linger().await;
        to.write_all(&piece[..count]).await?;
    }
}
