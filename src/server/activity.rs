//! What one connection has at work, and when it has to go: at the stop of the process, after
//! `limits.idle_timeout` without a request, to make room for another ([`super::idle`]), and when its
//! client opens requests only to take them back.
//!
//! Requests are counted here from their head's arrival to the end of their answer. An idle HTTP/1 connection is
//! the guard's to end, which sees the bytes; of HTTP/2 it sees that there are some, and a client that pings is
//! idle all the same.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Version;
use http_body::{Body, Frame, SizeHint};
use hyper_util::server::graceful::GracefulConnection;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::idle::Presence;
use crate::config::LimitSettings;
use crate::metrics::{Limit, Metrics};

/// How long a client has to close a connection that makes room.
const GOODBYE: Duration = Duration::from_secs(1);
/// Requests that a client may take back at once, however few it lets be answered.
const TAKEN_BACK: u64 = 256;
/// Taken back before this is at once; later it is a client that has waited for long enough.
const AT_ONCE: Duration = Duration::from_secs(1);

/// The steps in which the process leaves.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leave {
    /// It will stop: clients are told, and are still served.
    pub announced: CancellationToken,
    /// No new connection, and no new request on those there are.
    pub now: CancellationToken,
    /// Nothing more: what connections still have at work is cut.
    pub cut: CancellationToken,
}

/// What a connection has at work.
#[derive(Clone)]
pub(super) struct Activity(Arc<watch::Sender<Counts>>);

#[derive(Clone, Copy, Debug)]
struct Counts {
    /// At work now.
    open: usize,
    /// When the last one ended, or the connection began.
    since: Instant,
    /// It is to make room.
    told: bool,
    begun: u64,
    /// Taken back by the client at once.
    taken_back: u64,
    /// Known with the first request.
    version: Option<Version>,
}

/// A request at work on a connection.
#[must_use]
pub(super) struct AtWork {
    activity: Activity,
    began: Instant,
    answered: bool,
}

impl Activity {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Counts {
            open: 0,
            since: Instant::now(),
            told: false,
            begun: 0,
            taken_back: 0,
            version: None,
        })))
    }

    /// Since when no request is at work; `None`: one is, or the connection is to go anyway.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let counts = self.0.borrow();
        (counts.open == 0 && !counts.told).then_some(counts.since)
    }

    pub(super) fn is_at_work(&self) -> bool {
        self.0.borrow().open > 0
    }

    /// Resolves when the connection is to make room.
    pub(super) async fn told(&self) {
        // It cannot end: the sender is here.
        let _ = self.0.subscribe().wait_for(|counts| counts.told).await;
    }

    /// The connection is to make room.
    pub(super) fn tell(&self) {
        self.0.send_modify(|counts| counts.told = true);
    }

    #[cfg(test)]
    pub(super) fn is_told(&self) -> bool {
        self.0.borrow().told
    }

    /// It stays.
    pub(super) fn stays(&self) {
        self.0.send_modify(|counts| counts.told = false);
    }

    /// A request has arrived.
    pub(super) fn begin(&self, version: Version) -> AtWork {
        self.0.send_modify(|counts| {
            counts.open += 1;
            counts.begun += 1;
            counts.version = Some(version);
        });
        AtWork {
            activity: self.clone(),
            began: Instant::now(),
            answered: false,
        }
    }
}

impl AtWork {
    /// There is an answer; the request is at work until that has been handed over, or dropped.
    pub(super) fn answered<B>(mut self, body: B) -> Answer<B> {
        self.answered = true;
        Answer {
            body,
            _at_work: self,
        }
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.activity.0.send_modify(|counts| {
            counts.open -= 1;
            counts.since = Instant::now();
            counts.taken_back += u64::from(!self.answered && self.began.elapsed() < AT_ONCE);
        });
    }
}

/// The body of an answer.
pub(super) struct Answer<B> {
    body: B,
    _at_work: AtWork,
}

impl<B: Body + Unpin> Body for Answer<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Why a connection has to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Leave,
    Idle,
    MakeRoom,
    TakenBack,
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A connection of any kind. Boxed, since the compiler does not find the future of the many-layered type to be
/// `Send`.
pub(super) type Served =
    Pin<Box<dyn GracefulConnection<Error = BoxError, Output = Result<(), BoxError>> + Send>>;

/// Serves a connection to its end.
pub(super) async fn drive(
    mut connection: Served,
    presence: &Presence,
    leave: &Leave,
    limits: &LimitSettings,
    metrics: &Metrics,
) -> Result<(), BoxError> {
    let activity = &presence.activity;
    loop {
        let why = tokio::select! {
            ended = connection.as_mut() => return ended,
            why = due(activity, leave, limits) => why,
        };
        match why {
            Due::TakenBack => {
                // At once: a GOAWAY in good order would wait for what such a client does not send.
                metrics.limit(Limit::StreamResets);
                return Ok(());
            }
            Due::Leave => {
                connection.as_mut().graceful_shutdown();
                return connection.await;
            }
            Due::Idle => {
                metrics.limit(Limit::IdleTimeout);
                return goodbye(connection, activity, limits.head_timeout).await;
            }
            Due::MakeRoom => {
                // What has come is read first: a request that has begun is served.
                if let Poll::Ready(ended) = futures_util::poll!(connection.as_mut()) {
                    return ended;
                }
                if presence.is_busy(Instant::now()) {
                    presence.stays();
                    continue;
                }
                metrics.limit(Limit::IdleClosed);
                tracing::debug!("an idle connection is closed to make room for a new one");
                return goodbye(connection, activity, GOODBYE).await;
            }
        }
    }
}

