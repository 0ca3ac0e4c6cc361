//! docs/recipes.md, as it stands there: Terraform, Celery, Temporal, and the trigger for `ShedLock`.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use super::client_recipes::{program_of, recipe, run, text_of};
use super::lock_services::{Etcd, Redis, programs};
use crate::support::nginx::Nginx;
use crate::support::pages::{command, config};
use crate::support::postgres::{Cluster, free_port};
use crate::support::process::Process;
use crate::support::proxy::fencepost;
use crate::support::python::python;
use crate::support::sql::{number, shell, sql};
use crate::support::store::has_postgres;
use crate::support::{
    Config, Proxy, Store, Upstream, eventually, fenced, or_return, put, return_unless,
};

const PAGE: &str = "../recipes.md";

/// A proxy with this configuration of the page, in front of this upstream.
async fn fencing(name: &str, url: &str) -> Proxy {
    let own = format!("upstream: {{ url: '{url}' }}");
    let page = Config::to(url, &Store::sqlite()).with(&config("recipes.md", name));
    Proxy::start(&page.with(&own)).await
}

/// What a run of Terraform changes: it waits for the word in the middle.
const RESOURCE: &str = r#"
variable "who" {}
resource "terraform_data" "ledger" {
  triggers_replace = var.who
  provisioner "local-exec" {
    command = "touch ${var.who}.in; timeout 60 sh -c 'until [ -e ${var.who}.go ]; do sleep 0.05; done'"
  }
}
"#;

/// A checkout with the page's backend. Commands in it are those of the page.
struct Checkout {
    dir: TempDir,
    port: u16,
    to: String,
}

impl Checkout {
    fn new(proxy: &Proxy) -> Self {
        let (dir, port) = (TempDir::new().expect("a directory"), free_port());
        let file = recipe(PAGE, "main.tf", dir.path());
        let text = std::fs::read_to_string(&file).expect("it was written");
        let text = text.replace(":7079", &format!(":{port}"));
        std::fs::write(&file, text + RESOURCE).expect("the directory is writable");
        let to = proxy.data().to_string();
        Self { dir, port, to }
    }

    /// Runs the page's command with another end, and for `token` another beginning.
    fn command(&self, who: &str, end: &str, token: Option<u64>) -> Command {
        let shown = command("docs/recipes.md", "etcdctl lock terraform-prod");
        let mut text = shown.command.replace("127.0.0.1:7080", &self.to);
        text = text.replace("127.0.0.1:7079", &format!("127.0.0.1:{}", self.port));
        text = text.replace("terraform apply", end);
        if let Some(token) = token {
            text = text.replace("etcdctl lock terraform-prod -- ", "exec ");
            text = text.replace("--token-env ETCD_LOCK_REV", &format!("--token {token}"));
        }
        let program = fencepost().get_program().to_owned();
        let beside = Path::new(&program).parent().expect("a folder").display();
        let path = std::env::var("PATH").expect("a path");
        let mut command = Command::new("sh");
        command.args(["-c", &text]).current_dir(&self.dir);
        command.envs([
            ("PATH", &*format!("{beside}:{path}")),
            ("ETCDCTL_API", "3"),
            ("CHECKPOINT_DISABLE", "1"),
            ("TF_VAR_who", who),
            ("TF_CLI_ARGS_apply", "-auto-approve -input=false"),
        ]);
        command
    }

    /// Runs the page's commands; the word for the middle has come.
    async fn applies(&self, who: &str, token: Option<u64>, etcd: &Etcd) {
        self.go(who);
        for end in ["terraform init", "terraform apply"] {
            let mut command = self.command(who, end, token);
            command.env("ETCDCTL_ENDPOINTS", format!("127.0.0.1:{}", etcd.port));
            let ran = run(&mut command).await;
            assert!(ran.good, "{end}: {}", ran.said);
        }
    }

