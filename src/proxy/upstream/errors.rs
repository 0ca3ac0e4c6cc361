//! The failures on the way upstream, and what each says about the request.

use std::io;

/// Why the upstream cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    #[error("upstream.url: {0} is not an authority: {1}")]
    Authority(String, http::uri::InvalidUri),
    #[error(
        "the system's root certificates cannot be read: {0}; upstream.tls.ca_file names others"
    )]
    Roots(io::Error),
}

/// Why a request cannot be sent. Nothing of it was.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReserveError {
    #[error("{0}")]
    Unreachable(String),
    #[error("the lease under which this request was admitted has ended")]
    Ended,
    /// No stream was free before the end of the wait, on any connection that may be open.
    #[error("no HTTP/2 stream was free in time")]
    Full,
    /// The configuration was read again while the request waited.
    #[error("the connections of this configuration take no more requests")]
    Retired,
}

/// Why there is no response head. Each with its causes, in one line.
#[derive(Debug)]
pub(crate) enum SendError {
    /// Nothing was written, and nothing will be.
    NotSent(String),
    /// The upstream says that it has not processed the request, and will not.
    Refused(String),
    /// A byte may have been written.
    Broken(String),
}

/// The fate of a request that was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestFate {
    /// It was not written, or not processed, and will not be.
    WithoutEffect,
    /// It may have arrived, in part or whole. Nothing more of it will.
    Unknown,
}

/// An error with its causes, in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
