//! No older token after a newer one: the mark, the barrier, claims, epochs, leases, and what breaks
//! them.

pub mod admission;
pub mod barrier;
pub mod broken;
pub mod claim;
pub mod claimants;
pub mod client_recipes;
pub mod concurrency;
pub mod conformance_recipes;
pub mod crash;
pub mod egress;
pub mod fire;
pub mod gateways;
pub mod hand_over;
pub mod idempotency;
pub mod implausible;
pub mod keys;
pub mod lapsed_leases;
pub mod leftovers;
pub mod lock_services;
pub mod lost_answers;
pub mod notifications;
pub mod object_storage;
pub mod observe_mode;
pub mod reckoning;
pub mod retries_in_front;
pub mod rolling;
pub mod route_table;
pub mod row_locks;
pub mod spelling;
pub mod store_cuts;
pub mod streams;
pub mod tunnels;
pub mod two_proxies;
pub mod undelivered;
pub mod wrong_numbers;
