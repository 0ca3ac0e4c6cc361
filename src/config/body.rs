//! The block `body`: how much of a body is read, and for how long.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::checks::time;
use super::problems::Report;
use super::settings::BodySettings;
use super::units::{Limit, Size, Time};

/// How much of a body is read, and for how long.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Body")]
pub struct BodyFile {
    /// Bodies up to this size are read before the request is judged. Longer ones are judged first
    /// and streamed.
    #[schemars(extend("default" = "1MiB"))]
    pub buffer: Option<Size>,
    /// Longer bodies get a 413. `none`: no limit.
    #[schemars(extend("default" = "none"))]
    pub max: Option<Limit>,
    /// How long a client may take for its whole body on fenced requests. On unfenced requests,
    /// uploads that make progress may take as long as they like.
    #[schemars(extend("default" = "60s"))]
    pub timeout: Option<Time>,
    /// How long a client may pause within its body, on any route.
    #[schemars(extend("default" = "15s"))]
    pub progress_timeout: Option<Time>,
    /// A gRPC call whose client has not ended its messages within this time is judged and then
    /// streamed. Such a client may be waiting for the answer to its first message.
    #[schemars(extend("default" = "250ms"))]
    pub stream_after: Option<Time>,
}

/// The body block, over what it inherits.
pub(super) fn settings(
    at: &str,
    file: &BodyFile,
    inherited: BodySettings,
    report: &mut Report,
) -> BodySettings {
    let settings = BodySettings {
        buffer: file.buffer.map_or(inherited.buffer, |size| size.0),
        max: file.max.map_or(inherited.max, |limit| limit.0),
        timeout: time(
            &format!("{at}.timeout"),
            file.timeout,
            inherited.timeout,
            report,
        ),
        progress_timeout: time(
            &format!("{at}.progress_timeout"),
            file.progress_timeout,
            inherited.progress_timeout,
            report,
        ),
        stream_after: time(
            &format!("{at}.stream_after"),
            file.stream_after,
            inherited.stream_after,
            report,
        ),
    };
    let given = file.buffer.is_some();
    if given && settings.max.is_some_and(|max| max < settings.buffer) {
        report.warn(
            format!("{at}.buffer"),
            "longer than `body.max`, so the rest of it is never used",
            "",
        );
    }
    if given && settings.buffer > 1 << 30 {
        report.error(
            format!("{at}.buffer"),
            "too large: this much of every body is held in memory",
            "1GiB at most; longer bodies are streamed",
        );
    }
    if file.max.is_some() && settings.max == Some(0) {
        report.warn(
            format!("{at}.max"),
            "every request with a body would get a 413",
            "",
        );
    }
    settings
}

/// Looks at the room for bodies: of all routes, and of those that say something else.
pub(super) fn rooms(
    body: BodySettings,
    of_routes: impl Iterator<Item = BodySettings>,
    memory: usize,
    report: &mut Report,
) {
    roomless("body", body, memory, report);
    for (index, of_route) in of_routes.enumerate() {
        if of_route.buffer != body.buffer {
            roomless(&format!("routes[{index}].body"), of_route, memory, report);
        }
    }
}

/// Warns of a buffer that no room will ever be found for.
fn roomless(at: &str, body: BodySettings, memory: usize, report: &mut Report) {
    if usize::try_from(body.buffer).unwrap_or(usize::MAX) > memory {
        report.warn(
            format!("{at}.buffer"),
            "longer than `limits.body_memory`, so the longest of these bodies never find room",
            "",
        );
    }
}

/// The bounds of the top level, as far as its block leaves them out.
pub(super) const fn defaults() -> BodySettings {
    BodySettings {
        buffer: 1 << 20,
        max: None,
        timeout: Duration::from_mins(1),
        progress_timeout: Duration::from_secs(15),
        stream_after: Duration::from_millis(250),
    }
}
