//! fencepost: a sidecar HTTP reverse proxy that checks fencing tokens for services that cannot.
//!
//! The request path, in the order in which a request meets it:
//!
//! 1. [`server`]: accepts connections on the data port.
//! 2. [`proxy`]: the story of one request, [`proxy::Proxy::handle`]; its phases are files beside it:
//!    classify → body → admit → forward → respond.
//! 3. [`routing`]: pure rules: tokens, checked paths, routes, resource keys.
//! 4. [`fencing`]: decides about tokens, behind one face: [`fencing::Fencing`]. Behind it stand the
//!    barrier, the epochs in memory, the group-commit writer, the lease, the failure detector and
//!    the membership.
//! 5. [`store`]: what is durable: the store's trait, `sqlite`, `postgres`.
//!
//! Below it all: [`wire`], the syntax of HTTP/1 and HTTP/2 to the letter: [`server`] reads every
//! connection with it, so that badly framed requests never reach `proxy`.
//!
//! Beside it: [`admin`] (probes, metrics, marks for operators), [`config`], [`metrics`],
//! [`rejections`], [`throttle`] (limits how often a log line is written), [`printable`] (makes text
//! from clients safe to print), `counts` (how many of something each holder has), `worker` (the
//! core whose runtime a thread runs), [`boot_clock`] (the clock of leases), [`cli`], [`demo`]; and
//! [`app`], the one place that wires them.
//!
//! Imports go one way: `routing`, `wire`, `config` ← `store`, `metrics` ← `fencing` ← `proxy`,
//! `admin` ← `server`, `app` ← `cli`, `main`.

pub mod admin;
pub mod app;
pub mod boot_clock;
pub mod cli;
pub mod config;
mod counts;
pub mod demo;
pub mod fencing;
pub mod metrics;
pub mod printable;
pub mod proxy;
pub mod rejections;
pub mod routing;
pub mod server;
pub mod store;
pub mod throttle;
pub mod wire;
mod worker;
