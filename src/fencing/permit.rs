//! [`Permit`]: the right to send one request upstream, and [`Sending`], its use.

use std::ops::Deref;
use std::sync::Arc;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::fencing::Fencing;
use crate::fencing::epochs::{Ending, Settles, Ticket};
use crate::routing::{ResourceKey, Token};

/// The right to send one request upstream. If it is dropped before [`Permit::begin`], nothing was
/// sent under it.
#[must_use = "a permit keeps newer tokens waiting until it ends"]
pub struct Permit(pub(super) Sending);

impl Deref for Permit {
    type Target = Sending;

    fn deref(&self) -> &Sending {
        &self.0
    }
}

impl Permit {
    /// From here on a byte may go upstream.
    pub fn begin(mut self) -> Sending {
        self.0.ending = Ending::Unknown;
        self.0
    }
}

/// A permit, and whether its request raised the mark.
pub struct Admitted {
    pub permit: Permit,
    pub advanced: bool,
}

/// A permit in use. It ends by [`Sending::settled`]; dropped in any other way (a panic, an aborted
/// task) it counts as an unknown outcome, and the epoch stays in flight until that settles.
#[must_use = "newer tokens wait until this ends"]
pub struct Sending {
    pub fencing: Arc<Fencing>,
    /// Cancelled when the lease has been lapsed for too long: the exchange is reset.
    pub cutoff: Arc<CancellationToken>,
    pub key: ResourceKey,
    pub token: Token,
    pub(super) ticket: Ticket,
    /// [`Ending::Unknown`] from [`Permit::begin`] until it has settled.
    pub(super) ending: Ending,
}

impl Sending {
    /// The lease's incarnation that every write must still be under.
    pub fn incarnation(&self) -> u64 {
        self.ticket.incarnation
    }

    /// Cancelled once a newer token is known. From then on the exchange must end within
    /// `barrier.grace`.
    pub fn superseded(&self) -> &CancellationToken {
        &self.ticket.superseded
    }

    /// Nothing was sent, or the upstream's response has been received whole.
    pub fn settled(mut self) {
        self.ending = Ending::Settled;
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        let now = Instant::now();
        let epoch_table = &self.fencing.epoch_table;
        let ended = epoch_table.end(&self.key, &self.ticket, self.ending, now);
        if let Some(Settles { number, at }) = ended
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (epoch_table, key) = (Arc::clone(epoch_table), self.key.clone());
            runtime.spawn(async move {
                tokio::time::sleep_until(at).await;
                epoch_table.settled(&key, number, at);
            });
        }
    }
}
