//! The scripted upstream: it notes every arrival, and plays the steps that the test has set for it.
//! Like real upstreams, it goes on working on a request after its caller has left.

mod connection;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustls::ServerConfig;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use self::connection::Notes;
use super::Must;
use super::client::Request;
use super::wait::soon;
use super::wire::Head;

/// One thing the upstream does with a request. Its body is read before the first step, except for
/// [`Step::Early`].
#[derive(Clone, Debug)]
pub enum Step {
    /// Leave the body unread until the next steps are done.
    Early,
    /// Wait until the test opens the gate; the caller may leave meanwhile.
    Wait(Gate),
    /// Work for so long.
    Work(Duration),
    /// Write these bytes.
    Send(Vec<u8>),
    /// Write these bytes again and again, until this many are written.
    Repeat(Vec<u8>, u64),
    /// Write these bytes again and again, until the caller leaves.
    Endless(Vec<u8>),
    /// Send back whatever comes, byte for byte, until the caller leaves; it is noted as the body.
    Echo,
    /// Close with a reset.
    Reset,
    /// Close cleanly.
    Close,
}

impl Step {
    /// A small 200.
    pub fn ok() -> Self {
        Self::answer("200 OK", "", "done\n")
    }

    /// A [`response`].
    pub fn answer(status: &str, headers: &str, body: &str) -> Self {
        Self::raw(&response(status, headers, body))
    }

    pub fn raw(bytes: &str) -> Self {
        Self::Send(bytes.as_bytes().to_vec())
    }
}

/// A whole response with a length. `headers`: lines, each with its CRLF.
pub fn response(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\n\r\n{body}")
}

/// Holds the upstream up until the test opens it.
#[derive(Clone, Debug)]
pub struct Gate(watch::Sender<bool>);

impl Gate {
    pub fn shut() -> Self {
        Self(watch::Sender::new(false))
    }

    pub fn open(&self) {
        self.0.send_replace(true);
    }

    async fn pass(&self) {
        let mut state = self.0.subscribe();
        let _ = state.wait_for(|open| *open).await;
    }
}

/// One request as the upstream saw it, and when.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub head: Head,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, String)>,
    /// The body has come whole.
    pub whole: bool,
    pub began: Instant,
    /// When the upstream was done with it: just before the last bytes of the answer.
    pub ended: Option<Instant>,
    /// The caller went away before the end.
    pub left: bool,
}

impl Arrival {
    pub fn method(&self) -> &str {
        self.head.word(0)
    }

    pub fn target(&self) -> &str {
        self.head.word(1)
    }

    pub fn token(&self) -> Option<u64> {
        self.head
            .get("x-fencing-token")
            .map(|token| token.parse().expect("a canonical decimal"))
    }

