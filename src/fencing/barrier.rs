//! The barrier: `enter(resource, token)` waits until no older epoch of the resource is in flight,
//! and yields a [`Permit`], the right to send one request upstream.
//!
//! A check alone does not fence: 41 may pass it and stall, 42 pass and land, and 41 land last. So the
//! order of arrival is kept here. The last look at the mark and the registration of the permit are
//! one critical section ([`EpochTable::enter`]); after every wait everything is looked at again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::fencing::epochs::{Ending, Entered, EpochTable, QueueLimit, RequestLimits, Ticket};
use crate::fencing::failure_detector::FailureDetector;
use crate::fencing::lease::{Lease, PermitTerms};
use crate::routing::{ResourceKey, Token};
use crate::store::InstanceId;

/// Why there is no permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BarrierRefusal {
    /// A newer mark is known: the token is stale.
    Superseded { mark: Token },
    /// The epoch is not open here (any more): admit the request again.
    NotOpen,
    /// Older work did not end in time. `settling`: all of it has a known end, `retry_after` from now.
    OlderInFlight {
        retry_after: Duration,
        settling: bool,
    },
    /// Too many wait for this resource already.
    QueueFull,
    /// This resource has as many requests, waiting or in flight, as one may have.
    ShareTaken,
    /// Too many wait already, at all resources together.
    CrowdFull,
    /// The lease has lapsed: this instance cannot know what others decided.
    Lapsed,
    /// Marks of this resource were lost and are being repaired.
    Barred { retry_after: Duration },
}

impl BarrierRefusal {
    fn full(full: QueueLimit) -> Self {
        match full {
            QueueLimit::Queue => Self::QueueFull,
            QueueLimit::Share => Self::ShareTaken,
            QueueLimit::Waiting => Self::CrowdFull,
        }
    }
}

/// Gives permits. Cheap to clone.
#[derive(Clone)]
pub struct Barrier {
    epoch_table: Arc<EpochTable>,
    lease: Arc<Lease>,
    detector: Arc<FailureDetector>,
    room: RequestLimits,
    /// How many wait, at all resources.
    crowd: Arc<AtomicUsize>,
}

/// How soon to look again at work elsewhere that should have settled by now.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// What a wait without a known end suggests as Retry-After.
const TRY_AGAIN: Duration = Duration::from_secs(1);

impl Barrier {
    /// `room`: how many requests resources may have.
    #[must_use]
    pub fn new(
        epoch_table: Arc<EpochTable>,
        lease: Arc<Lease>,
        detector: Arc<FailureDetector>,
        room: RequestLimits,
    ) -> Self {
        Self {
            epoch_table,
            lease,
            detector,
            room,
            crowd: Arc::default(),
        }
    }

    /// Waits until `deadline` for older epochs of the resource. Dropping the future gives up the place.
    pub async fn enter(
        &self,
        key: &ResourceKey,
        token: Token,
        deadline: Instant,
    ) -> Result<Permit, BarrierRefusal> {
        let mut place: Option<QueuePlace> = None;
        loop {
            // Made before the look: a bell that rings after it is not missed.
            let rung = place
                .as_ref()
                .map(|place| Arc::clone(&place.bell).notified_owned());
            let known_left = match self.look(key, token)? {
                (Entered::Permit(ticket), cutoff) => {
                    let held = ticket.held;
                    let permit = Permit {
                        epoch_table: Arc::clone(&self.epoch_table),
                        key: key.clone(),
                        token,
                        given: Some((ticket, cutoff)),
                    };
                    // A request that has waited was counted before it did.
                    if place.is_none() && held > self.room.share {
                        return Err(BarrierRefusal::ShareTaken);
                    }
                    return Ok(permit);
                }
                (Entered::Superseded(mark), _) => return Err(BarrierRefusal::Superseded { mark }),
                (Entered::NotOpen, _) => return Err(BarrierRefusal::NotOpen),
                (Entered::Barred(retry_after), _) => {
                    return Err(BarrierRefusal::Barred { retry_after });
                }
                (Entered::Wait { known_left }, _) => known_left,
            };
            let Some(rung) = rung else {
                place = Some(self.wait_at(key, token).map_err(BarrierRefusal::full)?);
                continue;
            };
            let now = Instant::now();
            let left = deadline.saturating_duration_since(now);
            if left.is_zero() || known_left.is_some_and(|known| known > left) {
                // The time is up, or waiting on is pointless: what is left is known to be longer.
                return Err(BarrierRefusal::OlderInFlight {
                    retry_after: known_left.unwrap_or(TRY_AGAIN),
                    settling: known_left.is_some(),
                });
            }
            // What ends by time alone rings too, but a little later than it could be seen.
            let again = known_left.map_or(deadline, |known| now + known.max(LOOK_AGAIN));
            tokio::select! {
                () = rung => {}
                () = tokio::time::sleep_until(again.min(deadline)) => {}
            }
        }
    }

