//! Accepting: no more connections than there are places and descriptors for. Where all places are taken,
//! one more is accepted, and the longest idle connection makes room for it; what is over waits in the
//! kernel's queue.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::Instant;

use super::idle::IdleConnections;
use super::slots::{ConnectionSlot, SlotPlace, Slots};
use crate::metrics::{Limit, Metrics};
use crate::proxy::Network;

/// The pause after an accept that found no descriptor: any one that is closed, here or elsewhere in the
/// process, ends the want, and nothing tells.
const PAUSE: Duration = Duration::from_millis(50);
/// How often somebody looks for room while a client waits. A connection that is asked to make room has
/// mostly gone by then.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// How many looks a connection that was asked may take to go before another one is asked.
const PATIENCE: usize = 10;
/// How many looks there are for a client whose address has its share. Then it is refused: meanwhile
/// nobody else is accepted.
const LOOKS: usize = 20;
/// How often the log says so.
const SAY_AGAIN: Duration = Duration::from_secs(10);

/// A bound listener of the data port.
#[derive(Debug)]
pub enum DataListener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A client's socket.
pub(super) enum AcceptedStream {
    /// With its client's address: a socket whose client has left since does not tell any more.
    Tcp(TcpStream, IpAddr),
    Unix(UnixStream),
}

/// A socket on its way from one runtime to another, which watches it then.
pub(super) enum Leaving {
    Tcp(std::net::TcpStream, IpAddr),
    Unix(std::os::unix::net::UnixStream),
}

impl Leaving {
    /// To be called in the runtime that has it from now on.
    pub(super) fn arrive(self) -> io::Result<AcceptedStream> {
        Ok(match self {
            Self::Tcp(socket, ip) => AcceptedStream::Tcp(TcpStream::from_std(socket)?, ip),
            Self::Unix(socket) => AcceptedStream::Unix(UnixStream::from_std(socket)?),
        })
    }
}

impl AcceptedStream {
    /// Takes it off the runtime that has accepted it.
    pub(super) fn leave(self) -> io::Result<Leaving> {
        Ok(match self {
            Self::Tcp(stream, ip) => Leaving::Tcp(stream.into_std()?, ip),
            Self::Unix(stream) => Leaving::Unix(stream.into_std()?),
        })
    }

    pub(super) fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(_, ip) => Some(*ip),
            Self::Unix(_) => None,
        }
    }
}

/// The listener with its limits.
pub(super) struct Acceptor {
    listener: DataListener,
    slots: Slots,
    idle: Arc<IdleConnections>,
    /// Accepted, and without a place.
    waiting: Option<AcceptedStream>,
    metrics: Arc<Metrics>,
    /// The latest accept found no descriptor.
    wanting: bool,
    said: Option<Instant>,
}

impl Acceptor {
    pub(super) fn new(
        listener: DataListener,
        slots: Slots,
        idle: Arc<IdleConnections>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            listener,
            slots,
            idle,
            waiting: None,
            metrics,
            wanting: false,
            said: None,
        }
    }

    /// The next connection that has a place. Dropping the future loses no connection.
    pub(super) async fn next(&mut self) -> (AcceptedStream, ConnectionSlot) {
        loop {
            let place = self.place().await;
            let accepted = match self.waiting.take() {
                Some(stream) => Ok(stream),
                None => self.accept().await,
            };
            match accepted {
                Ok(stream) => {
                    self.wanting = false;
                    let ip = stream.ip();
                    let now = Instant::now();
                    let make_room = |network| self.idle.close_longest_of(network, now);
                    if let Some(slot) = self.slots.of(place, ip, make_room) {
                        return (stream, slot);
                    }
                    tracing::debug!(
                        client = ip.map(|ip| ip.to_string()),
                        "closed: its address has limits.connections_per_client connections"
                    );
                }
                Err(error) => self.failed(&error).await,
            }
        }
    }

    /// A place: a free one, or that of an idle connection once a client waits for it.
    async fn place(&mut self) -> SlotPlace {
        if let Some(place) = self.slots.free() {
            return place;
        }
        loop {
            let of = match self.client().await {
                Ok(of) => of,
                Err(place) => return place,
            };
            for look in 1..=LOOKS {
                if let Ok(place) = tokio::time::timeout(LOOK_AGAIN, self.slots.freed()).await {
                    return place;
                }
                let in_vain = look == LOOKS && of.is_some();
                let leaving = self.idle.is_anyone_leaving(Instant::now());
                if !in_vain && (look % PATIENCE == 0 || !leaving) {
                    self.make_room(of);
                }
            }
            if of.is_some() {
                // Its address's connections stay. What it would take is the others'.
                self.waiting = None;
                self.slots.refused();
            }
        }
    }

    /// Waits for a client that waits for a place, and has a connection make room for it. Returns the
    /// network whose connections have to, if not all; or a place that has become free before.
    async fn client(&mut self) -> Result<Option<Network>, SlotPlace> {
        while self.waiting.is_none() {
            let accepted = tokio::select! {
                place = self.slots.freed() => return Err(place),
                accepted = self.accept() => accepted,
            };
            match accepted {
                Ok(stream) => {
                    let of = self.slots.over_share(stream.ip());
                    if self.make_room(of) || of.is_none() {
                        self.waiting = Some(stream);
                        return Ok(of);
                    }
                    // What it would take is the others'.
                    self.slots.refused();
                }
                Err(error) => self.failed(&error).await,
            }
        }
        self.make_room(None);
        Ok(None)
    }

    /// Has the longest idle connection make room: of all, or of one network; `false`: none is idle.
    fn make_room(&self, of: Option<Network>) -> bool {
        let now = Instant::now();
        match of {
            Some(network) => self.idle.close_longest_of(network, now),
            None => self.idle.close_longest(now),
        }
    }

    async fn accept(&self) -> io::Result<AcceptedStream> {
        Ok(match &self.listener {
            DataListener::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                AcceptedStream::Tcp(stream, address.ip().to_canonical())
            }
            DataListener::Unix(listener) => AcceptedStream::Unix(listener.accept().await?.0),
        })
    }

    /// accept(2) reports what is pending on the new socket as its own; only a want of descriptors or memory
    /// is the process's, and waiting helps.
    async fn failed(&mut self, error: &io::Error) {
        let ours = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
        if !ours
            .iter()
            .any(|ours| error.raw_os_error() == Some(ours.raw_os_error()))
        {
            tracing::debug!(%error, "a connection was gone before it was accepted");
            return;
        }
        if !self.wanting {
            self.wanting = true;
            self.metrics.limit(Limit::FileDescriptors);
            let now = Instant::now();
            if self.said.is_none_or(|said| now - said >= SAY_AGAIN) {
                self.said = Some(now);
                tracing::warn!(%error, "no connection can be accepted until descriptors are free: they wait. Raise the limit (ulimit -n, LimitNOFILE) or lower limits.connections");
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}
