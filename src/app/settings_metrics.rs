//! The metrics that show the configuration: the labels of the routes, when it was taken over, and
//! when the certificates expire.

use crate::config::{Mode, Settings};
use crate::json_values::wall_clock;
use crate::metrics::{Certificate, Metrics};

/// The labels and modes of the routes.
pub(super) fn route_labels(settings: &Settings) -> Vec<(String, Mode)> {
    let routes = settings.routes.iter();
    routes
        .map(|route| (route.label().to_owned(), route.mode))
        .collect()
}

/// Shows that these settings are served from now on, and when their certificates expire.
pub(super) fn set_loaded(metrics: &Metrics, settings: &Settings) {
    metrics.set_config_loaded(wall_clock());
    metrics.set_config_digest(&settings.document.digest());
    let listener = settings.tls.as_ref().map(|tls| tls.expires);
    metrics.set_certificate_expiry(Certificate::Listener, listener);
    let admin = settings.admin.tls.as_ref().map(|tls| tls.expires);
    metrics.set_certificate_expiry(Certificate::Admin, admin);
    let upstream = settings.upstream.tls.identity.as_ref();
    metrics.set_certificate_expiry(Certificate::Upstream, upstream.map(|shown| shown.expires));
}