    fn wait_at(&self, key: &ResourceKey, token: Token) -> Result<QueuePlace, QueueLimit> {
        let in_crowd = InCrowd::of(&self.crowd, self.room.waiting).ok_or(QueueLimit::Waiting)?;
        let bell = self.epoch_table.queue(key, token, self.room)?;
        Ok(QueuePlace {
            epoch_table: Arc::clone(&self.epoch_table),
            key: key.clone(),
            token,
            bell,
            _in_crowd: in_crowd,
        })
    }

    /// The lease and the critical section; with what cuts an exchange of the lease's generation.
    fn look(
        &self,
        key: &ResourceKey,
        token: Token,
    ) -> Result<(Entered, Arc<CancellationToken>), BarrierRefusal> {
        let PermitTerms { generation, cutoff } = self.lease.terms();
        if !self.lease.holds(generation) || cutoff.is_cancelled() {
            return Err(BarrierRefusal::Lapsed);
        }
        let now = self.lease.clock().now();
        let left = |id: &InstanceId| self.detector.settles_in(id, now);
        let entered = self.epoch_table.enter(key, token, generation, left);
        Ok((entered, cutoff))
    }
}

/// A place in a resource's queue; given up on drop.
struct QueuePlace {
    epoch_table: Arc<EpochTable>,
    key: ResourceKey,
    token: Token,
    /// Rings whenever something has changed at the resource.
    bell: Arc<Notify>,
    _in_crowd: InCrowd,
}

/// One of those that wait, at whatever resource.
struct InCrowd(Arc<AtomicUsize>);

impl InCrowd {
    fn of(crowd: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let more = |count| (count < most).then_some(count + 1);
        let joined = crowd.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        joined.ok().map(|_| Self(Arc::clone(crowd)))
    }
}

impl Drop for InCrowd {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        self.epoch_table.unqueue(&self.key, self.token);
    }
}

/// The right to send one request upstream. Dropped before [`Permit::begin`], nothing was sent under it.
#[must_use = "a permit keeps newer tokens waiting until it ends"]
pub struct Permit {
    epoch_table: Arc<EpochTable>,
    key: ResourceKey,
    token: Token,
    /// With what cuts the exchange. `None`: it has begun.
    given: Option<(Ticket, Arc<CancellationToken>)>,
}

impl Permit {
    #[must_use]
    pub fn key(&self) -> &ResourceKey {
        &self.key
    }

    #[must_use]
    pub fn token(&self) -> Token {
        self.token
    }

    /// The lease's generation that the permit was given under.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.given().0.generation
    }

    /// Cancelled once a newer token is known: it waits until this permit ends.
    #[must_use]
    pub fn superseded(&self) -> &CancellationToken {
        &self.given().0.superseded
    }

    /// Cancelled when the lease has been lapsed for so long that nothing more is to be sent.
    #[must_use]
    pub fn cutoff(&self) -> &CancellationToken {
        &self.given().1
    }

    fn given(&self) -> &(Ticket, Arc<CancellationToken>) {
        let Some(given) = &self.given else {
            unreachable!("it is taken only where the permit ends")
        };
        given
    }

    /// From here on a byte may go upstream.
    pub fn begin(mut self) -> Sending {
        let Some((ticket, cutoff)) = self.given.take() else {
            unreachable!("only this and drop take it, and both end the permit")
        };
        Sending {
            epoch_table: Arc::clone(&self.epoch_table),
            cutoff,
            key: self.key.clone(),
            ticket,
            ending: Ending::Unknown,
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some((ticket, _)) = self.given.take() {
            self.epoch_table.end(&self.key, &ticket, Ending::Settled);
        }
    }
}

/// A permit in use. It ends by [`Sending::settled`]; dropped in any other way (a panic, an aborted
/// task) it counts as an unknown outcome, and the epoch stays in flight until that settles.
#[must_use = "newer tokens wait until this ends"]
pub struct Sending {
    epoch_table: Arc<EpochTable>,
    cutoff: Arc<CancellationToken>,
    key: ResourceKey,
    ticket: Ticket,
    ending: Ending,
}

impl Sending {
    /// The lease's generation that every write must still be under.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.ticket.generation
    }

    /// Cancelled once a newer token is known: from then on the exchange is to end within `barrier.grace`.
    #[must_use]
    pub fn superseded(&self) -> &CancellationToken {
        &self.ticket.superseded
    }

    /// Cancelled when the lease has been lapsed for too long: the exchange is reset.
    #[must_use]
    pub fn cutoff(&self) -> &CancellationToken {
        &self.cutoff
    }

    /// Nothing was sent, or the upstream's response has been received whole.
    pub fn settled(mut self) {
        self.ending = Ending::Settled;
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.epoch_table.end(&self.key, &self.ticket, self.ending);
    }
}

#[cfg(test)]
mod tests;
