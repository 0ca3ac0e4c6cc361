//! A scripted upstream: notes every arrival, and does with each what the test says. Like the real
//! ones it stands for, it goes on working on a request after its caller has left.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustls::ServerConfig;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::wait::soon;
use super::wire::{Framing, Head, Io, Wire};

/// One thing the upstream does with a request. Its body is read before the first step, but for
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
    /// Write these bytes again and again, until the caller leaves.
    Endless(Vec<u8>),
    /// Send back whatever comes, byte for byte, until the caller leaves; it is noted as the body.
    Echo,
    /// Close with a reset.
    Reset,
    /// Close in good order.
    Close,
}

impl Step {
    /// A small 200.
    pub fn ok() -> Self {
        Self::answer("200 OK", "", "done\n")
    }

    /// A whole response with a length. `headers`: lines, each with its CRLF.
    pub fn answer(status: &str, headers: &str, body: &str) -> Self {
        Self::raw(&format!(
            "HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}",
            body.len()
        ))
    }

    pub fn raw(bytes: &str) -> Self {
        Self::Send(bytes.as_bytes().to_vec())
    }
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

/// What the upstream saw of one request, and when.
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

struct Shared {
    arrivals: Vec<Arrival>,
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
    Tls(TcpListener, TlsAcceptor),
    Unix(UnixListener),
}

impl Upstream {
    /// Starts on a free port of the loopback; answers a small 200 to all that no rule catches.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("the loopback has free ports");
        let address: SocketAddr = listener.local_addr().expect("it is bound");
        Self::serve(format!("http://{address}"), Listener::Tcp(listener))
    }

