//! Field lines: made into a header map from the ranges that a reader has found, and written with
//! the spelling of their names.

use bytes::Bytes;
use http::header::InvalidHeaderValue;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::wire::head::{self, FieldRange, HeadError};
use crate::wire::spelling::Spelling;

/// Moves the fields of a head into `headers`, and returns how their names were spelled. `room`: for
/// so many fields that are added later.
///
/// # Errors
///
/// The map takes no more fields, or no name or value that is so long.
pub(crate) fn read(
    head: &Bytes,
    fields: &[FieldRange],
    headers: &mut HeaderMap,
    room: usize,
) -> Result<Spelling, HeadError> {
    let too_many = |_| HeadError::Fields(fields.len());
    headers.try_reserve(fields.len() + room).map_err(too_many)?;
    let mut spelling = Spelling::default();
    for field in fields {
        let spelled = &head[field.name.clone()];
        let first = spelled.first().copied().unwrap_or_default();
        let name = HeaderName::from_bytes(spelled).map_err(|_| HeadError::Name(first))?;
        let value = HeaderValue::from_maybe_shared(head.slice(field.value.clone()))
            .or_else(|_| without_controls(&head[field.value.clone()]))
            .map_err(|_| HeadError::Value(first))?;
        let known = headers.try_append(&name, value).map_err(too_many)?;
        let before = |headers: &HeaderMap| headers.get_all(&name).iter().count() - 1;
        let nth = if known { before(headers) } else { 0 };
        spelling.note_line(spelled, nth);
    }
    Ok(spelling)
}

/// A value of a response with spaces in place of its control bytes (RFC 9110, 5.5), and with them
/// of the line ends in a folded one (RFC 9112, 5.2).
fn without_controls(value: &[u8]) -> Result<HeaderValue, InvalidHeaderValue> {
    let plain = |byte: &u8| {
        if head::is_in_value(*byte) {
            *byte
        } else {
            b' '
        }
    };
    let value: Vec<u8> = value.iter().map(plain).collect();
    HeaderValue::from_bytes(head::trim(&value))
}

/// The fields of a trailer section that [`crate::wire::chunked`] has checked. `None`: there are
/// none.
pub(crate) fn read_trailers(section: &[u8]) -> Option<HeaderMap> {
    let mut trailers = HeaderMap::new();
    for field in head::fields(section) {
        let field = field.ok()?;
        let name = HeaderName::from_bytes(field.name).ok()?;
        let value = HeaderValue::from_bytes(field.value).ok()?;
        trailers.try_append(name, value).ok()?;
    }
    (!trailers.is_empty()).then_some(trailers)
}

/// Writes a field line with the first spelling of its name.
pub(crate) fn write(spelling: &Spelling, name: &HeaderName, value: &[u8], out: &mut Vec<u8>) {
    write_nth(spelling, (name, 0), value, out);
}

/// Writes the line of a name with this number, counted from 0.
pub(crate) fn write_nth(
    spelling: &Spelling,
    (name, nth): (&HeaderName, usize),
    value: &[u8],
    out: &mut Vec<u8>,
) {
    spelling.write_line(name.as_str(), nth, out);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}
