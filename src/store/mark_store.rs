//! [`MarkStore`]: the one trait that both stores implement, in three parts:
//! [`Marks`], [`Instances`] and [`Administration`].
//!
//! Rules that every store keeps, whatever its engine:
//!
//! - *Check-and-advance is one call*, [`Marks::advance`], and one atomic statement (or one
//!   transaction that nobody can see half of). It returns after the change is as durable as the
//!   engine can make it, never before.
//! - It never closes an epoch by its token. [`Marks::close`] and [`Batch::closes`](super::Batch::closes) do, and name each
//!   drained one by its opening, which is never used twice. So a statement that commits late (its answer
//!   lost, its connection long dropped) can only raise a mark, open an epoch, or delete what has drained.
//!   All are safe; reading one's own rows closes what was opened late.
//! - An error of any kind means *doubt*: the statement may still commit. Nothing is concluded from
//!   it, and the connection that had it is closed, never reused.
//! - Rows are locked in the byte order of their keys, so that two batches cannot deadlock.

use super::administration::Administration;
use super::instances::Instances;
use super::marks::Marks;

/// The store of the marks. All calls are for one namespace, fixed when the store is opened.
///
/// A caller may drop any of these futures at any time: a store must then close the
/// connection (or let the work end in a task of its own), never reuse one in an unknown state.
pub trait MarkStore: Marks + Instances + Administration {
    /// `sqlite` or `postgres`.
    fn kind(&self) -> &'static str;

    /// Whether other instances can share the marks. `false` (`SQLite`): every other instance found
    /// in the store is dead, nobody declares this one dead, and nobody listens to news.
    fn shared(&self) -> bool;
}