    /// Starts on a free port of the loopback, as `https://localhost:PORT`.
    pub async fn start_tls(config: ServerConfig) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("the loopback has free ports");
        let port = listener.local_addr().expect("it is bound").port();
        let listener = Listener::Tls(listener, TlsAcceptor::from(Arc::new(config)));
        Self::serve(format!("https://localhost:{port}"), listener)
    }

    /// Starts on a Unix socket.
    pub fn start_unix(path: &Path) -> Self {
        let listener = UnixListener::bind(path).expect("the path is free");
        Self::serve(format!("unix:{}", path.display()), Listener::Unix(listener))
    }

    fn serve(url: String, listener: Listener) -> Self {
        let shared = Arc::new(Mutex::new(Shared {
            arrivals: Vec::new(),
            connections: 0,
            rules: Vec::new(),
            otherwise: Box::new(|_| vec![Step::ok()]),
        }));
        let changed = watch::Sender::new(());
        let mut tasks = JoinSet::new();
        let desk = Desk {
            shared: Arc::clone(&shared),
            changed: changed.clone(),
        };
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let io = match &listener {
                    Listener::Tcp(listener) => {
                        let (stream, _) = listener.accept().await.expect("accepting works");
                        stream
                            .set_nodelay(true)
                            .expect("a live socket takes options");
                        Io::Tcp(stream)
                    }
                    Listener::Tls(listener, acceptor) => {
                        let (stream, _) = listener.accept().await.expect("accepting works");
                        let (desk, acceptor) = (desk.clone(), acceptor.clone());
                        connections.spawn(async move {
                            // A caller that breaks the handshake off has never arrived.
                            if let Ok(stream) = acceptor.accept(stream).await {
                                desk.update(|shared| shared.connections += 1);
                                let io = Io::Tls(Box::new(stream));
                                desk.connection(Wire::new(io)).await;
                            }
                        });
                        continue;
                    }
                    Listener::Unix(listener) => {
                        Io::Unix(listener.accept().await.expect("accepting works").0)
                    }
                };
                desk.update(|shared| shared.connections += 1);
                connections.spawn(desk.clone().connection(Wire::new(io)));
            }
        });
        Self {
            url,
            shared,
            changed,
            _tasks: tasks,
        }
    }

    /// What the proxy's `upstream.url` says.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The next request is treated so. Rules are used once, the first that fits first.
    pub fn next(&self, steps: impl Into<Vec<Step>>) {
        self.when(|_| true, steps);
    }

    /// The next request with this token is treated so.
    pub fn on_token(&self, token: u64, steps: impl Into<Vec<Step>>) {
        let token = token.to_string();
        self.when(
            move |head| head.get("x-fencing-token") == Some(&token),
            steps,
        );
    }

    /// The next request that `fits` is treated so.
    pub fn when(&self, fits: impl Fn(&Head) -> bool + Send + 'static, steps: impl Into<Vec<Step>>) {
        self.lock().rules.push((Box::new(fits), steps.into()));
    }

    /// What is done with all that no rule catches.
    pub fn otherwise(&self, script: impl FnMut(&Head) -> Vec<Step> + Send + 'static) {
        self.lock().otherwise = Box::new(script);
    }

    /// All arrivals so far, in order.
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.lock().arrivals.clone()
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
        let arrivals = self.arrivals();
        assert_eq!(
            arrivals.len(),
            1,
            "one request and no other reaches the upstream: {arrivals:#?}"
        );
        arrivals.into_iter().next().expect("there is one")
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
        let of_it = |arrival: &&Arrival| arrival.resource() == Some(resource);
        self.lock()
            .arrivals
            .iter()
            .filter(of_it)
            .filter_map(Arrival::token)
            .collect()
    }

    /// Waits until so many requests have arrived.
    pub async fn reached(&self, count: usize) {
        self.until(&format!("{count} arrivals at the upstream"), |all| {
            all.len() >= count
        })
        .await;
    }

    /// Waits until the arrivals are as the test wants them.
    pub async fn until(&self, what: &str, fits: impl Fn(&[Arrival]) -> bool) {
        let mut changed = self.changed.subscribe();
        soon(what, async {
            while !fits(&self.lock().arrivals) {
                changed.changed().await.expect("the sender is ours");
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
        let mut by_resource: HashMap<String, Vec<Arrival>> = HashMap::new();
        for arrival in self.arrivals() {
            if let (Some(resource), Some(_)) = (arrival.resource(), arrival.token()) {
                by_resource
                    .entry(resource.to_owned())
                    .or_default()
                    .push(arrival);
            }
        }
        for (resource, arrivals) in by_resource {
            // The newest token so far, when the last request of any older one ended, and of it.
            let mut newest = None;
            let mut older_ended: Option<Instant> = None;
            let mut newest_ended: Option<Instant> = None;
            for arrival in arrivals {
                let token = arrival.token();
                assert!(
                    newest <= token,
                    "{resource}: {token:?} arrived after {newest:?}"
                );
                if newest < token {
                    older_ended = older_ended.max(newest_ended.take());
                    newest = token;
                }
                if let Some(ended) = older_ended {
                    assert!(
                        ended <= arrival.began,
                        "{resource}: {token:?} began {:?} before an older one had ended",
                        ended - arrival.began,
                    );
                }
                // What has not ended yet ends after all that has begun so far.
                newest_ended = newest_ended.max(Some(arrival.ended.unwrap_or_else(Instant::now)));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().expect("no test panics under this lock")
    }
}

/// What a connection's task needs.
#[derive(Clone)]
struct Desk {
    shared: Arc<Mutex<Shared>>,
    changed: watch::Sender<()>,
}

impl Desk {
    fn update<T>(&self, change: impl FnOnce(&mut Shared) -> T) -> T {
        let value = change(&mut self.shared.lock().expect("no test panics under this lock"));
        self.changed.send_replace(());
        value
    }

    async fn connection(self, mut wire: Wire) {
        while let Ok(Some(head)) = wire.head().await {
            let (index, steps) = self.update(|shared| {
                shared.arrivals.push(Arrival {
                    head: head.clone(),
                    body: Vec::new(),
                    trailers: Vec::new(),
                    whole: false,
                    began: Instant::now(),
                    ended: None,
                    left: false,
                });
                let fitting = shared.rules.iter().position(|(fits, _)| fits(&head));
                let steps = match fitting {
                    Some(at) => shared.rules.remove(at).1,
                    None => (shared.otherwise)(&head),
                };
                (shared.arrivals.len() - 1, steps)
            });
            let seen = Seen {
                desk: self.clone(),
                index,
            };
            let early = matches!(steps.first(), Some(Step::Early));
            if !early && seen.read_body(&mut wire, &head).await.is_err() {
                seen.end(true);
                return;
            }
            match seen.play(wire, steps).await {
                Some(open) => wire = open,
                None => return,
            }
            if early && seen.read_body(&mut wire, &head).await.is_err() {
                return;
            }
        }
    }
}

/// The note of one arrival.
struct Seen {
    desk: Desk,
    index: usize,
}

impl Seen {
    fn note<T>(&self, change: impl FnOnce(&mut Arrival) -> T) -> T {
        self.desk
            .update(|shared| change(&mut shared.arrivals[self.index]))
    }

    fn end(&self, left: bool) {
        self.note(|arrival| {
            arrival.ended.get_or_insert_with(Instant::now);
            arrival.left |= left;
        });
    }

    async fn read_body(&self, wire: &mut Wire, head: &Head) -> std::io::Result<()> {
        let framing = head.request_framing();
        if head.get("expect").is_some() && framing != Framing::Length(0) {
            wire.send(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        let piece = |bytes: &[u8]| self.note(|arrival| arrival.body.extend_from_slice(bytes));
        let trailers = wire.body(framing, piece).await?;
        self.note(|arrival| {
            arrival.trailers = trailers;
            arrival.whole = true;
        });
        Ok(())
    }

    /// Does the steps; `None` when the connection is over.
    async fn play(&self, mut wire: Wire, steps: Vec<Step>) -> Option<Wire> {
        let mut open = true;
        let last = steps.len() - 1;
        for (at, step) in steps.into_iter().enumerate() {
            match step {
                Step::Early => {}
                Step::Wait(gate) => open &= self.work(&mut wire, open, gate.pass()).await,
                Step::Work(time) => {
                    open &= self.work(&mut wire, open, tokio::time::sleep(time)).await;
                }
                Step::Send(bytes) => {
                    if at == last {
                        self.end(false);
                    }
                    open = open && wire.send(&bytes).await.is_ok();
                }
                Step::Endless(bytes) => {
                    while wire.send(&bytes).await.is_ok() {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    open = false;
                    self.note(|arrival| arrival.left = true);
                }
                Step::Echo => {
                    while let Ok(bytes) = wire.some().await
                        && !bytes.is_empty()
                    {
                        self.note(|arrival| arrival.body.extend_from_slice(&bytes));
                        if wire.send(&bytes).await.is_err() {
                            break;
                        }
                    }
                    open = false;
                }
                Step::Reset => {
                    self.end(false);
                    wire.reset();
                    return None;
                }
                Step::Close => open = false,
            }
        }
        self.end(!open);
        open.then_some(wire)
    }

    /// Works until `done`; notices, and does not mind, that the caller leaves. Returns whether the
    /// caller is still there.
    async fn work(&self, wire: &mut Wire, open: bool, done: impl Future<Output = ()>) -> bool {
        let mut done = std::pin::pin!(done);
        if !open {
            done.await;
            return false;
        }
        loop {
            tokio::select! {
                biased;
                () = &mut done => return true,
                more = wire.fill() => if !matches!(more, Ok(true)) {
                    self.note(|arrival| arrival.left = true);
                    done.await;
                    return false;
                }
            }
        }
    }
}
