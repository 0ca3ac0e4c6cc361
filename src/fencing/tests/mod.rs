//! Shared by the tests of several modules: a store in memory, and an instance over it.

mod double;
mod operations;
mod rig;
pub(crate) mod rows;
mod simulation;
mod simulation_call;
mod simulation_events;
mod simulation_instance;
mod simulation_member;
mod simulation_request;
mod simulation_upstream;
mod simulation_world;

use std::sync::Arc;

use super::{Refused, Undecided};

pub(crate) use self::double::{CallPlan, Double, broken};
pub(crate) use self::rig::{
    DEATH, LOSS, ROOM, Rig, SETTLE, SILENCE, TERM, UNDELIVERED, assert_repairing, clock, key,
    signed, token,
};

/// Why the store gave no answer, and a word for it.
const NO_ANSWERS: [(&str, &str); 6] = [
    ("the store cannot be reached:", "connection"),
    ("the store did not answer within", "timeout"),
    ("the proxy is stopping", "stopping"),
    ("the store has lost marks of this resource", "lost"),
    ("this proxy has rejoined the store meanwhile", "rejoined"),
    ("the mark has changed meanwhile, or was overridden", "era"),
];

impl Refused {
    /// Why the store gave no answer, in a word; `decided`: it gave one.
    pub(crate) fn kind(&self) -> &'static str {
        let Self::Unavailable(Undecided::NoAnswer(why)) = self else {
            return "decided";
        };
        let known = NO_ANSWERS.iter().find(|(text, _)| why.starts_with(text));
        known.expect("a known reason").1
    }
}

/// The instance of this id over a store in memory.
pub(crate) async fn rig(store: &Arc<Double>, id: u64) -> Rig {
    Rig::new(Arc::clone(store) as _, id, clock()).await
}

/// One instance over a store of its own.
pub(crate) async fn alone() -> (Arc<Double>, Rig) {
    let store = Arc::new(Double::default());
    let rig = rig(&store, 1).await;
    (store, rig)
}

/// Two instances over one store.
pub(crate) async fn pair() -> (Arc<Double>, Rig, Rig) {
    let (store, one) = alone().await;
    let two = rig(&store, 2).await;
    (store, one, two)
}
