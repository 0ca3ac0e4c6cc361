//! Decides which settings a reload may change, and which only a restart may. The marks, the leases
//! and the open epochs depend on some settings, which stay as they were when those were made.
//! Routes are compared by what they do: see [`route_table`](super::route_table).
//!
//! Most limits are applied at the start, and nothing depends on them. A reload that changes one
//! keeps the current value, says so, and takes everything else.

use super::limits::LimitSettings;
use super::settings::Settings;

impl Settings {
    /// Takes the new settings, and returns the names of fields that keep their value until a
    /// restart. If a setting changes that may not, every reason is returned and nothing is taken.
    pub fn reload_from(&self, mut new: Self) -> Result<(Self, Vec<&'static str>), Vec<String>> {
        let mut fixed = Vec::new();
        let mut fix = |name: &str, changed: bool| {
            if changed {
                fixed.push(format!(
                    "{name} cannot change while fencepost runs: restart it"
                ));
            }
        };
        macro_rules! fix {
            ($($($field:ident).+)*) => {$(
                let name = stringify!($($field).+);
                fix(name, self.$($field).+ != new.$($field).+);
            )*};
        }
        fix!(listen listen_mode admin.listen);
        // Clients of the other protocol would fail from one moment to the next.
        fix(
            "the presence of tls",
            self.tls.is_some() != new.tls.is_some(),
        );
        let (admin_tls, new_admin_tls) = (&self.admin.tls, &new.admin.tls);
        fix(
            "the presence of admin.tls",
            admin_tls.is_some() != new_admin_tls.is_some(),
        );
        fix("store.url", self.store.target != new.store.target);
        fix!(store.tls store.namespace store.lease store.timeout store.cached_marks store.migrate);
        fix!(upstream.undelivered barrier.settle);
        if !fixed.is_empty() {
            return Err(fixed);
        }
        let mut kept = keep_limits(&self.limits, &mut new.limits);
        if self.barrier.queue != new.barrier.queue {
            new.barrier.queue = self.barrier.queue;
            kept.push("barrier.queue");
        }
        if self.log.format != new.log.format {
            new.log.format = self.log.format;
            kept.push("log.format");
        }
        Ok((new, kept))
    }
}

/// Puts back the limits that are applied at the start; returns the names of those that differed.
fn keep_limits(now: &LimitSettings, new: &mut LimitSettings) -> Vec<&'static str> {
    let mut kept = Vec::new();
    macro_rules! keep {
        ($($field:ident)*) => {$(
            if now.$field != new.$field {
                new.$field = now.$field;
                kept.push(concat!("limits.", stringify!($field)));
            }
        )*};
    }
    // Not among them: key_bytes and new_resources.
    keep!(
        in_flight
        in_flight_per_connection
        in_flight_per_client
        in_flight_per_resource
        connections
        connections_per_client
        http2_streams
        head_timeout
        idle_timeout
        write_timeout
        header_bytes
        header_count
        target_bytes
        body_memory
    );
    kept
}
