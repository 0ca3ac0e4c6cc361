//! The admin port against those who reach it: what it costs to leave requests undone, who reads and
//! writes what, and TLS.

mod access;
mod room;
mod tls;

use crate::support::Proxy;

/// How often the admin port has refused something for this reason.
async fn refused(proxy: &Proxy, reason: &str) -> f64 {
    let metrics = proxy.metrics().await;
    metrics.sum("fencepost_admin_refused_total", &[("reason", reason)])
}
