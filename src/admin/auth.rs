//! Access control of the admin port. Reads of keys and marks are open on this machine's loopback
//! and over a Unix socket; elsewhere they need a token. Writes always need the token of
//! `admin.token_file`: a sidecar shares its loopback with the legacy container.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, Uri, header};
use axum::middleware::Next;
use axum::response::Response;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::either::Either;

use super::LoadedConfig;
use super::problem::{
    AdminProblem, ProblemKind, READS_OFF, UNAUTHORIZED, UNKNOWN_HOST, WRITES_OFF,
};
use crate::config::{BearerTokens, bearer};
use crate::metrics::{AdminRefusal, Metrics};
use crate::routing::is_address_or_localhost;
use crate::socket::Socket;
use crate::throttle::Throttle;

/// Reads that are handled at once, since each waits for the store, and needs no token from this
/// machine. Further ones wait.
pub(super) const READS: usize = 32;

const HOW_TO_WRITE: &str = "Set admin.token_file to a file that holds a secret of your choice (for example the output of \
     `openssl rand -hex 32`), and send it as `Authorization: Bearer …`";

const HOW_TO_READ: &str = "They are open on the loopback of the machine or pod, and elsewhere they need a token. Set \
     admin.read_token_file, or ask from inside (`fencepost marks`)";

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
    pub(super) fn of(socket: &Socket) -> io::Result<Self> {
        let loopback = |end: SocketAddr| end.ip().to_canonical().is_loopback();
        let (text, local) = match socket {
            Either::Left(tcp) => {
                let (from, to) = (tcp.peer_addr()?, tcp.local_addr()?);
                (from.to_string(), loopback(from) && loopback(to))
            }
            // The kernel vouches for the user id of the other end.
            Either::Right(unix) => match unix.peer_cred() {
                Ok(user) => (format!("unix, uid {}", user.uid()), true),
                Err(_) => ("unix".to_owned(), true),
            },
        };
        Ok(Self {
            text: text.into(),
            local,
            by_socket: matches!(socket, Either::Right(_)),
        })
    }
}

/// The proof that a request carries the token of `admin.token_file`, with its client.
#[derive(Clone, Debug)]
pub struct MayWrite(Arc<str>);

impl MayWrite {
    /// The actor for the audit table: the given name, which is not verified, and the client.
    pub(super) fn actor(&self, name: &str) -> String {
        let client = &self.0;
        match name.trim() {
            "" => format!("admin API, {client}"),
            name => format!("{name} (admin API, {client})"),
        }
    }
}

/// Judges the requests to `/v1`. The files of the tokens are read each time, so that a rotated
/// secret counts at once.
pub struct Access {
    loaded: watch::Receiver<LoadedConfig>,
    /// Of the lines about wrong tokens.
    throttle: Throttle,
    metrics: Arc<Metrics>,
    reads: Semaphore,
}

