//! [`MarkStore`]: the one trait that both stores implement, in three parts:
//! [`Marks`], [`Instances`] and [`Administration`].
//!
//! Rules that every store keeps, whatever its engine:
//!
//! - *Check-and-advance is one call*, [`Marks::advance`], and one atomic statement. It returns only
//!   after the change is as durable as the engine can make it.
//! - All that is known of a resource stands in its row, its open epochs too. An epoch is *over* once
//!   its instance has published that ([`Publication`]), or has settled. Whoever meets an epoch that
//!   is over ignores it, and drops it when it writes the row.
//! - An epoch is named by its instance and its epoch id (`opening`), which is never used twice. So a
//!   statement that commits late (its answer lost, its connection long dropped) can only raise a
//!   mark, drop what was out of use when it was sent, and open an epoch that nobody was ever
//!   permitted under, which the next publication covers.
//! - Any error means *doubt*: the statement may still commit. Nothing is concluded from the error,
//!   and its connection is closed, never reused.
//! - Rows are locked in the byte order of their keys, so that two batches cannot deadlock.
//!
//! [`Publication`]: super::Publication

use super::administration::Administration;
use super::instances::Instances;
use super::marks::Marks;

/// The store of the marks. All calls are for one namespace, fixed when the store is opened.
///
/// A caller may drop any of these futures at any time. The store must then close the connection, or
/// let the work end in its own task. It never reuses a connection in an unknown state.
pub trait MarkStore: Marks + Instances + Administration {
    /// `sqlite` or `postgres`.
    fn kind(&self) -> &'static str;

    /// True if other instances can share the marks. `false` (`SQLite`): every other instance found
    /// in the store is dead, none declares this one dead, and none listens to notifications.
    fn shared(&self) -> bool;
}
