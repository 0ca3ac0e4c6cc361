//! The refusals of requests whose body cannot be taken.

use super::body::UploadError;
use super::refusal::Refusal;
use crate::wire;

pub(super) fn body_refusal(error: &UploadError) -> Refusal {
    match error {
        UploadError::TooLarge(limit) => Refusal::TooLarge(format!(
            "This route takes bodies up to {limit} bytes (body.max)."
        )),
        UploadError::Broken(broken) if let Some(malformed) = malformed(&**broken) => {
            malformed_refusal(malformed)
        }
        UploadError::Trailers(error) => malformed_refusal(*error),
        UploadError::NoRoom => Refusal::Overloaded(
            "There is no memory left for the body. Nothing was forwarded. See limits.body_memory.",
        ),
        UploadError::Crowded => Refusal::Overloaded(
            "Places were needed, and the rest of the body was waited for. Nothing was forwarded. See limits.in_flight.",
        ),
        UploadError::TooSlow(_)
        | UploadError::Paused(_)
        | UploadError::TooLow(_)
        | UploadError::Broken(_)
        | UploadError::Cut => Refusal::ClientGone(format!("{error}")),
    }
}

fn malformed_refusal(error: wire::chunked::BodyError) -> Refusal {
    let what = format!("The body of the request: {error}.");
    if error.is_too_large() {
        Refusal::HeadTooLarge(what)
    } else {
        Refusal::Ambiguous(what)
    }
}

/// The refusal for a body that broke off because it is wrong, if it is.
fn malformed(broken: &(dyn std::error::Error + 'static)) -> Option<wire::chunked::BodyError> {
    let mut causes = std::iter::successors(Some(broken), |error| error.source());
    causes.find_map(|error| error.downcast_ref().copied())
}

pub(super) fn too_long_for_key(buffer: u64) -> Refusal {
    Refusal::TooLarge(format!(
        "The resource key of this route is read from the body, which may have {buffer} bytes for that (body.buffer)."
    ))
}
