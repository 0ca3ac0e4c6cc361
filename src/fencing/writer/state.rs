//! [`Writer`]: the state of the writer's task, and the steps that its parts share.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::batch::{self, Group};
use super::closes::Closes;
use super::command::WriterCommand;
use super::context::WriterContext;
use super::handle::WriterHandle;
use super::queue::RequestQueue;
use super::repairs::Repairs;
use super::rereads::Rereads;
use super::row_locks::RowLocks;
use super::throttles::WriterThrottles;
use super::waiter::Waiter;
use super::walk_requests::WalkHandle;
use crate::fencing::epochs::{Drained, EpochTable};
use crate::fencing::failure_detector::FailureDetector;
use crate::fencing::growth::Growth;
use crate::fencing::lease::{Identity, Lease};
use crate::metrics::StoreMetrics;
use crate::routing::{ResourceKey, Token};
use crate::store::{Ask, EpochRow, MarkStore};

/// A spent token that was not used, and the caller that waits for it to be given back.
pub(super) type GiveBack = ((ResourceKey, Token, String), oneshot::Sender<bool>);

/// The arguments of [`Writer::new`].
pub struct WriterSetup {
    pub store: Arc<dyn MarkStore>,
    pub epoch_table: Arc<EpochTable>,
    pub lease: Arc<Lease>,
    pub detector: Arc<FailureDetector>,
    pub metrics: Arc<StoreMetrics>,
    pub growth: Arc<Growth>,
    pub drained: mpsc::UnboundedReceiver<Drained>,
}

/// See the module's documentation. [`Writer::run`] is the task.
pub struct Writer {
    pub(super) context: WriterContext,
    pub(super) commands: mpsc::UnboundedReceiver<WriterCommand>,
    pub(super) drained: mpsc::UnboundedReceiver<Drained>,
    pub(super) queue: RequestQueue,
    pub(super) rereads: Rereads,
    pub(super) locks: RowLocks,
    pub(super) closes: Closes,
    pub(super) gives: Vec<GiveBack>,
    pub(super) repairs: Repairs,
    /// Asks the task that reads this instance's own rows, on a connection of its own.
    pub(super) walk: WalkHandle,
    pub(super) throttles: WriterThrottles,
    pub(super) stop: Option<oneshot::Sender<()>>,
}

impl Writer {
    #[must_use]
    pub fn new(setup: WriterSetup) -> (Self, WriterHandle) {
        let (tx, commands) = mpsc::unbounded_channel();
        let walk = WalkHandle::new(setup.store.shared());
        let writer = Self {
            context: WriterContext {
                store: setup.store,
                epoch_table: setup.epoch_table,
                lease: setup.lease,
                detector: setup.detector,
                metrics: setup.metrics,
                growth: setup.growth,
                tx: tx.downgrade(),
            },
            commands,
            drained: setup.drained,
            queue: RequestQueue::default(),
            rereads: Rereads::default(),
            locks: RowLocks::new(),
            closes: Closes::new(Instant::now()),
            gives: Vec::new(),
            repairs: Repairs::new(),
            walk: walk.clone(),
            throttles: WriterThrottles::default(),
            stop: None,
        };
        (writer, WriterHandle { tx, walk })
    }

    pub(super) fn close_drained(&mut self, drained: Drained) {
        let Drained { row, wanted } = drained;
        self.closes.push(row, wanted, Instant::now());
    }

    pub(super) fn fold(
        &mut self,
        waiting: Vec<(ResourceKey, Waiter)>,
        by: &Identity,
    ) -> Vec<Group> {
        let WriterContext {
            epoch_table,
            growth,
            lease,
            ..
        } = &self.context;
        let known = |key: &ResourceKey| epoch_table.known_in(key);
        let next_opening = || self.queue.next_opening();
        let mut groups = batch::fold(waiting, known, || growth.take(), next_opening);
        for group in &mut groups {
            group.spent = epoch_table.spent(&group.ask.resource);
        }
        // The lease is checked after the known marks were read. An instance that may have been
        // declared dead may have missed an override of what its epochs protected. So it does not
        // compare its marks with the store's.
        if !lease.holds(by.incarnation) {
            for group in &mut groups {
                group.known = None;
                group.spent = None;
            }
        }
        groups
    }

    /// The fate of this opening is unknown, and no request will use it. Its row must be deleted if
    /// it exists; otherwise others would wait for it, or for its settling after a crash. (If it is
    /// committed later still, it is found among the own rows: see
    /// [`Self::look_for_late_openings`].)
    pub(super) fn doubt(&mut self, ask: &Ask, by: &Identity) {
        self.repairs.doubted(Instant::now());
        if let Some(opening) = ask.opening {
            self.closes.push_doubtful(EpochRow {
                resource: ask.resource.clone(),
                instance: by.instance.clone(),
                opening,
                token: ask.token,
            });
        }
    }
}
