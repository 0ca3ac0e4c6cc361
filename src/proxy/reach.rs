//! Whether the upstream can be reached, as `fencepost check --connect` asks.

use std::sync::Arc;

use super::upstream::Upstream;
use crate::boot_clock::BootClock;
use crate::config::Settings;
use crate::fencing::lease::Lease;
use crate::metrics::Metrics;
use crate::store::InstanceId;

/// Opens one connection to the upstream, TLS included, and sends no request.
///
/// # Errors
///
/// Why there is none, for an operator.
pub async fn reach(settings: &Settings) -> Result<(), String> {
    let metrics = Arc::new(Metrics::new(&[]));
    let unshared = Lease::new(BootClock::boottime(), None, InstanceId::from_bits(0));
    let upstream = Upstream::new(&settings.upstream, &Arc::new(unshared), &metrics)
        .map_err(|error| error.to_string())?;
    upstream.reach().await
}
