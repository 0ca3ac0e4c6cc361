//! One exchange with the upstream under a permit. An exchange [without](super::unfenced) one shares
//! its [`Reply`](reply::Reply).
//!
//! An exchange runs in its request's task until the client leaves or the answer must be streamed;
//! after that, in a task of its own ([`SpawnOnDrop`]).

mod conclusion;
pub(super) mod fenced;
pub(super) mod reply;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

pub(super) use self::conclusion::{Asked, Conclusion};
pub(super) use self::fenced::FenceTerms;
use super::answer::Forwarded;
use super::refusal::Refusal;

/// The answer to a request, and the rest of its exchange. `None`: the exchange is over.
pub(super) type Answered = (Result<Forwarded, Refusal>, Option<BoxFuture<'static, ()>>);

/// Runs an exchange up to its answer in its caller's task, and the rest in a spawned one. Dropped
/// before the answer, it spawns the whole exchange, which then runs without its client.
///
/// If no runtime is left that could run a task, the exchange is dropped. The same happens if the
/// runtime ends with the task in it. An exchange that has begun then counts as an unknown outcome.
pub(super) struct SpawnOnDrop<'a> {
    /// `None`: it has been answered.
    exchange: Option<BoxFuture<'static, Answered>>,
    tasks: &'a TaskTracker,
    /// Makes a stop wait for the exchange, in either task.
    _counted: TaskTrackerToken,
}

impl<'a> SpawnOnDrop<'a> {
    pub(super) fn new(exchange: BoxFuture<'static, Answered>, tasks: &'a TaskTracker) -> Self {
        Self {
            exchange: Some(exchange),
            tasks,
            _counted: tasks.token(),
        }
    }
}

impl Future for SpawnOnDrop<'_> {
    /// `None`: it panicked. A panic ends it as it ends a task: all that it held is dropped.
    type Output = Option<Result<Forwarded, Refusal>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(exchange) = &mut self.exchange else {
            return Poll::Ready(None);
        };
        let polled = catch_unwind(AssertUnwindSafe(|| exchange.as_mut().poll(cx)));
        let answer = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready((answer, rest))) => {
                if let Some(rest) = rest {
                    self.tasks.spawn(rest);
                }
                Some(answer)
            }
            Err(_) => None,
        };
        self.exchange = None;
        Poll::Ready(answer)
    }
}

impl Drop for SpawnOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(exchange) = self.exchange.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let whole = async move {
                let (answer, rest) = exchange.await;
                // First: what reads the rest must see that its client has left.
                drop(answer);
                if let Some(rest) = rest {
                    rest.await;
                }
            };
            self.tasks.spawn_on(whole, &runtime);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::task::Waker;

    use tokio::sync::Notify;

    use super::*;

    /// An exchange that waits for the bell, and what it holds meanwhile.
    fn waiting() -> (BoxFuture<'static, Answered>, Arc<Notify>, Arc<()>) {
        let (bell, held) = (Arc::new(Notify::new()), Arc::new(()));
        let (rung, kept) = (Arc::clone(&bell), Arc::clone(&held));
        let exchange = async move {
            rung.notified().await;
            drop(kept);
            (Err(Refusal::NoRoute), None)
        };
        (Box::pin(exchange), bell, held)
    }

    #[tokio::test]
    async fn an_exchange_that_is_let_go_of_goes_on_and_a_stop_waits_for_it() {
        for polled in [false, true] {
            let tasks = TaskTracker::new();
            let (exchange, bell, held) = waiting();
            let mut own = SpawnOnDrop::new(exchange, &tasks);
            if polled {
                let pending =
                    poll_fn(|cx| Poll::Ready(Pin::new(&mut own).poll(cx).is_pending())).await;
                assert!(pending);
            }
            assert_eq!(tasks.len(), 1, "counted in its first task too");
            drop(own);
            tasks.close();
            tokio::task::yield_now().await;
            assert_eq!((tasks.len(), Arc::strong_count(&held)), (1, 2));
            bell.notify_one();
            tasks.wait().await;
            assert_eq!(Arc::strong_count(&held), 1);
        }
    }

    #[tokio::test]
    async fn an_exchange_that_has_ended_or_panicked_takes_no_task() {
        for panics in [false, true] {
            let tasks = TaskTracker::new();
            let held = Arc::new(());
            let kept = Arc::clone(&held);
            let exchange = async move {
                tokio::task::yield_now().await;
                assert!(!panics, "as it should");
                drop(kept);
                (Err(Refusal::NoRoute), None)
            };
            let mut own = SpawnOnDrop::new(Box::pin(exchange), &tasks);
            assert_eq!((&mut own).await.is_none(), panics);
            assert_eq!(Arc::strong_count(&held), 1, "all that it held is dropped");
            drop(own);
            assert!(tasks.is_empty());
        }
    }

    #[test]
    fn where_no_runtime_is_left_the_rest_is_dropped() {
        let tasks = TaskTracker::new();
        let (exchange, _bell, held) = waiting();
        let mut own = SpawnOnDrop::new(exchange, &tasks);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut own).poll(&mut cx).is_pending());
        drop(own);
        assert_eq!(Arc::strong_count(&held), 1);
        assert!(tasks.is_empty());
    }

    #[test]
    fn a_runtime_that_ends_with_an_exchange_in_it_drops_the_exchange() {
        let tasks = TaskTracker::new();
        let (exchange, _bell, held) = waiting();
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.expect("a runtime");
        let counted = tasks.clone();
        runtime.spawn(async move {
            SpawnOnDrop::new(exchange, &counted).await;
        });
        runtime.block_on(tokio::task::yield_now());
        assert_eq!(Arc::strong_count(&held), 2);
        drop(runtime);
        assert_eq!(Arc::strong_count(&held), 1);
        assert!(tasks.is_empty());
    }
}
