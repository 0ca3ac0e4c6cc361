//! One connection of a client, from its first byte to its end: socket, then TLS if there is any,
//! then HTTP of either version.

use std::net::IpAddr;
use std::sync::Arc;

use socket2::SockRef;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::either::Either;

use super::connection_limit::OpenConnection;
use super::connection_state::{ConnectionState, Signal};
use super::http1::{self, Site};
use super::{http2, tls};
use crate::config::LimitSettings;
use crate::metrics::{Limit, Metrics};
use crate::proxy::{Client, Proxy};
use crate::socket::{self, DetachedSocket, Socket};
use crate::timed_socket::TimedSocket;

/// How many bytes may wait in the kernel before a write finds no room. By default the kernel takes
/// up to megabytes, and reports room only once a third of them has gone. A slow client that reads
/// all the time would then look like one that does not read.
const MAX_UNSENT_BYTES: u32 = 128 << 10;

/// State that all connections share.
pub(super) struct Shared {
    pub proxy: Arc<Proxy>,
    pub limits: LimitSettings,
    pub metrics: Arc<Metrics>,
}

/// A client's connection that has its permits.
pub(super) struct Accepted {
    pub socket: DetachedSocket,
    /// The client's address, taken at accept because a socket whose client has left no longer has
    /// it. `None`: a Unix socket.
    pub ip: Option<IpAddr>,
    pub open: OpenConnection,
}

/// Serves a connection to its end, or until [`Signal::Cut`].
pub(super) async fn serve(shared: Arc<Shared>, accepted: Accepted) {
    let state = Arc::clone(&accepted.open.state);
    tokio::select! {
        biased;
        // First, so that the task is registered before anything looks for a signal.
        () = state.signalled(Signal::Cut) => {
            if state.cancels_too_much() {
                shared.metrics.limit(Limit::StreamResets);
            }
        }
        () = run(&shared, accepted, &state) => {}
    }
}

async fn run(shared: &Shared, accepted: Accepted, state: &Arc<ConnectionState>) {
    let Accepted { socket, ip, open } = accepted;
    let Ok(socket) = socket::attach(socket) else {
        return tracing::debug!("a connection could not be handed over");
    };
    prepare(&socket);
    let limits = &shared.limits;
    let socket = TimedSocket::new(socket, limits.write_timeout, move || open.write_timed_out());
    let mut client = Client::at(ip, limits.in_flight_per_connection);
    let stream = if let Some(tls) = shared.proxy.tls() {
        let limit = limits.head_timeout;
        let accepting = tls::accept(tls, socket, limit, &mut client, &shared.metrics);
        let accepted = tokio::select! {
            accepted = Box::pin(accepting) => accepted,
            // There is no request yet.
            () = state.signalled(Signal::Leave) => None,
        };
        let Some(stream) = accepted else { return };
        stream
    } else {
        Either::Left(socket)
    };
    let until = client.until;
    let site = Site {
        proxy: &shared.proxy,
        peer: &Arc::new(client),
        state,
        limits,
        metrics: &shared.metrics,
    };
    let serving = async {
        if let Some((stream, begun)) = http1::serve(stream, &site).await {
            // Boxed: a connection that speaks HTTP/1 does not need this memory.
            Box::pin(http2::serve(stream, begun, &site)).await;
        }
    };
    tokio::select! {
        biased;
        () = grow_old(until, state) => {}
        () = serving => {}
    }
}

fn prepare(socket: &Socket) {
    if let Either::Left(tcp) = socket {
        // Both fail only on a closed socket.
        let _ = tcp.set_nodelay(true);
        socket::keep_alive(tcp);
        let _ = SockRef::from(tcp).set_tcp_notsent_lowat(MAX_UNSENT_BYTES);
    }
}

/// Ends a connection that is too old: it gets [`Signal::Leave`] at `until`, and
/// [`CLIENT_MAX_AGE`](tls::CLIENT_MAX_AGE) again for its requests to end. Then this resolves.
/// `None`: it never is.
async fn grow_old(until: Option<Instant>, state: &ConnectionState) {
    let Some(until) = until else {
        return std::future::pending().await;
    };
    sleep_until(until).await;
    state.signal(Signal::Leave);
    sleep(tls::CLIENT_MAX_AGE).await;
}

#[cfg(test)]
mod tests {
    use super::tls::CLIENT_MAX_AGE;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_old_connection_leaves_and_is_cut_as_long_after_that() {
        let state = ConnectionState::new(0);
        let began = Instant::now();
        tokio::select! {
            () = grow_old(Some(began + CLIENT_MAX_AGE), &state) => {}
            () = async {
                sleep(CLIENT_MAX_AGE / 2).await;
                assert!(!state.is(Signal::Leave));
                sleep(CLIENT_MAX_AGE).await;
                assert!(state.is(Signal::Leave));
                std::future::pending::<()>().await;
            } => {}
        }
        assert_eq!(began.elapsed(), CLIENT_MAX_AGE * 2);
    }
}
