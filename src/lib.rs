//! fencepost: a sidecar HTTP reverse proxy that checks fencing tokens for services that cannot.
//!
//! The request path, in the order in which a request meets it:
//!
//! 1. [`server`]: the accept loop of the data port.
//! 2. [`proxy`]: the story of one request, [`proxy::Proxy::handle`]; its phases are files beside it:
//!    classify → body → admit → forward → respond.
//! 3. [`fence`]: pure rules: tokens, checked paths, routes, resource keys.
//! 4. [`fencing`]: decides about tokens, behind one face: [`fencing::Fencing`].
//! 5. [`marks`]: what is durable, what this instance remembers of it, and for how long it may trust that:
//!    store (`sqlite`, `postgres`), epoch table, lane, lease, watch, keeper.
//! 6. [`barrier`]: waits until no older epoch is in flight, and gives the permit to forward.
//!
//! Below it all: [`wire`], HTTP/1 syntax to the letter: [`server`] follows every connection with it, so that
//! nothing badly framed gets as far as `proxy`.
//!
//! Beside it: [`admin`] (probes, metrics, marks for people), [`config`], [`metrics`], [`rejections`],
//! [`throttle`] (what is logged only now and then), [`printable`] (text from strangers, for people),
//! `counts` (what each holder has), `worker` (which core's runtime a thread is), [`cli`], [`demo`]; and [`app`], the one place that wires them.
//!
//! Imports go one way: `fence`, `wire`, `throttle`, `config` ← `marks`, `barrier`, `metrics` ← `fencing` ← `proxy`, `admin` ← `server`,
//! `app` ← `cli`, `main`.

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