    fn go(&self, who: &str) {
        let file = self.dir.path().join(format!("{who}.go"));
        std::fs::write(file, "").expect("the directory is writable");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_run_of_terraform_does_not_write_its_state() {
    let [_terraform, nginx] = or_return!(programs(["terraform", "nginx"]));
    let etcd = or_return!(Etcd::found().await);
    let puts = "dav_methods PUT DELETE; create_full_put_path on;";
    let nginx = Nginx::start(&nginx, puts, "").await;
    let proxy = fencing("terraform", &nginx.url()).await;
    let state = || {
        let file = nginx.dir.path().join("root/state/prod");
        std::fs::read_to_string(file).expect("a state")
    };

    // As on the page.
    let first = Checkout::new(&proxy);
    first.applies("first", None, &etcd).await;
    assert!(state().contains("\"first\""), "{}", state());

    // The lock passes on while a run is in the middle.
    let mut late = Process::start(&mut first.command("late", "terraform apply", Some(1_000_001)));
    let inside = first.dir.path().join("late.in");
    eventually("the run to begin", || async {
        inside.exists().then_some(())
    })
    .await;
    let second = Checkout::new(&proxy);
    second.applies("second", Some(1_000_002), &etcd).await;
    first.go("late");
    let status = late.exit().await;
    assert_eq!(status.code(), Some(75), "{:?}", late.lines());
    assert!(state().contains("\"second\""), "{}", state());
    assert!(!state().contains("\"late\""), "{}", state());
    assert!(first.dir.path().join("errored.tfstate").exists());
}

/// Waits until this stands in a line of a worker's log.
async fn wrote(worker: &Process, text: &str) {
    eventually(text, || async {
        let lines = worker.lines();
        lines.iter().any(|line| line.contains(text)).then_some(())
    })
    .await;
}

/// The recipe for a worker that takes over what others have, as if `visibility_timeout` were over.
const HURRIED: &str = "
from tasks import app, pay
app.conf.broker_transport_options = {'visibility_timeout': 0}
";

#[tokio::test(flavor = "multi_thread")]
async fn a_task_of_celery_that_is_delivered_twice_has_two_numbers() {
    let python = or_return!(python());
    let redis = or_return!(Redis::found().await);
    let (upstream, proxy) = fenced("barrier: { wait: 1s }").await;
    let dir = TempDir::new().expect("a directory");
    program_of("python.md", ["fenced.py", "send.py"], dir.path());
    recipe(PAGE, "tasks.py", dir.path());
    std::fs::write(dir.path().join("hurried.py"), HURRIED).expect("the directory is writable");
    let celery = |module: &str, arguments: &[&str]| {
        let mut command = Command::new(&python);
        command.args(["-m", "celery", "-A", module]);
        command.args(arguments).current_dir(&dir);
        command
            .env("FENCEPOST_URL", format!("http://{}", proxy.data()))
            .env("REDIS_URL", format!("redis://127.0.0.1:{}", redis.port));
        command
    };
    let worker = |module: &str| {
        let arguments = ["worker", "-P", "solo", "-l", "INFO", "-n", module];
        Process::start(&mut celery(module, &arguments))
    };
    let call = ["call", "tasks.pay", "-a", "[7]"];

    // The first worker's write is at the upstream when the second one gets the same message.
    let gate = upstream.hold(&put("/orders/7").token(1));
    let first = worker("tasks");
    let called = run(&mut celery("tasks", &call)).await;
    assert!(called.good, "{}", called.said);
    upstream.reached(1).await;
    let second = worker("hurried");
    proxy.until_outcome("older-in-flight", 1).await;
    gate.open();
    wrote(&second, "(2, 0)").await;
    assert_eq!(upstream.tokens("order:7"), [1, 2], "one message");
    wrote(&first, "(1, 0)").await;
    drop(first);

    proxy.forward(put("/orders/7").token(1_000_000)).await;
    let called = run(&mut celery("tasks", &call)).await;
    assert!(called.good, "{}", called.said);
    wrote(&second, "stale-token: never").await;
    assert_eq!(upstream.tokens("order:7"), [1, 2, 1_000_000]);
}

/// Attempts of one activity, the first one twice: it comes late.
const ATTEMPTS: &str = "
import dataclasses, json
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment
from activities import transfer

def attempt(number):
    env = ActivityEnvironment()
    env.info = dataclasses.replace(env.info, attempt=number, workflow_run_id='r1', activity_id='a1')
    try:
        return env.run(transfer, '30')
    except ApplicationError as error:
        return [error.message, error.non_retryable]

print(json.dumps([attempt(1), attempt(2), attempt(1)]))
";

#[tokio::test(flavor = "multi_thread")]
async fn a_late_attempt_of_an_activity_of_temporal_is_refused() {
    let python = or_return!(python());
    let upstream = Upstream::start().await;
    let proxy = fencing("temporal", upstream.url()).await;
    let dir = TempDir::new().expect("a directory");
    program_of("python.md", ["fenced.py", "send.py"], dir.path());
    recipe(PAGE, "activities.py", dir.path());
    let mut command = Command::new(&python);
    command.args(["-c", ATTEMPTS]).current_dir(&dir);
    let ran = run(command.env("FENCEPOST_URL", format!("http://{}", proxy.data()))).await;
    assert!(ran.good, "{}", ran.said);
    let refused = "[\"PUT /transfers/r1/a1: stale-token: never\", true]]";
    assert!(ran.said.ends_with(refused), "{}", ran.said);
    assert_eq!(upstream.tokens("transfer:r1/a1"), [1, 2]);
}

/// Statements of `ShedLock` over JDBC: its table, and what grants, extends and releases a lock.
/// <https://github.com/lukas-krecan/ShedLock/blob/master/providers/sql/shedlock-sql-support/src/main/java/net/javacrumbs/shedlock/support/sql/SqlStatementsSource.java>
const TABLE: &str =
    "CREATE TABLE shedlock(name VARCHAR(64) NOT NULL, lock_until TIMESTAMP NOT NULL,
    locked_at TIMESTAMP NOT NULL, locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name))";
