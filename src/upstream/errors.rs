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
