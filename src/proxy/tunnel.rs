//! Tunnels: two connections that have left HTTP (RFC 9110, 7.8), joined until one of them ends.
//!
//! The content of a tunnel cannot be judged message by message, so a route that fences opens none.
//!
//! There is no idle timeout. Only the tunnel's own protocol knows whether a silent tunnel is alive
//! (`WebSocket` has pings for it). TCP's keep-alive detects that the machine at the other end is gone.

use std::pin::pin;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::headers::{self, Via};
use super::refusal::Refusal;
use crate::http1::names::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE};
use crate::http1::{ClientSocket, Fields, RequestHead, Response};
use crate::proxy::client_body::{ClientBody, full};
use crate::upstream::{ResponseBody, Upgraded, into_upgraded};

/// The time that a client may take to end its side after the upstream has ended the other.
const LINGER: Duration = Duration::from_secs(2);

/// The client's side of a tunnel to come.
pub(crate) struct TunnelOpening {
    client: oneshot::Receiver<ClientSocket>,
    /// The protocols that it asks for, as one line.
    protocols: Vec<u8>,
    /// Cancelled when the process stops.
    stopping: CancellationToken,
}

impl TunnelOpening {
    /// The opening of the tunnel that a request asks for. `None` if it asks for none.
    pub(crate) fn take(head: &mut RequestHead, stopping: &CancellationToken) -> Option<Self> {
        let asked: Vec<&[u8]> = protocols(&head.fields).collect();
        if asked.is_empty() || !headers::connection_has(&head.fields, "upgrade") {
            return None;
        }
        let protocols = asked.join(&b", "[..]);
        Some(Self {
            client: head.upgrade.take()?,
            protocols,
            stopping: stopping.clone(),
        })
    }

    /// Asks the upstream for the same.
    pub(crate) fn ask(&self, fields: &mut Fields) {
        fields.insert(UPGRADE, &self.protocols);
        fields.insert(CONNECTION, "upgrade");
    }

    /// Whether a 101 with this header switches to protocols that the client asked for, one or
    /// several in layers.
    fn allows(&self, fields: &Fields) -> bool {
        let mut chosen = headers::members(fields, UPGRADE).peekable();
        let asked = |protocol: &[u8]| {
            let mut asked = self.protocols.split(|byte| *byte == b',');
            asked.any(|asked| asked.trim_ascii().eq_ignore_ascii_case(protocol))
        };
        chosen.peek().is_some() && chosen.all(asked)
    }

    /// The upstream has answered 101. Returns the client's 101, and the tunnel that follows it. That
    /// yields `true` if the upstream has ended it.
    ///
    /// # Errors
    /// The upstream switched to a protocol that the client did not ask for.
    pub(crate) fn switch(
        opening: Option<Self>,
        response: Response<ResponseBody>,
        via: Via,
    ) -> Result<(Response<ClientBody>, impl Future<Output = bool> + Send), Refusal> {
        let Some(opening) = opening.filter(|opening| opening.allows(&response.head.fields)) else {
            let cause = "the upstream switched protocols unasked";
            return Err(Refusal::Broken(cause.into()));
        };
        let Response { mut head, body } = response;
        let fields = &mut head.fields;
        let protocols: Vec<Vec<u8>> = fields.get_all(UPGRADE).map(<[u8]>::to_vec).collect();
        headers::response_for_client(fields, head.version, via);
        // A 101 has no content (RFC 9110, 8.6).
        fields.remove(CONTENT_LENGTH);
        fields.remove(TRANSFER_ENCODING);
        for protocol in protocols {
            fields.append(UPGRADE, protocol);
        }
        fields.insert(CONNECTION, "upgrade");
        let answer = Response {
            head,
            body: full(bytes::Bytes::new()),
        };
        Ok((answer, opening.run(into_upgraded(body))))
    }

    /// Carries what comes either way, until one side ends or the process stops.
    async fn run(self, upstream: Option<Upgraded>) -> bool {
        let joined = async {
            match (self.client.await, upstream) {
                (Ok(client), Some(mut upstream)) => join(client, upstream.tunnel()).await,
                _ => false,
            }
        };
        let whole = self.stopping.run_until_cancelled(joined);
        whole.await.unwrap_or_default()
    }
}

/// The client asks to leave HTTP.
pub(crate) fn wanted(fields: &Fields) -> bool {
    protocols(fields).next().is_some()
}

/// The protocols that a client may ask for. Other versions of HTTP, with TLS or without, do not
/// count: a server may pass such a wish over (RFC 9110, 7.8; RFC 9113 has retired `h2c`), and in a
/// tunnel they would carry requests that were not judged.
fn protocols(fields: &Fields) -> impl Iterator<Item = &[u8]> {
    headers::members(fields, UPGRADE).filter(|protocol| !carries_http(protocol))
}

