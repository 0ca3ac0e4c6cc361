//! The body of a request, on its way from the client to the upstream.

mod deadlines;
mod memory;
mod received;
mod request;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

pub(crate) use self::deadlines::{BodyRules, UploadProgress};
pub(crate) use self::memory::{BodyMemory, MemoryShare};
pub(crate) use self::received::{Feed, Received, Wish, streamed};
pub(crate) use self::request::RequestBody;

use crate::http1::RequestHead;

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A request for the upstream.
pub(crate) struct UpstreamRequest {
    pub head: RequestHead,
    pub body: RequestBody,
}

/// Why a body could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UploadError {
    #[error("the body is longer than {0} bytes")]
    TooLarge(u64),
    #[error("the body did not arrive within {0:?}")]
    TooSlow(Duration),
    #[error("no byte of the body arrived for {0:?}")]
    Paused(Duration),
    #[error("there is no room for the body")]
    NoRoom,
    #[error("the body broke off: {0}")]
    Broken(BoxError),
}

/// The longest body that is worked over by its worker: some tenths of a millisecond.
const SHORT: u64 = 128 << 10;

/// The threads that work over long bodies.
pub(crate) struct LongBodies(Arc<Semaphore>);

impl LongBodies {
    pub(crate) fn new() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self(Arc::new(Semaphore::new(cores)))
    }

    /// Works over a body. `held` is kept as long as the work takes, even if this future is dropped:
    /// the in-flight permit, which bounds what waits here.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        upload: RequestBody,
        held: impl Send + 'static,
        work: impl FnOnce(&RequestBody) -> T + Send + 'static,
    ) -> (RequestBody, T) {
        if upload.whole().is_none_or(|body| body.length() <= SHORT) {
            let done = work(&upload);
            return (upload, done);
        }
        let turn = Arc::clone(&self.0).acquire_owned().await;
        let worked = tokio::task::spawn_blocking(move || {
            let _held = (turn, held);
            let done = work(&upload);
            (upload, done)
        });
        match worked.await.map_err(tokio::task::JoinError::try_into_panic) {
            Ok(done) => done,
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            // The runtime ends, and this future with it.
            Err(Err(_)) => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::body::memory::BufferedBody;
    use crate::metrics::Metrics;

    fn upload(length: u64) -> RequestBody {
        let memory = BodyMemory::new(16 << 20, Arc::new(Metrics::new(&[])));
        let length = usize::try_from(length).expect("it is short");
        RequestBody::buffered(vec![b'x'; length].into(), &memory)
    }

    #[tokio::test]
    async fn a_long_body_leaves_its_worker_to_others() {
        let bodies = LongBodies::new();
        let (tx, rx) = mpsc::channel();
        let work = bodies.work(upload(SHORT + 1), (), move |_| {
            rx.recv_timeout(Duration::from_secs(20))
        });
        let other = async { tx.send(()) };
        let ((upload, done), sent) = tokio::join!(work, other);
        assert_eq!((done, sent), (Ok(()), Ok(())));
        assert_eq!(upload.whole().map(BufferedBody::length), Some(SHORT + 1));
    }

    #[tokio::test]
    async fn a_short_body_stays() {
        let (_, there) = LongBodies::new()
            .work(upload(SHORT), (), |_| thread::current().id())
            .await;
        assert_eq!(there, thread::current().id());
    }
}
