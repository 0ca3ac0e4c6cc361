//! The helpers of the tests. Nothing here imports the program under test: it is met as its users
//! meet it, as a process with a configuration file, two ports, a log and exit codes.

pub mod bare;
pub mod client;
pub mod collector;
pub mod conformance;
pub mod etcd;
pub mod http2;
pub mod metrics;
pub mod moto;
pub mod network;
pub mod nginx;
pub mod pages;
pub mod pair;
pub mod path;
pub mod patroni;
pub mod pgbouncer;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod python;
pub mod relay;
pub mod replication;
pub mod run;
pub mod skip;
pub mod small_disk;
pub mod sql;
pub mod steps;
pub mod store;
pub mod tls;
pub mod upstream;
pub mod wait;
pub mod wire;
pub mod zookeeper;

pub use client::{Answer, Request, delete, get, post, put, request};
pub use pair::Pair;
pub use proxy::{Config, Proxy, fenced};
pub use store::Store;
pub use upstream::{Gate, Step, Upstream};
pub use wait::{Must, all_forwarded, eventually, forwarded, joined, soon};

/// What was found. Where there is none, the test ends: the machine lacks a tool, which was said.
macro_rules! or_return {
    ($found:expr) => {{
        let Some(found) = $found else { return };
        found
    }};
}
pub(crate) use or_return;

/// Ends the test unless this holds: the machine lacks a tool, which was said.
macro_rules! return_unless {
    ($possible:expr) => {
        if !$possible {
            return;
        }
    };
}
pub(crate) use return_unless;

/// Runs each test twice: over an embedded `SQLite` file, and over a Postgres database of its own.
macro_rules! over_both_stores {
    ($($(#[$meta:meta])* async fn $name:ident($store:ident: Store) $body:block)+) => {$(
        $(#[$meta])*
        mod $name {
            #[allow(unused_imports, reason = "not every test uses all that its file imports")]
            use super::*;

            async fn body($store: $crate::support::Store) $body

            #[tokio::test]
            async fn sqlite() {
                body($crate::support::Store::sqlite()).await;
            }

            #[tokio::test]
            async fn postgres() {
                if let Some(store) = $crate::support::Store::postgres().await {
                    body(store).await;
                }
            }
        }
    )+};
}
pub(crate) use over_both_stores;
