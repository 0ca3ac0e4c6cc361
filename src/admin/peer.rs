//! The client of an admin request, as the listener notes it for access control and the limits.

use std::sync::Arc;

use axum::http::Request;

use super::clients::{AdminClient, Conduct};

/// The client of an admin request: an address, or the user at the other end of a Unix socket.
/// A request extension.
#[derive(Clone, Debug)]
pub(super) struct AdminPeer {
    pub text: Arc<str>,
    pub client: AdminClient,
    /// Both ends of the connection are on the loopback, or it is a Unix socket's. A connection that
    /// another proxy of the pod hands on from the network comes to the pod's own address.
    pub local: bool,
    pub conduct: Conduct,
}

impl AdminPeer {
    /// The client that sent this request. A request without this extension came over no connection,
    /// and has no rights.
    pub(super) fn of<B>(request: &Request<B>) -> Self {
        let peer = request.extensions().get::<Self>().cloned();
        peer.unwrap_or_else(|| Self {
            text: "unknown".into(),
            client: AdminClient::User(None),
            local: false,
            conduct: Conduct::default(),
        })
    }

    pub(super) fn is_by_socket(&self) -> bool {
        matches!(self.client, AdminClient::User(_))
    }
}
