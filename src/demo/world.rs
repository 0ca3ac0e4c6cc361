//! [`World`]: everything that runs while the stories are played, and the text around them: what runs
//! where, and how to try it by hand.

use std::path::PathBuf;

use serde_json::Value;

use super::child::Fencepost;
use super::screen::{Screen, print};
use super::servers::{Servers, client};

/// The API, the lock service, fencepost, and the screen.
pub(super) struct World {
    pub servers: Servers,
    pub fencepost: Fencepost,
    pub config: PathBuf,
    pub screen: Screen,
}

impl World {
    /// Fresh books, fresh locks, and the story's name.
    pub(super) fn begin(&self, title: &str) {
        self.servers.reset();
        self.screen.heading(title);
    }

    /// Asks the API itself, past everything that stands in front of it.
    pub(super) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        let url = format!("{}{path}", self.servers.api);
        let answer = client().get(url).send().await?;
        Ok(answer.error_for_status()?.json().await?)
    }

    /// Lists the running servers.
    pub(super) fn introduce(&self) {
        let (api, locks, front) = (&self.servers.api, &self.servers.locks, &self.fencepost.url);
        let pid = self.fencepost.process.id().unwrap_or_default();
        print(&format!(
            "\
A lock is a lease. A holder that stalls loses it, and may still wake up and write. The
lock service numbers its grants. fencepost refuses a number older than the newest that
it has seen, and lets nothing overtake.

  API        {api}   a legacy service that accepts every request
  lock       {locks}   leases, and a number with each grant
  fencepost  {front}   a process of its own (pid {pid}), marks in SQLite"
        ));
    }

    /// The result, and what to try by hand.
    pub(super) fn summary(&self, good: bool, keep: bool) {
        self.screen.heading(if good {
            "Every story ended as it should."
        } else {
            "Not every story ended as it should: see the lines with ✗."
        });
        print(if keep {
            "\nBy hand (everything runs until Ctrl-C):"
        } else {
            "
By hand: run again with --keep. That leaves everything running, and prints these
lines with the ports of that run (this run's are closed now):"
        });
        let (front, admin) = (&self.fencepost.url, &self.fencepost.admin_url);
        let commands = commands(front, admin, &self.servers.api, &self.servers.locks);
        print(&commands);
        if keep {
            let config = self.config.display();
            print(&format!("\nThe configuration: {config}"));
        }
    }
}

/// Commands to try, in this order, and what each shows. Order 7 starts without a mark: the stories
/// after (b) end with other orders, and its own run is long settled.
fn commands(front: &str, admin: &str, api: &str, locks: &str) -> String {
    let put = format!("curl -i -X PUT {front}/orders/7");
    let by = |name| format!(r#"-d '{{"status":"by hand","by":"{name}"}}'"#);
    let (me, a, b, slow, newer) = (by("me"), by("A"), by("B"), by("slow"), by("newer"));
    let stalled = format!("{put} -H 'X-Fencing-Token: 52' -H 'X-Demo-Stall: 2' {slow}");
    let waiting = format!("{put} -H 'X-Fencing-Token: 53' {newer}");
    let claim = format!("curl -i -X POST {front}/.well-known/fencing/claim");
    format!(
        r#"
  # A lock, with its token (409 while somebody holds it):
  curl -i {locks}/locks/mine -d '{{"owner":"me","ttl_ms":10000}}'

  # No token: 428
  {put} {me}

  # Story (b) left the mark of order:7 at 42. A zombie's 41: 412
  {put} -H 'X-Fencing-Token: 41' {a}

  # A newer token: 200, and the mark is 50
  {put} -H 'X-Fencing-Token: 50' {b}

  # Tell fencepost of a new grant before reading: 204, and 50 is refused from now on
  {claim} -H 'X-Fencing-Token: 51' -H 'X-Fencing-Target: PUT /orders/7'

  # A write that stalls for 2 s in the API, and a newer one that waits for it
  {stalled} & sleep 0.5; {waiting}; wait

  # What the API holds, and in which order it came
  curl {api}/orders/7 {api}/journal

  # What fencepost knows
  curl {admin}/v1/marks/order:7

  # Its metrics
  curl -s {admin}/metrics | grep 'fencepost_requests_total.* [1-9]'"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_names_a_running_service_and_quotes_for_a_shell() {
        let all = commands("http://f:1", "http://m:2", "http://a:3", "http://l:4");
        let all: Vec<_> = all.lines().filter(|line| line.contains("curl")).collect();
        assert_eq!(all.len(), 9);
        for command in &all {
            assert!(command.contains("http://"), "{command}");
            assert_eq!(command.matches('\'').count() % 2, 0, "{command}");
            assert!(!command.contains("{{"), "{command}");
        }
        assert!(all[1].contains("http://f:1/orders/7 -d '{\"status"));
    }
}
