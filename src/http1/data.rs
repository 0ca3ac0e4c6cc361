//! Content as it comes from a socket: data apart from its framing.

use bytes::{Buf as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::http1::content::ContentPart;
use crate::http1::head;

/// Takes the next data off `buf`, and the framing before and behind it: its end may have come with
/// it. Trailers go into `trailers`; a request's are discarded. `next` reads a part; it gets whether there is data already, and
/// returns `None` where nothing more is to be taken.
///
/// # Errors
///
/// Those of `next`. The data before the error is returned beside it.
pub(crate) fn take_data<E>(
    buf: &mut BytesMut,
    mut trailers: Option<&mut Vec<u8>>,
    mut next: impl FnMut(&[u8], bool) -> Result<Option<ContentPart>, E>,
) -> (Option<Bytes>, Result<(), E>) {
    let mut data = None;
    while !buf.is_empty() {
        match next(buf, data.is_some()) {
            Ok(Some(ContentPart::Data(count))) => data = Some(buf.split_to(count).freeze()),
            Ok(Some(ContentPart::Framing(count))) => buf.advance(count),
            Ok(Some(ContentPart::Trailer(count))) => {
                if let Some(trailers) = &mut trailers {
                    trailers.extend_from_slice(&buf[..count]);
                }
                buf.advance(count);
            }
            Ok(None) => break,
            Err(error) => return (data, Err(error)),
        }
    }
    (data, Ok(()))
}

/// The fields of a trailer section that [`crate::http1::chunked`] has checked. `None`: there are
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
