//! The recipe with a lock of Hazelcast. Hazelcast's own client runs it, against the member that
//! `tests/clients/hazelcast_member.py` plays.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use tempfile::TempDir;

use super::{fence, obeys, recipe};
use crate::support::process::Process;
use crate::support::python::python;
use crate::support::{Gate, Step, Upstream, eventually, put, soon};

/// A member, and the recipe.
struct Hazelcast {
    member: Process,
    address: String,
    python: PathBuf,
    dir: TempDir,
}

impl Hazelcast {
    async fn start(test: &str, ttl: &str) -> Option<Self> {
        let python = python(test)?;
        let dir = TempDir::new().expect("a directory");
        recipe("python.md", "nightly_hazelcast.py", dir.path());
        let mut command = Command::new(&python);
        let program = "tests/clients/hazelcast_member.py";
        command
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(program))
            .args(["--ttl", ttl])
            .env("PYTHONDONTWRITEBYTECODE", "1");
        let member = Process::start(&mut command);
        let port = eventually("the member's port", || async {
            let lines = member.lines();
            let port = lines.iter().find_map(|line| line.strip_prefix("port "));
            port.map(str::to_owned)
        });
        let address = format!("127.0.0.1:{}", port.await);
        Some(Self {
            member,
            address,
            python,
            dir,
        })
    }

    /// The recipe, for a URL of fencepost.
    fn client(&self, url: &str) -> Command {
        let mut command = Command::new(&self.python);
        command
            .arg(self.dir.path().join("nightly_hazelcast.py"))
            .envs([("FENCEPOST_URL", url), ("HAZELCAST", &self.address)]);
        command
    }

    /// Asserts that the clients have asked for nothing that the member does not know.
    fn assert_complete(&self) {
        let said = self.member.lines();
        assert_eq!(said.len(), 1, "{said:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hazelcast_recipe_obeys() {
    let Some(hazelcast) = Hazelcast::start("the_hazelcast_recipe_obeys", "300").await else {
        return;
    };
    obeys(|url| hazelcast.client(url)).await;
    hazelcast.assert_complete();
}

/// The holder is paused while it waits for its claim. Its session ends, and the next one gets the
/// lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_paused_holder_of_a_hazelcast_lock_is_refused() {
    let test = "a_paused_holder_of_a_hazelcast_lock_is_refused";
    let Some(hazelcast) = Hazelcast::start(test, "5").await else {
        return;
    };
    let upstream = Upstream::start().await;
    let proxy = fence(&upstream).await;
    let url = format!("http://{}", proxy.data());
    let gate = Gate::shut();
    upstream.on_token(0, [Step::Wait(gate.clone()), Step::ok()]);
    let oldest = proxy.start_request(put("/orders/7").token(0));
    upstream.reached(1).await;
    let mut zombie = Process::start(&mut hazelcast.client(&url));
    let waits = [("outcome", "older-in-flight")];
    proxy
        .until_metric("fencepost_requests_total", &waits, |count| count >= 1.0)
        .await;
    zombie.stop().await;
    gate.open();
    soon("the oldest", oldest)
        .await
        .expect("no panic")
        .assert_forwarded();

    let mut successor = Process::start(&mut hazelcast.client(&url));
    assert!(successor.exit().await.success(), "{}", successor.output());
    zombie.signal(Signal::CONT);
    assert!(!zombie.exit().await.success());
    let said = zombie.output();
    assert!(said.contains("stale-token: never"), "{said}");
    let tokens = upstream.tokens("order:7");
    assert_eq!(
        tokens.len(),
        2,
        "the successor's write is the last: {tokens:?}"
    );
    hazelcast.assert_complete();
}
