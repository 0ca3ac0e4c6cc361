//! A disk whose sync fails. Linux takes the pages of a failed sync for clean, so that the next sync
//! succeeds without them. The disk of these tests is made of the system calls: it has what was
//! written before a sync that succeeded, and lacks what was written before one that did not. Then
//! the power fails.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::fencing::crash::may_trace;
use crate::support::skip::lacks;
use crate::support::store::program;
use crate::support::{Config, Proxy, Store, Upstream, eventually, or_return, put};

/// So many syncs of one thread succeed, and so many fail then.
const FAULT: &str = "inject=fdatasync,fsync:error=EIO:when=60..61";

/// So many syncs of one thread succeed, and the process does not outlive the next.
const DEADLY_FAULT: &str = "inject=fdatasync,fsync:error=EIO:signal=KILL:when=60";

/// One file: as it is read, and as it is on the disk.
#[derive(Default)]
struct DiskImage {
    cache: Vec<u8>,
    disk: Vec<u8>,
    dirty: Vec<(usize, usize)>,
}

impl DiskImage {
    fn write(&mut self, at: usize, bytes: &[u8]) {
        put_at(&mut self.cache, at, bytes);
        self.dirty.push((at, bytes.len()));
    }

    fn synced(&mut self, well: bool) {
        for (at, len) in std::mem::take(&mut self.dirty) {
            if well {
                put_at(&mut self.disk, at, &self.cache[at..at + len]);
            }
        }
    }
}

fn put_at(to: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if to.len() < at + bytes.len() {
        to.resize(at + bytes.len(), 0);
    }
    to[at..at + bytes.len()].copy_from_slice(bytes);
}

/// The bytes of a string of strace's, which has `\x..` for each.
fn bytes(text: &str) -> Vec<u8> {
    let hex = text.split("\\x").skip(1);
    hex.map(|hex| u8::from_str_radix(hex, 16).expect("two digits"))
        .collect()
}

/// The name of the file at the end of a path.
fn name_of(path: &str) -> Option<String> {
    let path = String::from_utf8(bytes(path)).ok()?;
    Some(path.rsplit_once('/')?.1.to_owned())
}

/// The argument of a call, by its place. The call may end in a later line.
fn number(arguments: &str, at: usize) -> usize {
    let all = arguments.split(" <unfinished").next().unwrap_or_default();
    let all = all.split(')').next().unwrap_or_default();
    let number = all.split(", ").nth(at).and_then(|text| text.parse().ok());
    number.expect("a number")
}

/// Returns whether a sync that has begun in an earlier line ends here.
fn is_end(call: &str) -> bool {
    let ends = ["+++ killed", "<... fdatasync", "<... fsync"];
    ends.iter().any(|end| call.starts_with(end))
}

/// The disk after this trace, by the names of the files.
fn disk_after(trace: &str) -> BTreeMap<String, Vec<u8>> {
    let mut files: BTreeMap<String, DiskImage> = BTreeMap::new();
    let mut syncing: BTreeMap<&str, String> = BTreeMap::new();
    for line in trace.lines() {
        let (pid, call) = line.split_once(' ').unwrap_or_default();
        let call = call.trim_start();
        let (name, rest) = call.split_once('(').unwrap_or((call, ""));
        let file = || name_of(rest.split_once('<')?.1.split_once('>')?.0);
        match name {
            "pwrite64" => {
                let mut parts = rest.split('"');
                let (content, numbers) = (parts.nth(1), parts.next());
                let content = bytes(content.expect("what is written"));
                let file = files.entry(file().expect("a file")).or_default();
                file.write(number(numbers.expect("the rest"), 2), &content);
            }
            "ftruncate" => {
                let length = number(rest, 1);
                let file = files.entry(file().expect("a file")).or_default();
                file.cache.resize(length, 0);
                file.disk.resize(length, 0);
                file.dirty.retain(|(at, len)| at + len <= length);
            }
            "unlink" => {
                let path = rest.split('"').nth(1).expect("a path");
                files.remove(&name_of(path).expect("a file"));
            }
            "fdatasync" | "fsync" => {
                let Some(file) = file() else { continue };
                if rest.contains("<unfinished") {
                    syncing.insert(pid, file);
                } else {
                    files.entry(file).or_default().synced(rest.ends_with("= 0"));
                }
            }
            // A process that dies in a sync learns of no success.
            _ if is_end(call) => {
                let file = syncing.remove(pid).unwrap_or_default();
                files.entry(file).or_default().synced(call.ends_with("= 0"));
            }
            _ => {}
        }
    }
    let disks = files.into_iter().map(|(name, file)| (name, file.disk));
    disks
        .filter(|(name, _)| name.starts_with("marks.db"))
        .collect()
}

