//! docs/lock-services.md: numbers of real lock services that look like tokens and are none. Each test
//! has two holders, one after the other. The fence refuses the former one's write behind the current
//! one's claim if its number is smaller; so a number that does not grow is no token.

use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};
use tempfile::TempDir;

use super::lock_services::{Etcd, Redis};
use crate::support::postgres::Cluster;
use crate::support::sql::{number, shell};
use crate::support::store::has_postgres;
use crate::support::zookeeper::{Java, ZooKeeper};
use crate::support::{eventually, or_return, post, return_unless};

/// The number of the former holder, and that of the current one.
type Holders = [i64; 2];

#[track_caller]
fn is_token([former, current]: Holders) {
    assert!(former < current, "{former} and {current}");
}

#[track_caller]
fn is_no_token([former, current]: Holders) {
    assert!(former >= current, "{former} and {current}");
}

/// The revision in an answer of etcd's JSON interface, in which numbers are strings.
async fn revision(etcd: &Etcd, path: &str, body: Value) -> i64 {
    let to = ([127, 0, 0, 1], etcd.port).into();
    let answer = post(path).body(body.to_string()).send(to).await;
    assert_eq!(answer.status(), 200, "{path}: {body}");
    let revision = &answer.json()["header"]["revision"];
    let revision = revision.as_str().expect("a number, as a string");
    revision.parse().expect("a number")
}

#[tokio::test]
async fn a_later_revision_of_etcd() {
    let etcd = or_return!(Etcd::found().await);
    let mut grants = Vec::new();
    for lease in ["900", "500"] {
        let grant = json!({ "ID": lease, "TTL": "60" });
        revision(&etcd, "/v3/lease/grant", grant).await;
        let lock = json!({ "name": "b3JkZXJz", "lease": lease });
        grants.push(revision(&etcd, "/v3/lock/lock", lock).await);
        // The lease runs out, as far as the next holder can see.
        revision(&etcd, "/v3/lease/revoke", json!({ "ID": lease })).await;
    }
    let later = revision(&etcd, "/v3/kv/range", json!({ "key": "b3JkZXJz" })).await;
    is_token([grants[0], grants[1]]);
    // The former holder reads a revision only now.
    is_no_token([later, grants[1]]);
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
    let number = |command: &[&str]| redis.say(command).parse().expect("a number");
    // A holds the lock until its lease is over, then B; then B counts, and A, which was slower.
    assert_eq!(redis.say(&["SET", "lock", "A", "NX", "PX", "5"]), "OK");
    eventually("A's lease to end", free).await;
    assert_eq!(redis.say(&["SET", "lock", "B", "NX", "PX", "60000"]), "OK");
    let [current, former] = [(); 2].map(|()| number(&["INCR", "late"]));
    is_no_token([former, current]);
    redis.say(&["DEL", "lock"]);
    // The same two with the script that counts as it locks.
    let take = |name, lease| number(&["EVAL", script, "2", "lock", "fence", name, lease]);
    let former = take("A", "5");
    eventually("A's lease to end", free).await;
    is_token([former, take("B", "60000")]);
}

/// Two holders, and the numbers of each: the czxid of its node, and the suffix of its node's name
/// after the parent was deleted.
const NUMBERS: &str = r#"
import org.apache.zookeeper.*;
import org.apache.zookeeper.data.Stat;

class Numbers {
    public static void main(String[] arguments) throws Exception {
        var acl = ZooDefs.Ids.OPEN_ACL_UNSAFE;
        for (var holder = 0; holder < 2; holder++) {
            var stat = new Stat();
            try (var zoo = new ZooKeeper(System.getenv("ZOOKEEPER"), 10_000, event -> { })) {
                if (holder > 0) zoo.delete("/orders", -1);
                zoo.create("/orders", null, acl, CreateMode.PERSISTENT);
                var node = zoo.create("/orders/", null, acl, CreateMode.EPHEMERAL_SEQUENTIAL, stat);
                System.out.println(stat.getCzxid() + " " + node.substring("/orders/".length()));
            }
        }
    }
}
"#;

#[tokio::test]
async fn the_suffix_of_zookeeper() {
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
    let numbers = said.split_whitespace().map(|word| word.parse());
    let numbers: Result<Vec<i64>, _> = numbers.collect();
    let [czxid, suffix, next_czxid, next_suffix] = numbers.expect("numbers")[..] else {
        panic!("two of each: {said}");
    };
    is_token([czxid, next_czxid]);
    is_no_token([suffix, next_suffix]);
}

async fn draw(session: &mut PgConnection, sequence: &str) -> i64 {
    number(session, &format!("SELECT nextval('{sequence}')")).await
}

#[tokio::test]
async fn a_sequence_of_postgres_that_is_cached_or_drawn_too_early() {
    const LOCK: &str = "SELECT 1::bigint FROM (SELECT pg_advisory_lock(7)) AS taken";
    const UNLOCK: &str = "SELECT pg_advisory_unlock(7)::int::bigint";
    return_unless!(has_postgres());
    let cluster = Cluster::shared();
    let url = cluster.create_database().await;
    let name = url.rsplit('/').next().expect("its name");
    let sequences = "CREATE SEQUENCE cached CACHE 10; CREATE SEQUENCE early; CREATE SEQUENCE late";
    cluster.execute(name, sequences).await;
    let (mut a, mut b) = (shell(&url).await, shell(&url).await);

    // A holds the lock first, and draws one number; then B, then A again, each after its grant.
    draw(&mut a, "cached").await;
    // A draws before it has the lock, which B gets before it.
    let current_early = draw(&mut a, "early").await;
    let former_early = draw(&mut b, "early").await;
    number(&mut b, LOCK).await;
    let former_cached = draw(&mut b, "cached").await;
    let former = draw(&mut b, "late").await;
    assert_eq!(number(&mut b, UNLOCK).await, 1);
    number(&mut a, LOCK).await;
    is_no_token([former_cached, draw(&mut a, "cached").await]);
    is_no_token([former_early, current_early]);
    is_token([former, draw(&mut a, "late").await]);
    a.close().await.expect("it ends");
    b.close().await.expect("it ends");
}
