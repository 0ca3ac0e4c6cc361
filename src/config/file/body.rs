//! The block `body`: how much of a body is read, and for how long.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::units::{OrNone, Size, Time};
use super::values::positive;
use crate::config::settings::BodySettings;
use crate::config::yaml::Report;

/// Limits of size and time for bodies.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a map of fields")]
#[schemars(rename = "Body")]
pub struct BodyFile {
    /// Bodies up to this size are read before the request is judged. Longer ones are judged first
    /// and streamed.
    #[schemars(extend("default" = Size(DEFAULT.buffer)))]
    pub buffer: Option<Size>,
    /// Longer bodies get a 413. `none`: no limit.
    #[schemars(extend("default" = OrNone(DEFAULT.max.map(Size))))]
    pub max: Option<OrNone<Size>>,
    /// The time for a whole body on fenced requests. On unfenced requests, uploads that make
    /// progress may take as long as they like.
    #[schemars(extend("default" = Time(DEFAULT.timeout)))]
    pub timeout: Option<Time>,
    /// The longest pause of a client within its body, on any route.
    #[schemars(extend("default" = Time(DEFAULT.progress_timeout)))]
    pub progress_timeout: Option<Time>,
    /// A gRPC call whose client has not ended its messages within this time is judged and then
    /// streamed. Such a client may be waiting for the answer to its first message.
    #[schemars(extend("default" = Time(DEFAULT.stream_after)))]
    pub stream_after: Option<Time>,
}

/// The top level's values where its block leaves them out. A route inherits the top level's, so the
/// fields of the block are optional.
pub(super) const DEFAULT: BodySettings = BodySettings {
    buffer: 1 << 20,
    max: None,
    timeout: Duration::from_mins(1),
    progress_timeout: Duration::from_secs(15),
    stream_after: Duration::from_millis(250),
};

/// The block over what it inherits.
pub(super) fn settings(
    at: &str,
    file: &BodyFile,
    inherited: BodySettings,
    report: &mut Report,
) -> BodySettings {
    let mut time = |field: &str, given: Option<Time>, inherited| {
        given.map_or(inherited, |time| {
            positive(&format!("{at}.{field}"), time, report)
        })
    };
    let settings = BodySettings {
        buffer: file.buffer.map_or(inherited.buffer, |size| size.0),
        max: file
            .max
            .map_or(inherited.max, |max| max.0.map(|size| size.0)),
        timeout: time("timeout", file.timeout, inherited.timeout),
        progress_timeout: time(
            "progress_timeout",
            file.progress_timeout,
            inherited.progress_timeout,
        ),
        stream_after: time("stream_after", file.stream_after, inherited.stream_after),
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

/// Compares the buffers with the memory for bodies: the top level's, and those of routes that
/// differ.
pub(super) fn check_memory(
    body: BodySettings,
    of_routes: impl Iterator<Item = BodySettings>,
    memory: usize,
    report: &mut Report,
) {
    let mut check = |at: &str, body: BodySettings| {
        if usize::try_from(body.buffer).unwrap_or(usize::MAX) > memory {
            report.warn(
                format!("{at}.buffer"),
                "longer than `limits.body_memory`, so the longest of these bodies never find room",
                "",
            );
        }
    };
    check("body", body);
    for (index, of_route) in of_routes.enumerate() {
        if of_route.buffer != body.buffer {
            check(&format!("routes[{index}].body"), of_route);
        }
    }
}
