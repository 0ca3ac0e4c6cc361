//! Heads: the request's as it is written, the response's as it is taken over.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Uri, Version, request,
};
use hyper::ext::ReasonPhrase;

use crate::proxy::spare;
use crate::wire::head::Field;
use crate::wire::response::ResponseHead;
use crate::wire::spelling::Spelling;

/// How the body of a request is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestFraming {
    /// So many bytes are to come.
    Length(u64),
    Chunked,
}

/// Writes the head of a request. `ended`: it has no body; `exact`: the length of its body, where it
/// is known.
pub(super) fn write(
    head: &request::Parts,
    ended: bool,
    exact: Option<u64>,
    out: &mut Vec<u8>,
) -> RequestFraming {
    start(&head.method, &head.uri, out);
    let default = Spelling::default();
    let spelling = head.extensions.get().unwrap_or(&default);
    let fields = head.headers.iter();
    // All lines of a name come one behind the other.
    let (mut before, mut nth) = (None, 0);
    for (name, value) in fields.filter(|(name, _)| *name != TRANSFER_ENCODING) {
        nth = if before == Some(name) { nth + 1 } else { 0 };
        before = Some(name);
        spelling.write_line(name.as_str(), nth, out);
        end_line(value, out);
    }
    let announced = head.headers.get(CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse().ok());
    let framing = match (announced, exact) {
        (Some(length), _) => RequestFraming::Length(length),
        (None, _) if ended => RequestFraming::Length(0),
        (None, Some(length)) => {
            field(spelling, &CONTENT_LENGTH, &length.into(), out);
            RequestFraming::Length(length)
        }
        (None, None) => {
            let chunked = HeaderValue::from_static("chunked");
            field(spelling, &TRANSFER_ENCODING, &chunked, out);
            RequestFraming::Chunked
        }
    };
    out.extend_from_slice(b"\r\n");
    framing
}

fn start(method: &Method, uri: &Uri, out: &mut Vec<u8>) {
    out.extend_from_slice(method.as_str().as_bytes());
    out.push(b' ');
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    out.extend_from_slice(target.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
}

fn field(spelling: &Spelling, name: &HeaderName, value: &HeaderValue, out: &mut Vec<u8>) {
    spelling.write(name.as_str(), out);
    end_line(value, out);
}

fn end_line(value: &HeaderValue, out: &mut Vec<u8>) {
    out.extend_from_slice(b": ");
    out.extend_from_slice(value.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Writes a trailer section, with its empty line.
pub(super) fn write_trailers(trailers: Option<&HeaderMap>, out: &mut Vec<u8>) {
    let spelling = Spelling::default();
    for (name, value) in trailers.into_iter().flatten() {
        field(&spelling, name, value, out);
    }
    out.extend_from_slice(b"\r\n");
}

/// Room for the fields that are added on the way to the client.
const OURS: usize = 4;

/// Where the fields of a head stand in its bytes.
#[derive(Debug, Default)]
pub(super) struct FieldPlaces(Vec<[usize; 4]>);

impl FieldPlaces {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Notes a field of the head that begins where `bytes` does.
    pub(super) fn note(&mut self, bytes: &[u8], field: &Field<'_>) {
        let base = bytes.as_ptr().addr();
        let place = |part: &[u8]| part.as_ptr().addr().wrapping_sub(base);
        let name = place(field.name);
        let value = place(field.value);
        let (name_end, value_end) = (name + field.name.len(), value + field.value.len());
        self.0.push([name, name_end, value, value_end]);
    }

    /// The fields, and how their names were spelled. `None`: not what was noted.
    fn fields(&self, bytes: &Bytes) -> Option<(HeaderMap, Spelling)> {
        let mut headers = spare::map();
        headers.reserve(self.0.len() + OURS);
        let mut spelling = Spelling::default();
        for [name, name_end, value, value_end] in &self.0 {
            let spelled = bytes.get(*name..*name_end)?;
            let name = HeaderName::from_bytes(spelled).ok()?;
            let value = HeaderValue::from_maybe_shared(bytes.slice(*value..*value_end)).ok()?;
            let known = headers.append(&name, value);
            let before = |headers: &HeaderMap| headers.get_all(&name).iter().count() - 1;
            let nth = if known { before(&headers) } else { 0 };
            spelling.note_line(spelled, nth);
        }
        Some((headers, spelling))
    }
}

/// The response of which `bytes` are the head. `None`: not what was noted.
pub(super) fn response(
    head: &ResponseHead,
    bytes: &Bytes,
    places: &FieldPlaces,
) -> Option<Response<()>> {
    let (headers, spelling) = places.fields(bytes)?;
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_u16(head.status).ok()?;
    *response.version_mut() = if head.http_11 {
        Version::HTTP_11
    } else {
        Version::HTTP_10
    };
    *response.headers_mut() = headers;
    if !spelling.is_empty() {
        response.extensions_mut().insert(spelling);
    }
    let reason = reason(bytes);
    let usual = response.status().canonical_reason();
    if usual.map(str::as_bytes) != Some(reason) {
        let reason = ReasonPhrase::try_from(bytes.slice_ref(reason)).ok()?;
        response.extensions_mut().insert(reason);
    }
    Some(response)
}

/// Behind `HTTP/1.1 200`, and a space where there is one. One that is not ASCII is left out.
fn reason(head: &[u8]) -> &[u8] {
    let rest = head.get(12..).unwrap_or_default();
    let end = rest.iter().position(|byte| *byte == b'\r');
    let reason = &rest[..end.unwrap_or(rest.len())];
    let reason = reason.strip_prefix(b" ").unwrap_or(reason);
    if reason.is_ascii() {
        reason
    } else {
        &reason[..0]
    }
}

/// The trailers that these bytes are, which have been read to the letter. `None`: there are none.
pub(super) fn trailers(section: &[u8]) -> Option<HeaderMap> {
    let mut trailers = HeaderMap::new();
    for field in crate::wire::head::fields(section) {
        let field = field.ok()?;
        let name = HeaderName::from_bytes(field.name).ok()?;
        trailers.append(name, HeaderValue::from_bytes(field.value).ok()?);
    }
    (!trailers.is_empty()).then_some(trailers)
}