/// A proxy under strace, with these faults of its syncs, and all its writes in `trace`.
async fn start_traced(config: &Config, trace: &Path, faults: &[&str]) -> Option<Proxy> {
    let Some(strace) = program("strace").filter(|strace| may_trace(strace)) else {
        lacks("strace");
        return None;
    };
    let mut runner = Command::new(strace);
    runner.args(["-D", "-f", "-y", "-xx", "-s", "2000000", "-o"]);
    runner.arg(trace);
    runner.args(["-e", "trace=pwrite64,ftruncate,unlink,fdatasync,fsync"]);
    runner.args(faults.iter().flat_map(|fault| ["-e", fault]));
    Some(Proxy::start_under(config, runner).await)
}

/// All that strace has written, once the proxy is dead.
async fn whole(trace: &Path) -> String {
    eventually("the trace's end", || async {
        let text = std::fs::read_to_string(trace).ok()?;
        let ended = text.lines().last()?.contains("+++ killed by SIGKILL +++");
        ended.then_some(text)
    })
    .await
}

/// Starts a proxy with what the disk has after this trace, and asks it for the mark.
async fn mark_after(trace: &str, resource: &str, upstream: &Upstream) -> Option<u64> {
    let after = Store::sqlite();
    for (name, content) in disk_after(trace) {
        std::fs::write(after.path().with_file_name(name), content).expect("it is writable");
    }
    let survivor = Proxy::start(&Config::new(upstream, &after)).await;
    survivor.token(resource).await
}

/// Nothing of these tests waits for a settled request.
const PATIENT: &str = "{ store: { lease: 200s }, barrier: { wait: 200ms, settle: 300s } }";

#[tokio::test]
async fn no_mark_is_lost_to_a_sync_that_failed_and_a_power_failure() {
    let dir = TempDir::new().expect("a directory");
    let trace = dir.path().join("trace");
    let (upstream, store) = (Upstream::start().await, Store::sqlite());
    let config = Config::new(&upstream, &store).with(PATIENT);
    let mut proxy = or_return!(start_traced(&config, &trace, &[FAULT]).await);
    let mut refused = Vec::new();
    for token in 1..=150 {
        let answer = proxy.send(put("/orders/7").token(token)).await;
        if answer.status() != 200 {
            answer.assert_problem(503, "store-unavailable");
            refused.push(token);
        }
        // So that the connection for reads is open, too.
        proxy.ask("/v1/marks").await;
    }
    proxy.kill9();
    let text = whole(&trace).await;
    assert!(text.contains("EIO"), "no sync failed");
    let seen = upstream.tokens("order:7");
    assert!(
        seen.iter().all(|token| !refused.contains(token)),
        "{refused:?} of {seen:?}"
    );
    let newest = seen.last().copied();
    assert!(newest.is_some(), "something arrived");
    let mark = mark_after(&text, "order:7", &upstream).await;
    assert!(
        mark >= newest,
        "the disk has {mark:?}, and {newest:?} was sent"
    );
}

/// The next run finds what the failed sync has left in the log, and no connection of the run before
/// has closed it.
#[tokio::test]
async fn no_mark_is_lost_to_a_sync_that_failed_as_its_proxy_died() {
    let dir = TempDir::new().expect("a directory");
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    let (upstream, store) = (Upstream::start().await, Store::sqlite());
    let config = Config::new(&upstream, &store).with(PATIENT);
    let mut proxy = or_return!(start_traced(&config, &first, &[DEADLY_FAULT]).await);
    let mut token = 1;
    while let Ok(answer) = put("/orders/7").token(token).attempt(proxy.data()).await {
        assert_eq!(answer.status(), 200);
        token += 1;
        assert!(token < 150, "no sync failed");
    }
    proxy.kill9();
    let mut text = whole(&first).await;
    let mut proxy = or_return!(start_traced(&config, &second, &[]).await);
    for token in 1..=20 {
        proxy.forward(put("/orders/8").token(token)).await;
    }
    proxy.kill9();
    text += &whole(&second).await;
    for resource in ["order:7", "order:8"] {
        let sent = upstream.tokens(resource).last().copied();
        let mark = mark_after(&text, resource, &upstream).await;
        assert!(
            mark >= sent,
            "{resource}: the disk has {mark:?}, and {sent:?} was sent"
        );
    }
}
