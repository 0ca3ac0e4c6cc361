//! A request that waits for the store: what it wants, and how it is answered.
//!
//! A request is answered on the runtime that it waits on. Each answer from another thread costs a
//! system call that wakes that runtime; a batch has dozens of them. So the answers for one runtime
//! are carried there by a single task, which wakes the requests from within.

use tokio::runtime::{self, Handle};
use tokio::sync::oneshot;

use crate::fencing::refused::Refused;
use crate::routing::{Needs, Token};

/// The change that a request wants in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Want {
    /// Raise the mark and open an epoch, to forward under it.
    Open,
    /// Raise the mark, forward nothing under it.
    Raise,
    /// Spend the token under this name (`reuse: once`).
    Spend(String),
}

/// Whether the request raised the mark, or why it is refused.
pub type Answer = Result<bool, Refused>;

/// A request that waits for the store.
pub struct Waiter {
    pub(super) token: Token,
    pub(super) want: Want,
    /// The mark that is needed for its token to be believed.
    pub(super) needs: Needs,
    /// How often it has been asked again.
    pub(super) tries: u8,
    /// Closed once its caller has given up.
    pub(super) reply: oneshot::Sender<Answer>,
    /// The runtime that it waits on.
    runtime: Option<Handle>,
}

impl Waiter {
    /// A request of this task, and its answer.
    pub fn new(token: Token, want: Want, needs: Needs) -> (Self, oneshot::Receiver<Answer>) {
        let (reply, answer) = oneshot::channel();
        let waiter = Self {
            token,
            want,
            needs,
            tries: 0,
            reply,
            runtime: Handle::try_current().ok(),
        };
        (waiter, answer)
    }
}

/// Answers that have not been delivered yet.
#[derive(Default)]
#[must_use = "requests wait for them"]
pub struct Answers(Vec<Bundle>);

/// The answers for one runtime. `None`: the caller runs on no runtime.
struct Bundle {
    runtime: Option<Handle>,
    answers: Vec<(oneshot::Sender<Answer>, Answer)>,
}

fn id_of(runtime: Option<&Handle>) -> Option<runtime::Id> {
    runtime.map(Handle::id)
}

impl Answers {
    pub(super) fn push(&mut self, waiter: Waiter, answer: Answer) {
        let id = id_of(waiter.runtime.as_ref());
        let answer = (waiter.reply, answer);
        let same = |bundle: &&mut Bundle| id_of(bundle.runtime.as_ref()) == id;
        match self.0.iter_mut().find(same) {
            Some(bundle) => bundle.answers.push(answer),
            None => self.0.push(Bundle {
                runtime: waiter.runtime,
                answers: vec![answer],
            }),
        }
    }

    /// Delivers all of them.
    pub fn deliver(self) {
        let here = Handle::try_current().ok();
        for Bundle { runtime, answers } in self.0 {
            // One alone is not worth a task.
            let direct = answers.len() == 1 || id_of(runtime.as_ref()) == id_of(here.as_ref());
            let deliver = move || {
                for (reply, answer) in answers {
                    let _ = reply.send(answer);
                }
            };
            match runtime {
                Some(runtime) if !direct => {
                    runtime.spawn(async move { deliver() });
                }
                _ => deliver(),
            }
        }
    }
}
