//! One exchange with the upstream under a permit. An exchange [without](super::unfenced) one shares
//! its [`Reply`](reply::Reply).

mod conclusion;
pub(super) mod fenced;
mod open;
pub(super) mod reply;
mod task;

pub(super) use self::conclusion::Asked;
pub(super) use self::open::FenceTerms;
