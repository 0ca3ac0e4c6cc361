//! The path between one proxy and its upstream: a relay on TCP's level that stalls, delays and
//! cuts.
//!
//! It stands for routers, so nothing that it does may differ from what a network can do:
//!
//! - Bytes that its kernel has acknowledged have arrived. They are handed on at once, or within the
//!   [delay](Path::delay), whatever happens on the other side. So a stall is made where nothing is
//!   acknowledged: packets are dropped before TCP sees them ([`filter`]), or the window is closed.
//!   The proxy's kernel holds the bytes, sends them again by its own schedule, and delivers what it
//!   still has when the path is clear again.
//! - With the packets a reset may be lost. Then the far side never hears of it.
//! - A reset that is heard drops what was not handed on, and goes on to the other side.
//! - A window that is closed holds back the few bytes in front of it ([`WINDOW`]). They are handed
//!   on as soon as nothing is behind them, or with the rest. Where the sender's kernel has given up
//!   the rest, they are dropped.

mod connection;
mod filter;
mod kernel;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use self::connection::PathLink;
pub use self::filter::can_stall;
pub use self::kernel::unacknowledged;
use super::postgres::free_port;

/// The window toward the proxy that the kernel is asked for; it grants half as much again.
const WINDOW: u32 = 8 << 10;
/// How long the address of a closed listener may be in use.
const AGAIN: Duration = Duration::from_secs(10);
/// Between two looks at what the kernel holds.
const LOOK: Duration = Duration::from_millis(50);

/// The fate of the bytes that are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weather {
    #[default]
    Clear,
    /// No packet comes through, either way.
    Dead,
    /// Packets with data from the proxy are lost. Handshakes and resets come through.
    Hole,
    /// Packets with data from the upstream are lost.
    Mute,
    /// The window toward the proxy is closed.
    Shut,
    /// A little from the proxy is taken at a time.
    Trickle,
}

/// How a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Both sides get a reset.
    Reset,
    /// Both sides get an end of the stream.
    Close,
}

/// Stands between one proxy and one upstream. Dropped, it takes no more connections.
pub struct Path {
    address: SocketAddr,
    desk: Arc<PathShared>,
    /// Keeps the port while nobody listens on it.
    _place: TcpSocket,
    listening: Mutex<Option<(Arc<TcpListener>, JoinSet<()>)>>,
}

/// The state that all connections share.
struct PathShared {
    upstream: SocketAddr,
    /// Short sections, never across an await.
    state: Mutex<PathState>,
}

#[derive(Default)]
struct PathState {
    /// Of connections to come.
    weather: Weather,
    /// Each way.
    delay: Duration,
    links: Vec<Weak<PathLink>>,
}

impl Path {
    /// In front of the upstream at this address.
    pub fn start(upstream: SocketAddr) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let place = socket();
        place.bind(address).expect("the port is free");
        let state = Mutex::default();
        let path = Self {
            address,
            desk: Arc::new(PathShared { upstream, state }),
            _place: place,
            listening: Mutex::new(None),
        };
        path.listen();
        path
    }

    /// Where the proxy finds its upstream.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on connections are taken.
    pub fn listen(&self) {
        let listener = Arc::new(listening(self.address));
        let state = self.desk.lock();
        filter::lose(&*listener, state.weather, true);
        let mut task = JoinSet::new();
        task.spawn(Arc::clone(&self.desk).accept(Arc::clone(&listener)));
        *self.listening.lock().expect("no panics") = Some((listener, task));
    }

    /// From now on connections are refused; those there are go on.
    pub async fn refuse(&self) {
        let listening = self.listening.lock().expect("no panics").take();
        if let Some((_listener, mut task)) = listening {
            task.shutdown().await;
        }
    }

    /// The weather for all connections, of now and to come.
    pub fn weather(&self, weather: Weather) {
        let state = self.of_new(weather);
        for link in state.links.iter().filter_map(Weak::upgrade) {
            link.has(weather);
        }
    }

    /// Connections to come have clear weather; those of now keep theirs.
    pub fn clear_for_new(&self) {
        drop(self.of_new(Weather::Clear));
    }

    fn of_new(&self, weather: Weather) -> MutexGuard<'_, PathState> {
        let mut state = self.desk.lock();
        state.weather = weather;
        if let Some((listener, _)) = &*self.listening.lock().expect("no panics") {
            filter::lose(&**listener, weather, true);
        }
        state
    }

    /// From now on, what is handed on comes so much later, each way.
    pub fn delay(&self, each_way: Duration) {
        self.desk.lock().delay = each_way;
    }

    /// Cuts every connection of now; returns how many there were.
    pub fn cut(&self, how: Cut) -> usize {
        let links = std::mem::take(&mut self.desk.lock().links);
        let links = links.iter().filter_map(Weak::upgrade);
        links.map(|link| link.cut(how)).count()
    }

    /// How many bytes for the upstream are in kernels of the proxy's side, dead processes'
    /// included.
    pub fn undelivered(&self) -> u64 {
        unacknowledged(None, self.address).unwrap_or_default()
    }

    /// Waits until nothing is [undelivered](Self::undelivered); `false`: not within `patience`.
    pub async fn delivered(&self, patience: Duration) -> bool {
        let delivered = async {
            while self.undelivered() > 0 {
                sleep(LOOK).await;
            }
        };
        timeout(patience, delivered).await.is_ok()
    }
}

fn socket() -> TcpSocket {
    let socket = TcpSocket::new_v4().expect("a socket");
    let reused = socket.set_reuseaddr(true);
    let narrow = reused.and_then(|()| socket.set_recv_buffer_size(WINDOW));
    narrow.expect("a socket takes options");
    socket
}

/// Listens where a listener was just closed. A child process that another test is starting has that
/// one, too, between its fork and its exec: for so long the address is in use.
fn listening(address: SocketAddr) -> TcpListener {
    let began = Instant::now();
    loop {
        let socket = socket();
        let listener = socket.bind(address).and_then(|()| socket.listen(1024));
        match listener {
            Err(error) if error.kind() == ErrorKind::AddrInUse && began.elapsed() < AGAIN => {
                std::thread::sleep(Duration::from_millis(1));
            }
            listener => return listener.expect("the port is kept for it"),
        }
    }
}

impl PathShared {
    fn lock(&self) -> MutexGuard<'_, PathState> {
        self.state.lock().expect("nothing panics under this lock")
    }

    async fn accept(self: Arc<Self>, listener: Arc<TcpListener>) {
        loop {
            let (proxy, _) = listener.accept().await.expect("accepting works");
            tokio::spawn(connection::connection(proxy, Arc::clone(&self)));
        }
    }

    /// Takes in a connection; from here on it has the weather of all.
    fn register(&self, link: &Arc<PathLink>) {
        let mut state = self.lock();
        link.has(state.weather);
        state.links.retain(|link| link.strong_count() > 0);
        state.links.push(Arc::downgrade(link));
    }

    async fn linger(&self) {
        let delay = self.lock().delay;
        if !delay.is_zero() {
            sleep(delay).await;
        }
    }
}
