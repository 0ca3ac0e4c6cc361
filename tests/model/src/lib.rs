//! A model of the store protocol (`docs/internals/protocol.md`), checked state by state.
//!
//! The model is one resource, the row that the store keeps of it, two or three proxies with what
//! each remembers, and an upstream that works on. Every order of steps within the [`Bounds`] is
//! looked at: a step is as small as what the program does in one critical section or the store in
//! one statement.
//!
//! What is not a state of its own, and why nothing is lost by it:
//!
//! - *A pause* of a process is an order in which the others take steps and it takes none.
//! - *A lost or late notification*: every one that was ever sent may arrive at any later moment, or
//!   never.
//! - *A waiting request* is one that comes at the moment its wait ends: nothing is kept of it in
//!   between, since everything is looked at again after a wait.
//! - *A row lock* is held from when a statement looks at the row to its commit: both are one step.
//! - *An epoch id* is a number that is used again once nothing names it. A publication or a
//!   statement that still names it means an id that nobody will meet.
//! - *Closing an idle epoch* as a statement, a publication or a ceding is composed, in the same
//!   critical section, is a step of its own that comes just before.
//! - *Time* is the order that clocks of about the same rate vouch for: an owner's lease has lapsed
//!   before a watcher declares it dead; what was in transit then has arrived or was given up when
//!   the user timeout has passed; what had arrived by then is over when `settle` has passed too.
//! - *A renewal* is one step: a lease runs from before it was sent, so one that is answered late
//!   has lapsed before anybody can have been declared dead over it.
//!
//! Where to look: [`bounds`] for what a run switches on, [`state`] for what there is, [`step`] for
//! what can happen (tables, and a file each for the lane, statements, publications, exchanges, bytes in
//! transit, life and death, operators, loss), `properties.rs` for what must hold, [`check`] to run
//! it. `tests/holds.rs` exhausts each configuration. `tests/mutants.rs` shows that each way to
//! break the protocol is found.

pub mod bounds;
mod canonical;
pub mod check;
pub mod outcome;
mod properties;
mod state;
mod step;

pub use bounds::{Bounds, Features, Mutant};
pub use check::{exhaust, refute};
pub use state::Broken;
