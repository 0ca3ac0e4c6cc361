//! Numbers of real lock services that look like tokens and are none: each test has two holders, one
//! after the other, and shows that the former holder's write still passes with the wrong number, and
//! is refused with the right one.

use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};
use tempfile::TempDir;

use super::lock_services::{Etcd, Redis};
use crate::support::postgres::Cluster;
use crate::support::sql::shell;
use crate::support::store::has_postgres;
use crate::support::zookeeper::{Java, ZooKeeper};
use crate::support::{Proxy, Upstream, eventually, fenced, or_return, post, put};

/// A real fencepost, which is asked about one pair of holders after the other.
struct Fence {
    upstream: Upstream,
    proxy: Proxy,
    pairs: u32,
}

impl Fence {
    async fn start() -> Self {
        let (upstream, proxy) = fenced("{}").await;
        Self {
            upstream,
            proxy,
            pairs: 0,
        }
    }

    /// Returns whether the former holder's write passes after the current holder has claimed.
    async fn lets_pass(&mut self, former: u64, current: u64) -> bool {
        self.pairs += 1;
        let target = format!("/orders/{}", self.pairs);
        let claim = post("/.well-known/fencing/claim").token(current);
        let claim = claim.header("X-Fencing-Target", format!("PUT {target}"));
        assert_eq!(self.proxy.send(claim).await.status(), 204);
        let before = self.upstream.count();
        let status = self.proxy.send(put(&target).token(former)).await.status();
        let passed = self.upstream.count() > before;
        assert_eq!(status, if passed { 200 } else { 412 });
        passed
    }
}

/// Asks etcd by its JSON interface, in which numbers are strings.
async fn ask(etcd: &Etcd, path: &str, body: Value) -> Value {
    let to = ([127, 0, 0, 1], etcd.port).into();
    let answer = post(path).body(body.to_string()).send(to).await;
    assert_eq!(answer.status(), 200, "{path}: {body}");
    serde_json::from_slice(&answer.body).expect("JSON")
}

fn number(value: &Value) -> u64 {
    let text = value.as_str().expect("a number, as a string");
    text.parse().expect("a number")
}

#[tokio::test]
async fn the_version_the_lease_and_a_later_revision_of_etcd() {
    let etcd = or_return!(Etcd::found().await);
    // The client may choose the lease's id; an id that etcd makes has the member in it, and its clock.
    let mut grants = Vec::new();
    for lease in ["900", "500"] {
        ask(
            &etcd,
            "/v3/lease/grant",
            json!({ "ID": lease, "TTL": "60" }),
        )
        .await;
        let lock = json!({ "name": "b3JkZXJz", "lease": lease });
        let granted = ask(&etcd, "/v3/lock/lock", lock).await;
        let key = json!({ "key": granted["key"] });
        let entry = ask(&etcd, "/v3/kv/range", key.clone()).await["kvs"][0].clone();
        let revision = number(&granted["header"]["revision"]);
        grants.push((revision, number(&entry["version"]), number(&entry["lease"])));
        if grants.len() == 1 {
            // The lease runs out, as far as the next holder can see.
            ask(&etcd, "/v3/lease/revoke", json!({ "ID": lease })).await;
        }
    }
    let later = ask(&etcd, "/v3/kv/range", json!({ "key": "b3JkZXJz" })).await;
    let later = number(&later["header"]["revision"]);
    let [former, current] = grants[..] else {
        panic!("two grants: {grants:?}");
    };
    let mut fence = Fence::start().await;
    assert!(!fence.lets_pass(former.0, current.0).await, "{grants:?}");
    assert!(fence.lets_pass(former.1, current.1).await, "{grants:?}");
    assert!(fence.lets_pass(former.2, current.2).await, "{grants:?}");
    // The former holder reads a revision only now.
    assert!(fence.lets_pass(later, current.0).await, "{later}");
}

#[tokio::test]
async fn a_number_of_redis_that_is_counted_after_the_grant() {
    let redis = or_return!(Redis::found().await);
    let script = "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) \
                  then return redis.call('INCR', KEYS[2]) end return ''";
    let free = || async {
        let gone = redis.say(&["EXISTS", "lock"]) == "0";
        gone.then_some(())
    };
    // A holds the lock until its lease is over, then B; then B counts, and A, which was slower.
    assert_eq!(redis.say(&["SET", "lock", "A", "NX", "PX", "5"]), "OK");
    eventually("A's lease to end", free).await;
    assert_eq!(redis.say(&["SET", "lock", "B", "NX", "PX", "60000"]), "OK");
    let [current, former] = [(); 2].map(|()| redis.say(&["INCR", "late"]));
    let late = [&former, &current].map(|text| text.parse().expect("a number"));
    redis.say(&["DEL", "lock"]);
    // The same two with the script that counts as it locks.
    let take = |name, lease| redis.say(&["EVAL", script, "2", "lock", "fence", name, lease]);
    let former = take("A", "5");
    eventually("A's lease to end", free).await;
    let current = take("B", "60000");
    let right = [former, current].map(|text| text.parse().expect("a number"));

    let mut fence = Fence::start().await;
    assert!(fence.lets_pass(late[0], late[1]).await, "{late:?}");
    assert!(!fence.lets_pass(right[0], right[1]).await, "{right:?}");
}

