//! The answers of a batch, delivered to each runtime in one piece.
//!
//! A request is answered on the runtime that it waits on. Each answer from another thread costs a
//! system call that wakes that runtime; a batch has dozens of them. So the answers for one runtime
//! are carried there by a single task, which wakes the requests from within.

use tokio::runtime::{self, Handle};
use tokio::sync::oneshot;

use crate::fencing::refused::Refused;

/// Whether the request raised the mark, or why it is refused.
type Result = std::result::Result<bool, Refused>;

/// Answers one waiting request.
pub(super) struct WaiterReply {
    tx: oneshot::Sender<Result>,
    /// The runtime that it waits on.
    runtime: Option<Handle>,
}

impl WaiterReply {
    pub(super) fn new(tx: oneshot::Sender<Result>) -> Self {
        let runtime = Handle::try_current().ok();
        Self { tx, runtime }
    }

    /// Whether the request has given up.
    pub(super) fn is_closed(&self) -> bool {
        self.tx.is_closed()
    }

    /// Answers at once.
    pub(super) fn send(self, answer: Result) {
        let _ = self.tx.send(answer);
    }
}

/// Answers that have not been delivered yet.
#[derive(Default)]
pub(super) struct Answers(Vec<Bundle>);

/// Those of one runtime.
struct Bundle {
    id: runtime::Id,
    runtime: Handle,
    answers: Vec<(oneshot::Sender<Result>, Result)>,
}

impl Answers {
    pub(super) fn push(&mut self, reply: WaiterReply, answer: Result) {
        let Some(runtime) = reply.runtime else {
            let _ = reply.tx.send(answer);
            return;
        };
        let id = runtime.id();
        let answer = (reply.tx, answer);
        match self.0.iter_mut().find(|bundle| bundle.id == id) {
            Some(bundle) => bundle.answers.push(answer),
            None => self.0.push(Bundle {
                id,
                runtime,
                answers: vec![answer],
            }),
        }
    }

    /// Delivers all of them.
    pub(super) fn deliver(&mut self) {
        let here = Handle::try_current().ok().map(|runtime| runtime.id());
        for bundle in self.0.drain(..) {
            let Bundle {
                id,
                runtime,
                answers,
            } = bundle;
            // One alone is not worth a task.
            let direct = here == Some(id) || answers.len() == 1;
            let deliver = move || {
                for (tx, answer) in answers {
                    let _ = tx.send(answer);
                }
            };
            if direct {
                deliver();
            } else {
                runtime.spawn(async move { deliver() });
            }
        }
    }
}
