//! Accepts connections, as many as there are permits and descriptors for: one more, which waits for
//! its permit. Further connections wait in the kernel's queue.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::time::Instant;
use tokio_util::either::Either;

use super::connection::{Accepted, Shared};
use super::connection_limit::ConnectionLimit;
use crate::config::LimitSettings;
use crate::metrics::Limit;
use crate::socket::{self, DetachedSocket, Listener};

/// The pause after an accept that found no descriptor. Any descriptor that the process closes
/// helps, and nothing reports that.
const PAUSE: Duration = Duration::from_millis(50);
/// The shortest time between two reports about descriptors.
const REPORT_AGAIN: Duration = Duration::from_secs(10);
/// The descriptors of a client: its connection, and one to the upstream.
const PER_CONNECTION: u64 = 2;
/// The store, listeners, logs, the runtime; and the connections of the admin port.
const BESIDE: u64 = 64 + crate::admin::CONNECTIONS as u64;

/// The listener with its limits.
pub(super) struct Acceptor {
    pub listener: Listener,
    pub limit: Arc<ConnectionLimit>,
    pub shared: Arc<Shared>,
    /// The last report that no descriptor was found.
    pub reported: Option<Instant>,
}

impl Acceptor {
    /// The next connection that has its permits.
    pub(super) async fn next(&mut self) -> Accepted {
        loop {
            let (socket, ip) = match self.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    self.failed(&error).await;
                    continue;
                }
            };
            // The connections of a trusted proxy carry the requests of many clients.
            let counted = ip.filter(|ip| !self.shared.proxy.trusts(*ip));
            if let Some(open) = self.limit.enter(counted).await {
                return Accepted { socket, ip, open };
            }
            tracing::debug!(
                client = ip.map(|ip| ip.to_string()),
                "closed: its address has limits.connections_per_client connections"
            );
        }
    }

    async fn accept(&self) -> io::Result<(DetachedSocket, Option<IpAddr>)> {
        let (socket, ip) = match &self.listener {
            Listener::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                (Either::Left(stream), Some(address.ip().to_canonical()))
            }
            Listener::Unix(listener) => (Either::Right(listener.accept().await?.0), None),
        };
        Ok((socket::detach(socket)?, ip))
    }

    /// Waits after an error of accept(2) that concerns the process: no descriptors, or no memory.
    /// All others concern the new socket alone.
    async fn failed(&mut self, error: &io::Error) {
        let ours = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
        let code = error.raw_os_error();
        if !ours.iter().any(|ours| code == Some(ours.raw_os_error())) {
            tracing::debug!(%error, "a connection was gone before it was accepted");
            return;
        }
        let now = Instant::now();
        if self.reported.is_none_or(|last| now - last >= REPORT_AGAIN) {
            self.reported = Some(now);
            self.shared.metrics.limit(Limit::FileDescriptors);
            tracing::warn!(%error, "no connection can be accepted until descriptors are free: they wait. Raise the limit (ulimit -n, LimitNOFILE) or lower limits.connections");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Raises the soft limit on file descriptors to the hard one if `limits.connections` may need it,
/// and warns if even that does not suffice.
pub(crate) fn provide_descriptors(limits: &LimitSettings) {
    let needed = limits.connections as u64 * PER_CONNECTION + BESIDE;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let too_low = |limit: Option<u64>| limit.is_some_and(|limit| limit < needed);
    if !too_low(current) {
        return;
    }
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    let raised = setrlimit(Resource::Nofile, raised);
    let allowed = if raised.is_ok() { maximum } else { current };
    if too_low(allowed) {
        tracing::warn!(
            needed,
            allowed,
            "limits.connections may need more file descriptors than the process may have: raise the limit (ulimit -n, LimitNOFILE), or lower limits.connections; connections that find none wait in the kernel's queue"
        );
    }
}