/// Two holders, and the numbers of each: czxid, cversion and version of its node; then the suffix of
/// its node's name after the parent was deleted, and the parent's cversion as the holder reads it
/// after the other one's grant.
const NUMBERS: &str = r#"
import org.apache.zookeeper.*;
import org.apache.zookeeper.data.Stat;

class Numbers {
    static final java.util.List<org.apache.zookeeper.data.ACL> ACL = ZooDefs.Ids.OPEN_ACL_UNSAFE;

    static ZooKeeper session() throws Exception {
        return new ZooKeeper(System.getenv("ZOOKEEPER"), 10_000, event -> { });
    }

    static String node(ZooKeeper zoo, Stat stat) throws Exception {
        return zoo.create("/orders/", null, ACL, CreateMode.EPHEMERAL_SEQUENTIAL, stat);
    }

    static long suffix(String node) { return Long.parseLong(node.substring("/orders/".length())); }

    static void say(String what, long former, long current) {
        System.out.println(what + " " + former + " " + current);
    }

    public static void main(String[] arguments) throws Exception {
        Stat former = new Stat(), current = new Stat();
        var a = session();
        a.create("/orders", null, ACL, CreateMode.PERSISTENT);
        var first = suffix(node(a, former));
        a.close();
        try (var b = session(); var late = session()) {
            node(b, current);
            var read = b.exists("/orders", false).getCversion();
            say("czxid", former.getCzxid(), current.getCzxid());
            say("cversion", former.getCversion(), current.getCversion());
            say("version", former.getVersion(), current.getVersion());
            say("parent", late.exists("/orders", false).getCversion(), read);
        }
        try (var c = session()) {
            c.delete("/orders", -1);
            c.create("/orders", null, ACL, CreateMode.PERSISTENT);
            say("suffix", first, suffix(node(c, current)));
            say("czxid", former.getCzxid(), current.getCzxid());
        }
    }
}
"#;

#[tokio::test]
async fn the_versions_and_the_suffix_of_zookeeper() {
    let java = or_return!(Java::find());
    let dir = TempDir::new().expect("a directory");
    let source = dir.path().join("Numbers.java");
    std::fs::write(&source, NUMBERS).expect("the directory is writable");
    let mut program = java.compile(&source)();
    let zookeeper = ZooKeeper::start(&java).await;
    program.env("ZOOKEEPER", format!("127.0.0.1:{}", zookeeper.port));
    let output = program.output().expect("java can be run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let said = String::from_utf8_lossy(&output.stdout);
    let mut fence = Fence::start().await;
    let mut seen = Vec::new();
    for line in said.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [former, current] = [1, 2].map(|at| words[at].parse().expect("a number"));
        let wrong = words[0] != "czxid";
        assert_eq!(fence.lets_pass(former, current).await, wrong, "{line}");
        seen.push(words[0]);
    }
    let expected = ["czxid", "cversion", "version", "parent", "suffix", "czxid"];
    assert_eq!(seen, expected);
}

async fn draw(session: &mut PgConnection, statement: &str) -> u64 {
    let number = crate::support::sql::number(session, statement).await;
    number.try_into().expect("it is positive")
}

#[tokio::test]
async fn a_sequence_of_postgres_that_is_cached_or_drawn_too_early() {
    const LOCK: &str = "SELECT 1::bigint FROM (SELECT pg_advisory_lock(7)) AS taken";
    const UNLOCK: &str = "SELECT pg_advisory_unlock(7)::int::bigint";
    if !has_postgres() {
        return;
    }
    let cluster = Cluster::shared();
    let url = cluster.create_database().await;
    let name = url.rsplit('/').next().expect("its name");
    let sequences = "CREATE SEQUENCE cached CACHE 10; CREATE SEQUENCE early; CREATE SEQUENCE late";
    cluster.execute(name, sequences).await;
    let mut a = shell(&url).await;
    let mut b = shell(&url).await;

    // A holds the lock first, and draws one number; then B, then A again, each after its grant.
    draw(&mut a, "SELECT nextval('cached')").await;
    // A draws before it has the lock, which B gets before it.
    let current_early = draw(&mut a, "SELECT nextval('early')").await;
    let former_early = draw(&mut b, "SELECT nextval('early')").await;
    draw(&mut b, LOCK).await;
    let former_cached = draw(&mut b, "SELECT nextval('cached')").await;
    let former = draw(&mut b, "SELECT nextval('late')").await;
    assert_eq!(draw(&mut b, UNLOCK).await, 1);
    draw(&mut a, LOCK).await;
    let current_cached = draw(&mut a, "SELECT nextval('cached')").await;
    let current = draw(&mut a, "SELECT nextval('late')").await;
    a.close().await.expect("it ends");
    b.close().await.expect("it ends");

    let mut fence = Fence::start().await;
    assert!(fence.lets_pass(former_cached, current_cached).await);
    assert!(fence.lets_pass(former_early, current_early).await);
    assert!(!fence.lets_pass(former, current).await);
}
