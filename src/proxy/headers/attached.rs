//! The header fields of `fencepost attach`, which stands on the client's side of a fencepost: it
//! belongs to its client, so it adds no `X-Forwarded-…`, and takes no `X-Fencing-…` off answers.

use http::header::TE;
use http::{HeaderMap, HeaderValue, Version};

use super::trailers::TrailerRules;
use super::via::Via;
use super::{OPERATION, TOKEN, set, strip_hop_by_hop, strip_request, takes_trailers};

/// The fields that go to the fencepost besides those that the client sent.
#[derive(Debug)]
pub struct ForFencepost<'a> {
    pub stamp: &'a FencingStamp,
    /// The version of the client's request.
    pub version: Version,
    /// The connection to the fencepost is HTTP/2.
    pub http2: bool,
    pub via: Via,
}

/// The fencing fields of one request.
#[derive(Clone, Debug)]
pub struct FencingStamp {
    pub token: HeaderValue,
    /// The name of the operation for requests that have none.
    pub operation: Option<HeaderValue>,
}

/// Turns a client's header into that of the fencepost's client.
pub fn request_for_fencepost(headers: &mut HeaderMap, add: &ForFencepost<'_>) {
    let wants_trailers = takes_trailers(headers);
    strip_request(headers);
    if wants_trailers && add.http2 {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    set(headers, TOKEN, add.stamp.token.clone());
    if let Some(operation) = &add.stamp.operation
        && !headers.contains_key(OPERATION)
    {
        headers.insert(OPERATION, operation.clone());
    }
    add.via.append(headers, add.version);
}

/// Turns a fencepost's header into the client's. Returns the rules for the trailers.
pub fn response_for_client(headers: &mut HeaderMap, version: Version, via: Via) -> TrailerRules {
    let trailers = TrailerRules::of(headers);
    strip_hop_by_hop(headers);
    trailers.announce(headers);
    via.append(headers, version);
    trailers
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;
    use crate::store::InstanceId;

    fn sent(client: &[(&'static str, &'static str)], operation: Option<&'static str>) -> HeaderMap {
        let mut headers: HeaderMap = client
            .iter()
            .map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            })
            .collect();
        let stamp = FencingStamp {
            token: HeaderValue::from_static("41"),
            operation: operation.map(HeaderValue::from_static),
        };
        let add = ForFencepost {
            stamp: &stamp,
            version: Version::HTTP_11,
            http2: false,
            via: Via::new(InstanceId::from_bits(7)),
        };
        request_for_fencepost(&mut headers, &add);
        headers
    }

    #[test]
    fn the_token_is_sent_once_and_nothing_tells_of_another_hop_but_via() {
        let headers = sent(
            &[
                ("x_fencing_token", "41"),
                ("x-fencing-token", "41"),
                ("accept", "*/*"),
            ],
            Some("nightly"),
        );
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            ["accept", "via", "x-fencing-operation", "x-fencing-token"]
        );
        assert_eq!(headers[TOKEN], "41");
    }

    #[test]
    fn the_clients_own_operation_stays() {
        let headers = sent(&[("x-fencing-operation", "refund-7")], Some("nightly"));
        assert_eq!(headers[OPERATION], "refund-7");
    }
}