/// The beginnings of all names under which servers have spoken HTTP, in drafts too: `h2c`,
/// `h2c-14`, `h2-16`, `HTTP/2.0`, `h3-29`, `hq-interop`, `SPDY/3.1`, `TLS/1.2`, `PTTH/1.0` (HTTP
/// with the roles exchanged).
const HTTP: [&[u8]; 8] = [
    b"h2", b"h3", b"hq", b"http", b"ptth", b"spdy", b"ssl", b"tls",
];

fn carries_http(protocol: &[u8]) -> bool {
    HTTP.iter().any(|name| {
        let start = protocol.get(..name.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(name))
    })
}

/// Copies both ways. `true`: the upstream has ended its side, before the client had ended its own,
/// and the client has been given everything.
async fn join(
    client: impl AsyncRead + AsyncWrite + Unpin,
    upstream: impl AsyncRead + AsyncWrite + Unpin,
) -> bool {
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_upstream, mut to_upstream) = tokio::io::split(upstream);
    let upstream_ended = {
        let up = async {
            tokio::io::copy(&mut from_client, &mut to_upstream).await?;
            to_upstream.shutdown().await
        };
        let down = tokio::io::copy(&mut from_upstream, &mut to_client);
        let (mut up, mut down) = (pin!(up), pin!(down));
        tokio::select! {
            biased;
            down = &mut down => down.is_ok(),
            up = &mut up => {
                if up.is_ok() {
                    let _ = down.await;
                }
                false
            }
        }
    };
    if upstream_ended {
        // The client may end its side too: a close with unread bytes would reset the connection,
        // and with it what the client has not read yet.
        let _ = tokio::time::timeout(LINGER, async {
            to_client.shutdown().await?;
            tokio::io::copy(&mut from_client, &mut tokio::io::sink()).await
        })
        .await;
    }
    upstream_ended
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, duplex};

    fn map(lines: &[(&'static str, &str)]) -> Fields {
        let mut fields = Fields::default();
        for (name, value) in lines {
            fields.append(name, value);
        }
        fields
    }

    #[test]
    fn http_in_a_tunnel_is_not_asked_for() {
        for (lines, expected) in [
            (&["websocket"][..], &["websocket"][..]),
            (&["h2c", "WebSocket, tls/1.0"], &["WebSocket"]),
            (&["HTTP/2.0, a/1,,b"], &["a/1", "b"]),
            (&["h2c, TLS/1.2 , HTTP"], &[]),
            (
                &["h2c-14, H2-16, h2c_x, HTTP/3, http2, h3-29, hq-interop"],
                &[],
            ),
            (&["SPDY/3.1, spdy/2, ssl, PTTH/1.0, https"], &[]),
            (&["h1, x-h2c, connect-udp"], &["h1", "x-h2c", "connect-udp"]),
        ] {
            let lines: Vec<_> = lines.iter().map(|line| ("upgrade", *line)).collect();
            let headers = map(&lines);
            let found: Vec<_> = protocols(&headers).map(String::from_utf8_lossy).collect();
            assert_eq!(found, expected);
            assert_eq!(wanted(&headers), !expected.is_empty());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_upstreams_own_end_is_one() {
        // The upstream ends first.
        let (mut client, mut a) = duplex(64);
        let (mut upstream, mut b) = duplex(64);
        client.write_all(b"hello").await.expect("room");
        upstream.write_all(b"bye").await.expect("room");
        upstream.shutdown().await.expect("open");
        assert!(join(&mut a, &mut b).await);
        let mut got = [0; 3];
        client.read_exact(&mut got).await.expect("all of it");
        assert_eq!(&got, b"bye");

        // The client ends first, and the upstream answers to the end.
        let (mut client, mut a) = duplex(64);
        let (mut upstream, mut b) = duplex(64);
        client.shutdown().await.expect("open");
        let served = async {
            let mut all = Vec::new();
            upstream.read_to_end(&mut all).await.expect("an end");
            upstream.write_all(b"rest").await.expect("room");
            upstream.shutdown().await.expect("open");
        };
        let (whole, ()) = tokio::join!(join(&mut a, &mut b), served);
        assert!(!whole);
        let mut got = [0; 4];
        client.read_exact(&mut got).await.expect("all of it");
        assert_eq!(&got, b"rest");

        // The client is gone, and the upstream has not noticed.
        let (client, mut a) = duplex(64);
        let (mut upstream, mut b) = duplex(64);
        drop(client);
        upstream.write_all(b"x").await.expect("room");
        let joined = tokio::time::timeout(Duration::from_secs(20), join(&mut a, &mut b));
        assert!(!joined.await.expect("it ends"));
    }
}
