//! fencepost: a sidecar HTTP reverse proxy that checks fencing tokens for services that cannot.
//!
//! The request path, in the order in which a request meets it:
//!
//! 1. [`server`]: accepts connections on the data port.
//! 2. [`proxy`]: handles one request, in `proxy::handle`. A fenced request continues in
//!    `proxy::fenced`. The phases are modules beside them: `classify`, `body`,
//!    [`fencing::Fencing::admit`], `exchange`, `answer`.
//! 3. [`routing`]: pure rules: tokens, checked paths, routes, resource keys.
//! 4. [`fencing`]: decides about tokens. [`fencing::Fencing`] is its only entrance. Behind it are
//!    the barrier, the epochs in memory, the lanes to the store, the lease, the failure detector
//!    and the membership.
//! 5. [`store`]: keeps the marks durable: the trait [`store::MarkStore`], `sqlite`, `postgres`.
//!
//! Where to look first: a permit ends in `proxy::exchange::fenced` (`Relay::end`), and
//! `proxy::exchange::conclusion` decides whether it has settled. Headers are dropped and added in
//! `proxy::headers`. A new refusal is a variant of `proxy::refusal::Refusal`, and its answer is in
//! `proxy::refusal::problem`.
//!
//! Three modules are below all of these. [`http1`] is the syntax of HTTP/1, read strictly, and the
//! messages that both sides of the proxy have in common. [`server`] reads every connection with it,
//! so that badly framed requests never reach `proxy`. `body` is the body of a request on its way
//! through. `upstream` has the connections to the upstream.
//!
//! The other modules:
//!
//! - [`app`]: the one place that wires all of them.
//! - [`attach`]: `fencepost attach`, on the side of a client that cannot be changed.
//! - [`init`]: `fencepost init`, a first configuration from an access log.
//! - [`cli`]: the command line. [`demo`]: the stories of `fencepost demo`.
//! - [`admin`]: probes, metrics, marks for operators.
//! - [`config`], [`metrics`].
//! - [`rejections`]: the latest refusals, for operators. [`active_requests`]: those in progress.
//! - [`traces`]: spans of requests, for a collector.
//! - [`throttle`]: limits how often a log line is written.
//! - [`printable`]: makes text from clients safe to print.
//! - `deadline_timer`: one timer for all deadlines of a connection.
//! - `progress`: shows how far a long command has come, and stops it between two steps.
//! - `worker`: the core whose runtime a thread runs.
//! - `json_values`: tokens, keys and times in the JSON of the admin API.
//! - `socket`: TCP and Unix sockets, which can move between runtimes.
//! - [`boot_clock`]: the clock of leases.
//! - [`build_info`]: the version and the commit of this program.
//!
//! Imports go one way: `routing`, `http1`, `config` ← `store`, `metrics` ← `traces` ← `fencing`,
//! `body` ← `upstream` ← `proxy`, `admin` ← `server`, `app` ← `cli`, `main`.

pub mod active_requests;
pub mod admin;
pub mod app;
pub mod attach;
mod body;
pub mod boot_clock;
pub mod build_info;
pub mod cli;
pub mod config;
mod deadline_timer;
pub mod demo;
pub mod fencing;
pub mod http1;
pub mod init;
mod json_values;
mod locked;
pub mod metrics;
pub mod printable;
mod progress;
pub mod proxy;
pub mod rejections;
pub mod routing;
pub mod server;
mod signals;
mod socket;
pub mod store;
pub mod throttle;
mod timed_socket;
pub mod traces;
mod upstream;
mod worker;