    pub fn resource(&self) -> Option<&str> {
        self.head.get("x-fencing-resource")
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

type Matcher = Box<dyn Fn(&Head) -> bool + Send>;
type Script = Box<dyn FnMut(&Head) -> Vec<Step> + Send>;

/// Gets the pieces of bodies in place of [`Arrival::body`], each with the number of its arrival.
type Sink = Box<dyn FnMut(usize, &[u8]) + Send>;

struct Shared {
    arrivals: Vec<Arrival>,
    /// How many arrivals the test has taken away.
    taken: usize,
    sink: Option<Sink>,
    connections: usize,
    rules: Vec<(Matcher, Vec<Step>)>,
    otherwise: Script,
}

/// The server. Ends when dropped.
pub struct Upstream {
    url: String,
    shared: Arc<Mutex<Shared>>,
    changed: watch::Sender<()>,
    _tasks: JoinSet<()>,
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Upstream {
    /// Starts on a free port of the loopback; answers a small 200 to all that no rule catches.
    pub async fn start() -> Self {
        Self::start_at(Ipv4Addr::LOCALHOST).await
    }

    /// As [`Self::start`], at this address of the loopback.
    pub async fn start_at(address: Ipv4Addr) -> Self {
        let listener = TcpListener::bind((address, 0)).must().await;
        let address = listener.local_addr().expect("it is bound");
        Self::serve(format!("http://{address}"), Listener::Tcp(listener), None)
    }

    /// Starts on a free port of the loopback, as `https://localhost:PORT`.
    pub async fn start_tls(config: ServerConfig) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").must().await;
        let address = listener.local_addr().expect("it is bound");
        let url = format!("https://localhost:{}", address.port());
        let tls = TlsAcceptor::from(Arc::new(config));
        Self::serve(url, Listener::Tcp(listener), Some(tls))
    }

    /// Starts on a Unix socket.
    pub fn start_unix(path: &Path) -> Self {
        let listener = UnixListener::bind(path).expect("the path is free");
        let url = format!("unix:{}", path.display());
        Self::serve(url, Listener::Unix(listener), None)
    }

    fn serve(url: String, listener: Listener, tls: Option<TlsAcceptor>) -> Self {
        let shared = Arc::new(Mutex::new(Shared {
            arrivals: Vec::new(),
            taken: 0,
            sink: None,
            connections: 0,
            rules: Vec::new(),
            otherwise: Box::new(|_| vec![Step::ok()]),
        }));
        let changed = watch::Sender::new(());
        let mut tasks = JoinSet::new();
        let desk = Notes {
            shared: Arc::clone(&shared),
            changed: changed.clone(),
            index: 0,
        };
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (desk, tls) = (desk.clone(), tls.clone());
                match &listener {
                    Listener::Tcp(listener) => {
                        let (stream, _) = listener.accept().must().await;
                        let set = stream.set_nodelay(true);
                        set.expect("a live socket takes options");
                        connections.spawn(desk.connection(stream, tls))
                    }
                    Listener::Unix(listener) => {
                        let (stream, _) = listener.accept().must().await;
                        connections.spawn(desk.connection(stream, tls))
                    }
                };
            }
        });
        Self {
            url,
            shared,
            changed,
            _tasks: tasks,
        }
    }

    /// The value of the proxy's `upstream.url`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Where it listens.
    ///
    /// # Panics
    /// If that is no port of the loopback.
    pub fn address(&self) -> SocketAddr {
        let address = self.url.strip_prefix("http://").expect("it is on TCP");
        address.parse().expect("it is on TCP")
    }

    /// The next request is treated so. Rules are used once, the first that fits first.
    pub fn next(&self, steps: impl Into<Vec<Step>>) {
        self.when(|_| true, steps);
    }

    /// The next request with this token is treated so.
    pub fn on_token(&self, token: u64, steps: impl Into<Vec<Step>>) {
        self.when(has_token(Some(token.to_string())), steps);
    }

    /// Holds the next request that has the token of this one.
    pub fn hold(&self, request: &Request) -> Gate {
        self.hold_when(has_token(request.get("X-Fencing-Token")))
    }

    /// Holds the next request.
    pub fn hold_next(&self) -> Gate {
        self.hold_when(|_| true)
    }

    fn hold_when(&self, fits: impl Fn(&Head) -> bool + Send + 'static) -> Gate {
        let gate = Gate::shut();
        self.when(fits, [Step::Wait(gate.clone()), Step::ok()]);
        gate
    }

    /// The next request that `fits` is treated so.
    pub fn when(&self, fits: impl Fn(&Head) -> bool + Send + 'static, steps: impl Into<Vec<Step>>) {
        self.lock().rules.push((Box::new(fits), steps.into()));
    }

    /// Sets the steps for all requests that no rule catches.
    pub fn otherwise(&self, script: impl FnMut(&Head) -> Vec<Step> + Send + 'static) {
        self.lock().otherwise = Box::new(script);
    }

    /// Keeps no body from now on: `sink` gets the pieces as they come, each with the
    /// number of its arrival.
    pub fn pour_bodies_into(&self, sink: impl FnMut(usize, &[u8]) + Send + 'static) {
        self.lock().sink = Some(Box::new(sink));
    }

    /// All arrivals so far, in order.
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.lock().arrivals.clone()
    }

    /// Takes the first arrival away, once it is whole.
    pub async fn take(&self) -> Arrival {
        let is_whole = |all: &[Arrival]| all.first().is_some_and(|first| first.whole);
        self.until("a whole arrival", is_whole).await;
        let mut shared = self.lock();
        shared.taken += 1;
        shared.arrivals.remove(0)
    }

    pub fn count(&self) -> usize {
        self.lock().arrivals.len()
    }

    /// How many connections were ever opened.
    pub fn connections(&self) -> usize {
        self.lock().connections
    }

    /// The only arrival.
    ///
    /// # Panics
    /// If there were none or more.
    pub fn only(&self) -> Arrival {
        let mut arrivals = self.arrivals();
        assert_eq!(arrivals.len(), 1, "one request, no other: {arrivals:#?}");
        arrivals.remove(0)
    }

    /// The latest arrival.
    ///
    /// # Panics
    /// If there was none.
    pub fn last(&self) -> Arrival {
        self.arrivals().pop().expect("something has arrived")
    }

    /// The tokens that arrived for a resource, in order.
    pub fn tokens(&self, resource: &str) -> Vec<u64> {
        let shared = self.lock();
        let of_it = |arrival: &&Arrival| arrival.resource() == Some(resource);
        let of_it = shared.arrivals.iter().filter(of_it);
        of_it.filter_map(Arrival::token).collect()
    }

    /// Waits until this many requests have arrived.
    pub async fn reached(&self, count: usize) {
        let what = format!("{count} arrivals at the upstream");
        self.until(&what, |all| all.len() >= count).await;
    }

    /// Waits until so much of the first request's body has arrived.
    pub async fn received(&self, bytes: usize) {
        let has = |all: &[Arrival]| all.first().is_some_and(|one| one.body.len() == bytes);
        let what = format!("{bytes} bytes of the first body");
        self.until(&what, has).await;
    }

    /// Waits until the arrivals are as the test wants them.
    pub async fn until(&self, what: &str, fits: impl Fn(&[Arrival]) -> bool) {
        let mut changed = self.changed.subscribe();
        soon(what, async {
            while !fits(&self.lock().arrivals) {
                changed.changed().must().await;
            }
        })
        .await;
    }

    /// Checks G2 on everything seen: for each resource, tokens arrive in order, and nothing of a
    /// newer token begins before everything of the older ones has ended.
    ///
    /// # Panics
    /// At the first violation, with the pair.
    pub fn assert_no_overtaking(&self) {
        let mut arrivals = self.arrivals();
        arrivals.retain(|arrival| arrival.resource().is_some() && arrival.token().is_some());
        // Stable: those of a resource stay in order.
        arrivals.sort_by(|one, other| one.resource().cmp(&other.resource()));
        for arrivals in arrivals.chunk_by(|one, next| one.resource() == next.resource()) {
            // The newest token so far, when the last request of any older one ended, and of it.
            let mut newest = None;
            let mut older_ended: Option<Instant> = None;
            let mut newest_ended: Option<Instant> = None;
            for arrival in arrivals {
                let (of, token) = (arrival.resource(), arrival.token());
                assert!(
                    newest <= token,
                    "{of:?}: {token:?} arrived after {newest:?}"
                );
                if newest < token {
                    older_ended = older_ended.max(newest_ended.take());
                    newest = token;
                }
                let early = older_ended.map(|end| end.saturating_duration_since(arrival.began));
                assert!(
                    early.is_none_or(|by| by.is_zero()),
                    "{of:?}: {token:?} began {early:?} before an older one had ended"
                );
                // A request that has not ended yet ends after all that has begun so far.
                newest_ended = newest_ended.max(Some(arrival.ended.unwrap_or_else(Instant::now)));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().expect("no test panics under this lock")
    }
}

fn has_token(token: Option<String>) -> impl Fn(&Head) -> bool {
    move |head| head.get("x-fencing-token") == token.as_deref()
}