/// Ends a connection on which nothing is at work. HTTP/2 does it in two steps, and waits for the
/// client in between: for so long, and for the end of requests that came meanwhile.
async fn goodbye(
    mut connection: Served,
    activity: &Activity,
    patience: Duration,
) -> Result<(), BoxError> {
    connection.as_mut().graceful_shutdown();
    loop {
        match tokio::time::timeout(patience, connection.as_mut()).await {
            Ok(ended) => return ended,
            Err(_) if activity.is_at_work() => {}
            Err(_) => return Ok(()),
        }
    }
}

/// Resolves once the connection has to go.
async fn due(activity: &Activity, leave: &Leave, limits: &LimitSettings) -> Due {
    let mut counts = activity.0.subscribe();
    let mut announced = false;
    loop {
        let now = *counts.borrow_and_update();
        if now.told {
            return Due::MakeRoom;
        }
        if now.taken_back > TAKEN_BACK && now.taken_back * 2 > now.begun {
            return Due::TakenBack;
        }
        // GOAWAY comes first and the end later, so it can go out while clients are still served. An HTTP/1
        // client is told with its next answer.
        if announced && now.version == Some(Version::HTTP_2) {
            return Due::Leave;
        }
        let patience = match now.version {
            _ if now.open > 0 => None,
            Some(Version::HTTP_2) => Some(limits.idle_timeout),
            // The guard is first where it can tell.
            None => Some(limits.idle_timeout + limits.head_timeout),
            Some(_) => None,
        };
        tokio::select! {
            _ = counts.changed() => {}
            () = leave.now.cancelled() => return Due::Leave,
            () = leave.announced.cancelled(), if !announced => announced = true,
            () = after(patience) => return Due::Idle,
        }
    }
}

async fn after(patience: Option<Duration>) {
    match patience {
        Some(patience) => tokio::time::sleep(patience).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    const IDLE: Duration = Duration::from_secs(75);

    fn limits() -> LimitSettings {
        LimitSettings {
            in_flight: 1,
            in_flight_per_connection: 1,
            in_flight_per_peer: None,
            in_flight_per_resource: None,
            connections: 1,
            connections_per_peer: None,
            http2_streams: 1,
            head_timeout: Duration::from_secs(10),
            idle_timeout: IDLE,
            write_timeout: Duration::from_secs(30),
            header_bytes: 1,
            header_count: 1,
            target_bytes: 1,
            body_memory: 1,
            key_bytes: 1024,
            new_resources: None,
            new_resources_per_peer: None,
            body_rate: None,
        }
    }

    async fn answer(activity: &Activity) {
        drop(activity.begin(Version::HTTP_2).answered(""));
        tokio::task::yield_now().await;
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_at_work_is_not_idle() {
        let (activity, leave, limits) = (Activity::new(), Leave::default(), limits());
        let at_work = activity.begin(Version::HTTP_2);
        let mut due = pin!(due(&activity, &leave, &limits));
        assert!(tokio::time::timeout(IDLE * 10, due.as_mut()).await.is_err());
        let body = at_work.answered("unread");
        assert!(tokio::time::timeout(IDLE * 10, due.as_mut()).await.is_err());
        drop(body);
        assert!(tokio::time::timeout(IDLE / 2, due.as_mut()).await.is_err());
        answer(&activity).await;
        assert!(
            tokio::time::timeout(IDLE * 2 / 3, due.as_mut())
                .await
                .is_err()
        );
        assert_eq!(due.await, Due::Idle);
    }

    #[tokio::test(start_paused = true)]
    async fn who_only_takes_back_has_to_go_and_who_does_it_now_and_then_has_not() {
        let (activity, leave, limits) = (Activity::new(), Leave::default(), limits());
        let mut due = pin!(due(&activity, &leave, &limits));
        for _ in 0..TAKEN_BACK * 2 {
            drop(activity.begin(Version::HTTP_2));
            answer(&activity).await;
        }
        let slow = activity.begin(Version::HTTP_2);
        assert!(tokio::time::timeout(IDLE / 2, due.as_mut()).await.is_err());
        drop(slow);
        assert!(tokio::time::timeout(IDLE / 2, due.as_mut()).await.is_err());
        answer(&activity).await;
        drop(activity.begin(Version::HTTP_2));
        drop(activity.begin(Version::HTTP_2));
        drop(activity.begin(Version::HTTP_2));
        assert_eq!(due.await, Due::TakenBack);
    }

    #[tokio::test(start_paused = true)]
    async fn http2_is_told_before_the_end_and_http1_with_its_next_answer() {
        let (old, new) = (Activity::new(), Activity::new());
        let (leave, limits) = (Leave::default(), limits());
        let (_old, _new) = (old.begin(Version::HTTP_11), new.begin(Version::HTTP_2));
        leave.announced.cancel();
        assert_eq!(due(&new, &leave, &limits).await, Due::Leave);
        let mut due = pin!(due(&old, &leave, &limits));
        assert!(tokio::time::timeout(IDLE, due.as_mut()).await.is_err());
        leave.now.cancel();
        assert_eq!(due.await, Due::Leave);
    }
}
