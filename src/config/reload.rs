//! What a reload may change, and what only a restart may: whatever the marks, the leases and the
//! epochs that are open rest upon stays as it was when they were made. Of the routes this is looked at
//! by what they do: see [`table`](super::table).

use super::settings::Settings;

impl Settings {
    /// Takes the new settings, unless they change what may not change while the program runs; then every
    /// reason is given, and the old ones stay.
    pub fn reload_from(&self, new: Self) -> Result<Self, Vec<String>> {
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
        if fixed.is_empty() {
            Ok(new)
        } else {
            Err(fixed)
        }
    }
}
