//! The admin port against those who reach it: what it costs to leave requests undone, who reads and
//! writes what, and TLS.

mod access;
mod room;
mod tls;

use crate::support::Proxy;

/// How often the admin port has refused something for this reason.
async fn refused(proxy: &Proxy, reason: &str) -> u64 {
    let name = "fencepost_admin_refused_total";
    proxy.count(name, &[("reason", reason)]).await
}
