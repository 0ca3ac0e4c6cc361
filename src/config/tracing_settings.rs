//! [`TracingSettings`]: the checked block `tracing`.

/// The collector of spans, and the share of traced requests.
#[derive(Clone, Debug, PartialEq)]
pub struct TracingSettings {
    /// The URL, with its path.
    pub endpoint: String,
    /// The share of the requests without a context that is traced: 0 to 1.
    pub sample: f64,
}