const INSERT: &str = "INSERT INTO shedlock(name, lock_until, locked_at, locked_by)
    VALUES('nightly', now() + interval '1 hour', now(), 'ME')";
const UPSERT: &str = " ON CONFLICT (name) DO UPDATE SET lock_until = now() + interval '1 hour',
    locked_at = now(), locked_by = 'ME' WHERE shedlock.name = 'nightly' AND shedlock.lock_until <= now()";
const UPDATE: &str =
    "UPDATE shedlock SET lock_until = now() + interval '1 hour', locked_at = now(),
    locked_by = 'ME' WHERE name = 'nightly' AND lock_until <= now()";
const EXTEND: &str = "UPDATE shedlock SET lock_until = now() + interval '2 hours'
    WHERE name = 'nightly' AND locked_by = 'ME' AND lock_until > now()";
const UNLOCK: &str = "UPDATE shedlock SET lock_until = now() WHERE name = 'nightly'";

#[tokio::test]
async fn each_grant_of_shedlock_gets_a_greater_number() {
    return_unless!(has_postgres());
    let url = Cluster::shared().create_database().await;
    let mut session = shell(&url).await;
    sql(&mut session, TABLE).await;
    sql(&mut session, &text_of(PAGE, "shedlock.sql")).await;
    let number_of =
        "SELECT coalesce(max(fence), -1) FROM shedlock WHERE name = 'nightly' AND locked_by = 'ME'";
    let upsert = INSERT.to_owned() + UPSERT;
    let mut numbers = Vec::new();
    for (grant, me) in [
        (INSERT, "a"),
        (UPDATE, "b"),
        (UPDATE, "a"),
        (&upsert, "c"),
        (&upsert, "d"),
    ] {
        sql(&mut session, &grant.replace("ME", me)).await;
        let granted = number(&mut session, &number_of.replace("ME", me)).await;
        sql(&mut session, &EXTEND.replace("ME", me)).await;
        // Another one is not granted it meanwhile, by either statement.
        for refused in [UPDATE, &upsert] {
            sql(&mut session, &refused.replace("ME", "other")).await;
        }
        let none = number(&mut session, &number_of.replace("ME", "other")).await;
        assert_eq!(none, -1);
        sql(&mut session, UNLOCK).await;
        let same = number(&mut session, &number_of.replace("ME", me)).await;
        assert_eq!(granted, same, "only a grant draws a number");
        numbers.push(granted);
    }
    let grow = numbers.is_sorted_by(|a, b| a < b) && numbers[0] > 0;
    assert!(grow, "{numbers:?}");
}