impl Access {
    pub fn new(loaded: watch::Receiver<LoadedConfig>, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            loaded,
            throttle: Throttle::of_many(10),
            metrics,
            reads: Semaphore::new(READS),
        })
    }

    /// A layer: lets allowed requests through, and marks those that may write.
    pub async fn guard(
        self: Arc<Self>,
        peer: AdminPeer,
        mut request: Request,
        next: Next,
    ) -> Result<Response, AdminProblem> {
        let settings = Arc::clone(&self.loaded.borrow().settings);
        let writes = ("admin.token_file", &settings.admin.token_file);
        let headers = request.headers();
        if request.method() == Method::POST {
            let off = (WRITES_OFF, HOW_TO_WRITE);
            self.admit(&peer, headers, &[writes], off).await?;
            request.extensions_mut().insert(MayWrite(peer.text));
            return Ok(next.run(request).await);
        }
        if !self.is_open(&peer, headers, request.uri())? {
            // The token of writes also reads.
            let reads = ("admin.read_token_file", &settings.admin.read_token_file);
            let off = (READS_OFF, HOW_TO_READ);
            self.admit(&peer, headers, &[reads, writes], off).await?;
        }
        let _permit = self.reads.acquire().await;
        Ok(next.run(request).await)
    }

    /// True if a read needs no token.
    fn is_open(
        &self,
        peer: &AdminPeer,
        headers: &HeaderMap,
        uri: &Uri,
    ) -> Result<bool, AdminProblem> {
        // A browser page whose name its owner has turned toward this machine (DNS rebinding)
        // arrives over the loopback, with that name.
        let known_host = peer.by_socket || names_an_address(headers, uri);
        if peer.local && known_host {
            return Ok(true);
        }
        if peer.local && !headers.contains_key(header::AUTHORIZATION) {
            self.metrics.admin_refused(AdminRefusal::UnknownHost);
            return Err(UNKNOWN_HOST.detail(
                "Without a token the admin API answers only to an IP address or `localhost` in \
                 Host and target: any other name may be that of a web page which was turned \
                 toward this machine. Ask by the address, or send a token.",
            ));
        }
        Ok(false)
    }

    /// An error unless the request has a token of one of the files. A wrong one is counted and
    /// logged. `off`: the error if no file has a token.
    async fn admit(
        &self,
        peer: &AdminPeer,
        headers: &HeaderMap,
        files: &[(&str, &Option<PathBuf>)],
        (off, advice): (ProblemKind, &str),
    ) -> Result<(), AdminProblem> {
        let (mut expected, mut problems) = (Vec::new(), Vec::new());
        for (name, file) in files {
            let Some(file) = file else { continue };
            match BearerTokens::of(tokio::fs::read(file).await) {
                Ok(tokens) => expected.push(tokens),
                Err(why) => {
                    tracing::warn!(path = %file.display(), "{name}: {why}; no token is accepted until this is fixed");
                    problems.push(format!("{name} {why}. "));
                }
            }
        }
        if expected.is_empty() {
            return Err(off.detail(format!("{}{advice}.", problems.concat())));
        }
        let files: Vec<_> = files.iter().map(|(name, _)| *name).collect();
        let files = files.join(" or of ");
        let lines = headers.get_all(header::AUTHORIZATION).iter();
        let detail = match bearer(lines.map(HeaderValue::as_bytes)) {
            Some(token) if expected.iter().any(|tokens| tokens.take(token)) => return Ok(()),
            Some(_) => {
                self.metrics.admin_refused(AdminRefusal::WrongToken);
                if let Some(left_out) = self.throttle.say(Instant::now()) {
                    let client = &*peer.text;
                    tracing::warn!(client, left_out, "a wrong admin token was refused");
                }
                format!("The bearer token is not that of {files}. Send that one.")
            }
            None => format!("Send one `Authorization: Bearer …` with the token of {files}."),
        };
        let problem = UNAUTHORIZED.detail(detail);
        Err(problem.with_header(header::WWW_AUTHENTICATE, "Bearer realm=\"fencepost admin\""))
    }
}

/// True if the request is addressed to an IP address or `localhost`. A name in the target counts
/// too, because it overrides the Host header (RFC 9112, 3.2.2).
fn names_an_address(headers: &HeaderMap, uri: &Uri) -> bool {
    let mut lines = headers.get_all(header::HOST).iter();
    let (Some(line), None) = (lines.next(), lines.next()) else {
        return false;
    };
    line.to_str().is_ok_and(is_address_or_localhost)
        && uri
            .authority()
            .is_none_or(|target| is_address_or_localhost(target.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_and_localhost_are_known_hosts() {
        for (target, hosts, known) in [
            ("/v1/marks", &["127.0.0.1:7081"][..], true),
            ("/v1/marks", &["127.0.0.1"], true),
            ("/v1/marks", &["[::1]:7081"], true),
            ("/v1/marks", &["LocalHost:7081"], true),
            ("/v1/marks", &["localhost."], true),
            ("/v1/marks", &["localhost.:7081"], true),
            ("/v1/marks", &["localhost.."], false),
            ("/v1/marks", &["localhost.evil.example."], false),
            ("/v1/marks", &["10.1.2.3"], true),
            ("/v1/marks", &["evil.example:7081"], false),
            ("/v1/marks", &["localhost.evil.example"], false),
            ("/v1/marks", &["127.0.0.1.evil.example"], false),
            ("/v1/marks", &["localhost", "evil.example"], false),
            ("/v1/marks", &["localhost", "localhost"], false),
            ("/v1/marks", &[""], false),
            ("/v1/marks", &[], false),
            ("http://evil.example/v1/marks", &["localhost"], false),
            ("http://localhost:7081/v1/marks", &["localhost:7081"], true),
            ("http://localhost:7081/v1/marks", &["evil.example"], false),
        ] {
            let mut headers = HeaderMap::new();
            for host in hosts {
                headers.append(header::HOST, host.parse().expect("a value"));
            }
            let uri = target.parse().expect("a target");
            assert_eq!(
                names_an_address(&headers, &uri),
                known,
                "{target} {hosts:?}"
            );
        }
    }
}
