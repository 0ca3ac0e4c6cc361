//! The way to the upstream: [sockets](socket) that check the lease before every write, and the
//! connections over them.
//!
//! There are two sets of connections. The *fenced* one writes only under the lease of the
//! incarnation in which its connection was opened. An instance may stop in the middle of a body,
//! and wake up after others have declared it dead. Its next write then finds the lease lapsed, and
//! the connection is reset. The *plain* one carries requests that are not fenced, and needs no
//! lease.
//!
//! An exchange has its connection to itself, over [HTTP/2](http2) too. While it runs, nothing else
//! is on that connection, so that giving it up hurts no other request. Idle connections are
//! [pooled](pool), and carry one exchange after the other.
//!
//! A request is sent in two steps. Over HTTP/2, [`Upstream::reserve`] waits for a connection on
//! which the upstream allows a stream. Only then the permit of a fenced one begins, and
//! [`Upstream::send`] hands the request over. So none waits in a queue that outlives its permit.
//!
//! A request goes over one connection: none is sent again (G5), not even one of which the kernel has
//! taken no byte. That is an error of its own, after which the client may send it again.

mod connect;
mod http1;
mod http2;
mod pool;
mod socket;

use std::cmp::Ordering;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, TryFutureExt as _};
use http::Uri;
use http::uri::{Authority, Scheme};
use http_body_util::Either;

pub(crate) use self::connect::SendError;
use self::connect::{Connecting, Tls};
pub(crate) use self::http1::Http1UpstreamConnection as Upgraded;
use self::http1::{Http1Body, Http1Exchange, Http1Pool};
use self::http2::{Http2Body, Http2Connection, Http2Pool};
use self::socket::LeaseGuard;
use crate::body::{BoxError, UpstreamRequest};
use crate::config::{HostPolicy, UpstreamSettings, UpstreamUrl};
use crate::fencing::lease::Lease;
use crate::http1::Response;
use crate::metrics::Metrics;
use crate::worker::PerWorker;

/// The connections of one kind.
type Connections = Either<Arc<Http1Pool>, Arc<Http2Pool>>;

/// The pool for one request, and over HTTP/2 the connection that it has to itself.
#[must_use = "it may hold a connection"]
pub(crate) enum Reserved {
    Http1(Arc<Http1Pool>),
    Http2(Http2Connection, Arc<Http2Pool>),
}

/// The upstream, and the two ways to reach it.
pub(crate) struct Upstream {
    scheme: Scheme,
    pub authority: Authority,
    /// The upstream speaks HTTP/2, by prior knowledge or ALPN: the authority takes the place of
    /// Host.
    pub h2: bool,
    lease: Arc<Lease>,
    /// Without a guard.
    connecting: Connecting,
    /// For requests with a permit: of the incarnation beside it. All workers have the same ones.
    fenced: PerWorker<(u64, Connections)>,
    /// For requests that are not fenced.
    plain: Connections,
}

impl Connecting {
    /// `incarnation`: of the permits that these connections are for.
    fn fenced(&self, h2: bool, lease: &Arc<Lease>, incarnation: u64) -> Connections {
        let guard = LeaseGuard {
            lease: Arc::clone(lease),
            incarnation,
            undelivered: self.settings.undelivered.0,
        };
        let guard = Some(guard);
        let fenced = Self {
            guard,
            ..self.clone()
        };
        fenced.connections(h2)
    }

    fn connections(self, h2: bool) -> Connections {
        if h2 {
            Either::Right(Http2Pool::new(self))
        } else {
            Either::Left(Http1Pool::new(self))
        }
    }
}

