//! Decides which settings a reload may change, and which only a restart may: settings that the
//! marks, the leases and the open epochs rest upon stay as they were when those were made. Routes
//! are compared by what they do: see [`table`](super::table).
//!
//! For most limits room is made at the start, and nothing rests on them. A reload that changes one keeps the
//! value that is in force, says so, and takes everything else.

use super::settings::{LimitSettings, Settings};

impl Settings {
    /// Takes the new settings, unless they change what may not change while the program runs; then every
    /// reason is given, and the old ones stay. With the fields that were to change and need a restart for it.
    pub fn reload_from(&self, mut new: Self) -> Result<(Self, Vec<&'static str>), Vec<String>> {
        let mut fixed = Vec::new();
        let mut fix = |name: &str, changed: bool| {
            if changed {
                fixed.push(format!(
                    "{name} cannot change while fencepost runs: restart it"
                ));
            }
        };
        fix("listen", self.listen != new.listen);
        fix("listen_mode", self.listen_mode != new.listen_mode);
        // Clients that speak the other of the two would be met by it from one moment to the next.
        fix(
            "tls, present or not,",
            self.tls.is_some() != new.tls.is_some(),
        );
        fix("admin.listen", self.admin.listen != new.admin.listen);
        fix(
            "admin.tls, present or not,",
            self.admin.tls.is_some() != new.admin.tls.is_some(),
        );
        fix("store.url", self.store.target != new.store.target);
        fix("store.tls", self.store.tls != new.store.tls);
        fix(
            "store.namespace",
            self.store.namespace != new.store.namespace,
        );
        fix("store.lease", self.store.lease != new.store.lease);
        fix("store.timeout", self.store.timeout != new.store.timeout);
        fix(
            "store.cached_marks",
            self.store.cached_marks != new.store.cached_marks,
        );
        fix("store.migrate", self.store.migrate != new.store.migrate);
        fix(
            "upstream.undelivered",
            self.upstream.undelivered != new.upstream.undelivered,
        );
        fix("barrier.settle", self.barrier.settle != new.barrier.settle);
        if !fixed.is_empty() {
            return Err(fixed);
        }
        let mut kept = keep_limits(&self.limits, &mut new.limits);
        if self.barrier.queue != new.barrier.queue {
            new.barrier.queue = self.barrier.queue;
            kept.push("barrier.queue");
        }
        Ok((new, kept))
    }
}

/// Puts back the limits for which room was made at the start; returns the names of those that differed.
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
    // Not among them: key_bytes, new_resources and new_resources_per_client.
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
        body_rate
    );
    kept
}
