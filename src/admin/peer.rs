//! The client of an admin request, as the listener notes it for access control and the audit.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::http::Request;

/// The client of an admin request. A request extension.
#[derive(Clone, Debug)]
pub(super) struct AdminPeer {
    /// Its address, or the user at the other end of a Unix socket.
    pub text: Arc<str>,
    /// Both ends of the connection are on the loopback, or it is a Unix socket's. A connection that
    /// another proxy of the pod hands on from the network comes to the pod's own address.
    pub local: bool,
    pub by_socket: bool,
}

impl AdminPeer {
    pub(super) fn by_tcp(from: SocketAddr, to: SocketAddr) -> Self {
        let loopback = |end: SocketAddr| end.ip().to_canonical().is_loopback();
        Self {
            text: from.to_string().into(),
            local: loopback(from) && loopback(to),
            by_socket: false,
        }
    }

    /// The kernel vouches for the user id of the other end; `None`: it does not say which.
    pub(super) fn by_socket(user: Option<u32>) -> Self {
        Self {
            text: user.map_or_else(|| "unix".into(), |uid| format!("unix, uid {uid}").into()),
            local: true,
            by_socket: true,
        }
    }

    /// The client that sent this request. A request without this extension came over no connection,
    /// and has no rights.
    pub(super) fn of<B>(request: &Request<B>) -> Self {
        let peer = request.extensions().get::<Self>().cloned();
        peer.unwrap_or_else(|| Self {
            text: "unknown".into(),
            local: false,
            by_socket: false,
        })
    }
}
