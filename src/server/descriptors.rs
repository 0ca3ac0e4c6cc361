//! Checks that the process may have as many file descriptors as its limits promise.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::LimitSettings;

/// The client's connection, and one to the upstream.
const PER_CONNECTION: u64 = 2;
/// The store, listeners, logs, the runtime; and the connections of the admin port.
const BESIDE: u64 = 64 + crate::admin::CONNECTIONS as u64;

/// Raises the soft limit to the hard one if `limits.connections` may need it, and warns if even
/// that does not suffice.
pub(crate) fn provide(limits: &LimitSettings) {
    let needed = needed(limits);
    let now = getrlimit(Resource::Nofile);
    let suffices = |limit: Option<u64>| limit.is_none_or(|limit| limit >= needed);
    if suffices(now.current) {
        return;
    }
    let raised = Rlimit {
        current: now.maximum,
        maximum: now.maximum,
    };
    let left = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => now.maximum,
        Err(error) => {
            tracing::warn!(%error, "the soft limit on file descriptors could not be raised");
            now.current
        }
    };
    if !suffices(left) {
        tracing::warn!(
            needed,
            allowed = left,
            "limits.connections may need more file descriptors than the process may have: raise the limit (ulimit -n, LimitNOFILE), or lower limits.connections; connections that find none wait in the kernel's queue"
        );
    }
}

fn needed(limits: &LimitSettings) -> u64 {
    let connections = u64::try_from(limits.connections).unwrap_or(u64::MAX);
    connections
        .saturating_mul(PER_CONNECTION)
        .saturating_add(BESIDE)
}