impl Upstream {
    /// # Errors
    ///
    /// Why it cannot be set up, for an operator.
    pub(crate) fn new(
        settings: &UpstreamSettings,
        lease: &Arc<Lease>,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, String> {
        let (scheme, authority, h2) = match &settings.url {
            UpstreamUrl::Http(authority) => (Scheme::HTTP, authority.as_str(), false),
            UpstreamUrl::Https(authority) => (Scheme::HTTPS, authority.as_str(), settings.http2),
            UpstreamUrl::H2c(authority) => (Scheme::HTTP, authority.as_str(), true),
            UpstreamUrl::Unix(_) => (Scheme::HTTP, "localhost", false),
        };
        let authority: Authority = authority
            .parse()
            .map_err(|error| format!("upstream.url: {authority} is not an authority: {error}"))?;
        let tls = (scheme == Scheme::HTTPS).then(|| Tls::new(&settings.tls, &authority, h2));
        let connecting = Connecting::new(settings, &authority, tls.transpose()?, metrics);
        let incarnation = lease.incarnation();
        let fenced = connecting.fenced(h2, lease, incarnation);
        Ok(Self {
            scheme,
            authority,
            h2,
            lease: Arc::clone(lease),
            plain: connecting.clone().connections(h2),
            connecting,
            fenced: PerWorker::new(|| (incarnation, fenced.clone())),
        })
    }

    /// Waits until a request can be sent. `incarnation`: of its permit. `None`: it is not fenced.
    ///
    /// # Errors
    ///
    /// Always [`SendError::NotSent`].
    pub(crate) async fn reserve(&self, incarnation: Option<u64>) -> Result<Reserved, SendError> {
        let connections = match incarnation {
            Some(incarnation) => self.fenced(incarnation)?,
            None => self.plain.clone(),
        };
        Ok(match connections {
            Either::Left(pool) => Reserved::Http1(pool),
            Either::Right(pool) => Reserved::Http2(pool.reserve().await?, pool),
        })
    }

    /// Sends a request over what is reserved for it. Resolves with the head of the response, with the
    /// body that follows. Dropping it midway resets the connection of a fenced request.
    pub(crate) fn send(
        &self,
        reserved: Reserved,
        request: UpstreamRequest,
    ) -> BoxFuture<'static, Result<Response<ResponseBody>, SendError>> {
        // Boxed, so that the futures around it stay small.
        match reserved {
            Reserved::Http1(pool) => {
                let answer = Http1Exchange::new(pool, request).response();
                answer.map_ok(|one| one.map(Either::Left)).boxed()
            }
            Reserved::Http2(connection, pool) => {
                // With the target byte for byte.
                let uri = Uri::builder()
                    .scheme(self.scheme.clone())
                    .authority(self.authority.clone())
                    .path_and_query(request.head.target.text.clone());
                let uri = uri.build().ok();
                let answer = http2::exchange(connection, pool, uri, request);
                answer.map_ok(|one| one.map(Either::Right)).boxed()
            }
        }
    }

    /// Opens a connection and sends nothing.
    ///
    /// # Errors
    ///
    /// Why there is none, in one line.
    pub(crate) async fn reach(&self) -> Result<(), String> {
        match &self.plain {
            Either::Left(pool) => pool.open().await.map(drop),
            Either::Right(pool) => pool.open().await.map(drop),
        }
    }

    /// The connections for permits of `incarnation`. After a rejoin, those of the previous
    /// incarnation can carry nothing new, so new ones are made. A permit of the previous
    /// incarnation gets none at all, since the sockets of the new one would let it write.
    fn fenced(&self, incarnation: u64) -> Result<Connections, SendError> {
        let own = self.fenced.own();
        match own.0.cmp(&incarnation) {
            Ordering::Equal => return Ok(own.1.clone()),
            Ordering::Greater => {
                let ended = "the lease under which this request was admitted has ended";
                return Err(SendError::NotSent(ended.to_owned()));
            }
            Ordering::Less => drop(own),
        }
        // Another worker may do the same now. The connections of both are of this incarnation.
        let connections = self.connecting.fenced(self.h2, &self.lease, incarnation);
        self.fenced.change(|own| {
            if own.0 < incarnation {
                *own = (incarnation, connections.clone());
            }
        });
        Ok(connections)
    }

    /// The Host that the upstream sees, given the client's.
    pub(crate) fn host<'a>(&'a self, client: Option<&'a [u8]>) -> &'a [u8] {
        let own = self.authority.as_str().as_bytes();
        match &self.connecting.settings.host {
            HostPolicy::Preserve => client.unwrap_or(own),
            HostPolicy::Rewrite => own,
            HostPolicy::Literal(host) => host.as_bytes(),
        }
    }
}

/// The body of a response, over HTTP/1 or HTTP/2. The rest of the request is sent as it is read.
/// Dropping it resets the connection of a fenced request, unless [`taken`] was true.
pub(crate) type ResponseBody = Either<Http1Body, Http2Body>;

/// Sends more of the request while the response is not read. Resolves only if the request breaks
/// off.
pub(crate) async fn upload(body: &mut ResponseBody) -> BoxError {
    poll_fn(|cx| match body {
        Either::Left(body) => body.poll_upload(cx),
        Either::Right(body) => body.poll_upload(cx),
    })
    .await
}

/// The pauses between two looks at a connection's send queue: at first, and at most.
const LOOK: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// Waits until the upstream's host has acknowledged all that was sent of a fenced request whose
/// response is whole. The rest of the request is never sent. `false`: the connection failed before.
///
/// The response itself mostly brings the acknowledgement, and the first look is enough. No event
/// tells of a later one, so the wait looks again and again.
pub(crate) async fn taken(body: &mut ResponseBody) -> bool {
    let (mut pause, longest) = LOOK;
    loop {
        if let Poll::Ready(taken) = poll_taken(body) {
            return taken;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
}

/// As [`taken`], without waiting.
pub(crate) fn poll_taken(body: &mut ResponseBody) -> Poll<bool> {
    match body {
        Either::Left(body) => body.taken(),
        Either::Right(body) => body.taken(),
    }
}

/// The tunnel that follows a 101.
pub(crate) fn into_upgraded(body: ResponseBody) -> Option<Upgraded> {
    match body {
        Either::Left(body) => body.into_upgraded(),
        Either::Right(_) => None,
    }
}

#[cfg(test)]
mod tests;
