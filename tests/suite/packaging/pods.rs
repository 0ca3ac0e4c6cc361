//! The rendered chart, started. No cluster is at hand, so `tests/chart/pod.py` plays the
//! kubelet in a network namespace of its own. It runs fencepost's containers in bubblewrap with
//! exactly the command, environment, mounts and user that are rendered, asks every probe, scrape
//! and Service by the pod's address, sends 42 and 41, and ends the pod in the kubelet's order with
//! a request in flight.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::support::Store;
use crate::support::postgres::Cluster;
use crate::support::process::Process;
use crate::support::proxy::fencepost;
use crate::support::python::{python, script};
use crate::support::skip::lacks;
use crate::support::store::{postgres_is_installed, program};

/// A pod waits most of the time: for its probes, and for `shutdown.delay`.
static ROOM: Semaphore = Semaphore::const_new(8);

/// How long one story may take; reached only when something is broken.
const PATIENCE: Duration = Duration::from_mins(5);

/// The exit code of `pod.py` where the render needs a Postgres.
const NO_POSTGRES: i32 = 77;

/// The namespaces that a pod lives in, and that take its processes along.
const NAMESPACES: [&str; 6] = [
    "--net",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
];

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where pods can be played, and other containers.
#[derive(Clone)]
pub(super) struct Node {
    python: PathBuf,
    user: &'static [&'static str],
}

impl Node {
    /// `None`, and a line that says so, where the machine lacks what that takes.
    pub(super) fn find(test: &str) -> Option<Self> {
        let python = python(test)?;
        for name in ["unshare", "nsenter", "bwrap"] {
            if program(name).is_none() {
                lacks(test, name);
                return None;
            }
        }
        let user: &[&str] = if rustix::process::geteuid().is_root() {
            &[]
        } else {
            &["--map-root-user"]
        };
        let possible = Command::new("unshare")
            .args(user)
            .args(NAMESPACES)
            .args(["bwrap", "--unshare-user", "--unshare-pid", "--uid", "65532"])
            .args(["--ro-bind", "/", "/", "--proc", "/proc", "true"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        if !possible {
            lacks(test, "namespaces");
            return None;
        }
        Some(Self { python, user })
    }

    /// Plays the pods of a render; what was seen, `None` where it wants a Postgres, and `Err` with
    /// all that was said where something is wrong.
    async fn play(
        &self,
        render: &[String],
        database: Option<&Database>,
    ) -> Result<Option<String>, String> {
        let _turn = ROOM.acquire().await.expect("it is never closed");
        let mut command = self.script("tests/chart/pod.py");
        command.args(render);
        if let Some(database) = database {
            command
                .args(["--dsn", &database.user, "--owner", &database.owner])
                .arg("--socket")
                .arg(&database.socket);
        }
        let (code, said) = to_its_end(&mut command).await?;
        match code {
            Some(0) => {
                println!("{}\n{said}", render.join(" "));
                Ok(Some(said))
            }
            Some(NO_POSTGRES) => Ok(None),
            _ => Err(format!("{}\n{said}\n{code:?}", render.join(" "))),
        }
    }

    /// One of the tests' programs in Python, in namespaces of its own, for this fencepost.
    pub(super) fn script(&self, path: &str) -> Command {
        let mut command = Command::new("unshare");
        command
            .args(self.user)
            .args(NAMESPACES)
            .arg(&self.python)
            .arg(top().join(path))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .arg("--fencepost")
            .arg(fencepost().get_program());
        command
    }
}

/// Runs such a program: its exit code, and all that it said. `Err` if it does not end.
pub(super) async fn to_its_end(command: &mut Command) -> Result<(Option<i32>, String), String> {
    let mut process = Process::start(command);
    let ended = tokio::time::timeout(PATIENCE, async {
        loop {
            if let Some(status) = process.ended() {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let Ok(status) = ended else {
        process.kill9();
        return Err(format!(
            "not over after {PATIENCE:?}:\n{}",
            process.output()
        ));
    };
    Ok((status.code(), process.output()))
}

/// The role that the values of `ci` have the Job grant to. It may do nothing else.
const GRANTED: &str = "fencepost";

/// A database with a role that may do DDL, and one that may not; both as a pod sees them.
struct Database {
    store: Store,
    /// The name of the database; its roles are called after it.
    name: String,
    owner: String,
    user: String,
    socket: PathBuf,
}

impl Database {
    async fn create() -> Option<Self> {
        if !postgres_is_installed() {
            return None;
        }
        let cluster = Cluster::shared();
        let url = cluster.create_database().await;
        let store = Store::at(&url);
        let name = url.rsplit('/').next().expect("a URL ends in a name");
        let (owner, user) = (format!("{name}_owner"), format!("{name}_user"));
        cluster
            .execute(
                name,
                &format!(
                    "DO $$ BEGIN CREATE ROLE {GRANTED} LOGIN;
                     EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$;
                     CREATE ROLE {owner} LOGIN;
                     CREATE ROLE {user} LOGIN;
                     REVOKE CREATE ON SCHEMA public FROM PUBLIC;
                     GRANT CREATE ON SCHEMA public TO {owner};
                     ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA public
                         GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {user};
                     ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA public
                         GRANT USAGE ON SEQUENCES TO {user}"
                ),
            )
            .await;
        let port = cluster.port();
        let url =
            |role: &str| format!("postgres://{role}@localhost:{port}/{name}?host=/run/postgresql");
        Some(Self {
            owner: url(&owner),
            user: url(&user),
            store,
            name: name.to_owned(),
            socket: cluster.dir().join(format!(".s.PGSQL.{port}")),
        })
    }
}

/// Plays each of these renders, in a database of its own.
pub async fn play_all(test: &'static str, renders: Vec<Vec<String>>) {
    let Some(node) = Node::find(test) else {
        return;
    };
    assert!(!renders.is_empty(), "there is nothing to play");
    let mut stories = JoinSet::new();
    for render in renders {
        let node = node.clone();
        stories.spawn(async move {
            let database = Database::create().await;
            let played = node.play(&render, database.as_ref()).await;
            if played == Ok(None) {
                lacks(test, "postgres");
            }
            played
        });
    }
    let wrong: Vec<_> = stories
        .join_all()
        .await
        .into_iter()
        .filter_map(Result::err)
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// The YAML files of a directory of the chart whose names end so.
fn files(directory: &str, end: &str) -> Vec<String> {
    let directory = top().join("charts/fencepost").join(directory);
    let mut files: Vec<_> = std::fs::read_dir(&directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
        .map(|entry| entry.expect("it can be listed").path())
        .filter(|path| path.is_file())
        .map(|path| path.display().to_string())
        .filter(|path| path.ends_with(end))
        .collect();
    files.sort();
    files
}

#[tokio::test]
async fn every_values_file_of_ci_starts_fences_and_leaves_in_order() {
    // An example is what such a file renders, and `chart::` holds it to that; it is played below.
    let example = |file: &String| {
        let name = Path::new(file).file_name().unwrap_or_default();
        let name = name.to_string_lossy().replace("-values", "");
        top().join("charts/fencepost/examples").join(name).exists()
    };
    let renders = files("ci", "-values.yaml")
        .into_iter()
        .filter(|file| !example(file))
        .map(|file| vec!["--values".to_owned(), file])
        .collect();
    play_all(
        "every_values_file_of_ci_starts_fences_and_leaves_in_order",
        renders,
    )
    .await;
}

#[tokio::test]
async fn every_example_starts_fences_and_leaves_in_order() {
    let renders = files("examples", ".yaml")
        .into_iter()
        .map(|file| vec!["--manifests".to_owned(), file])
        .collect();
    play_all("every_example_starts_fences_and_leaves_in_order", renders).await;
}

#[tokio::test]
async fn the_variables_of_a_service_called_fencepost_do_no_harm() {
    let sidecar = top().join("charts/fencepost/examples/sidecar-statefulset.yaml");
    let render = [
        "--service-links",
        "--manifests",
        &sidecar.display().to_string(),
    ]
    .map(str::to_owned);
    play_all(
        "the_variables_of_a_service_called_fencepost_do_no_harm",
        vec![render.to_vec()],
    )
    .await;
}

/// The gateway over Postgres that migrates in this way, as arguments of `pod.py`.
fn gateway(dir: &TempDir, migrations: &Value) -> Vec<String> {
    let values = json!({
        "store": { "namespace": "orders", "existingSecret": "run-time" },
        "config": {
            "upstream": { "url": "http://orders.shop.svc:3000" },
            "shutdown": { "delay": "1s" },
        },
        "networkPolicy": { "upstream": { "podSelector": { "matchLabels": { "app": "orders" } } } },
        "migrations": migrations,
    });
    let file = dir.path().join("values.yaml");
    std::fs::write(&file, values.to_string()).expect("the directory is writable");
    vec!["--values".to_owned(), file.display().to_string()]
}

/// Plays it, and looks at who made the tables. The role at run time owns none, and may make none.
async fn assert_migrated_by_the_owner(test: &str, migrations: &Value) {
    let Some(node) = Node::find(test) else {
        return;
    };
    let Some(database) = Database::create().await else {
        lacks(test, "postgres");
        return;
    };
    let dir = TempDir::new().expect("a temporary directory");
    let played = node.play(&gateway(&dir, migrations), Some(&database)).await;
    let said = played.expect("a good story").expect("a Postgres");
    assert_eq!(
        said.contains("has migrated"),
        migrations["mode"] == "job",
        "{said}"
    );
    let Database { name, store, .. } = &database;
    let tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'";
    let by_the_owner = format!("{tables} AND tableowner = '{name}_owner'");
    let all = store.number(tables).await;
    assert!(all >= 6, "{all} tables");
    assert_eq!(store.number(&by_the_owner).await, all);
    let may = format!("SELECT has_schema_privilege('{name}_user', 'public', 'CREATE')::int::int8");
    assert_eq!(store.number(&may).await, 0);
    let marks = "SELECT count(*) FROM marks WHERE namespace = 'orders'";
    assert_eq!(store.number(marks).await, 1);
}

#[tokio::test]
async fn a_job_migrates_and_the_role_at_run_time_needs_no_ddl() {
    assert_migrated_by_the_owner(
        "a_job_migrates_and_the_role_at_run_time_needs_no_ddl",
        &json!({ "mode": "job", "existingSecret": "migrating" }),
    )
    .await;
}

#[tokio::test]
async fn what_a_job_grants_is_what_serve_needs() {
    assert_migrated_by_the_owner(
        "what_a_job_grants_is_what_serve_needs",
        &json!({ "mode": "job", "existingSecret": "migrating", "grantTo": GRANTED }),
    )
    .await;
}

#[tokio::test]
async fn whoever_migrates_by_hand_needs_no_ddl_at_run_time() {
    assert_migrated_by_the_owner(
        "whoever_migrates_by_hand_needs_no_ddl_at_run_time",
        &json!({ "mode": "none" }),
    )
    .await;
}

/// The chart, rendered from a values file of `ci`.
fn rendered(node: &Node, name: &str) -> Vec<Value> {
    let output = script(&node.python, "tool.py")
        .args(["render", "--values"])
        .arg(top().join("charts/fencepost/ci").join(name))
        .output()
        .expect("Python can be run");
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// The pod's template of the only workload, or a Service.
fn part<'a>(manifests: &'a mut [Value], kind: &str, pointer: &str) -> &'a mut Value {
    manifests
        .iter_mut()
        .find(|manifest| manifest["kind"] == kind)
        .and_then(|manifest| manifest.pointer_mut(pointer))
        .unwrap_or_else(|| panic!("there is no {pointer} in a {kind}"))
}

/// The instrument itself: what would not fence, start or leave in order is not let through.
#[tokio::test]
async fn a_render_that_would_fail_in_a_cluster_fails_here() {
    const POD: &str = "/spec/template/spec";
    const NATIVE: &str = "sidecar-statefulset-values.yaml";
    type Spoil = fn(&mut Vec<Value>);
    let test = "a_render_that_would_fail_in_a_cluster_fails_here";
    let Some(node) = Node::find(test) else {
        return;
    };
    let cases: [(Spoil, &str); 6] = [
        (
            |all| part(all, "Service", "/spec/ports/0")["targetPort"] = json!(3000),
            "leads past fencepost",
        ),
        (
            |all| part(all, "StatefulSet", POD)["terminationGracePeriodSeconds"] = json!(20),
            "is not above delay and deadline",
        ),
        (
            |all| {
                let probe = "/spec/template/spec/initContainers/0/readinessProbe/httpGet";
                part(all, "StatefulSet", probe)["port"] = json!("http");
            },
            "has no port 'http'",
        ),
        (
            |all| {
                let app = "/spec/template/spec/containers/0";
                part(all, "StatefulSet", app)["lifecycle"] = json!({});
            },
            "the app was told to end while it worked on a request",
        ),
        (
            |all| {
                let proxy = "/spec/template/spec/initContainers/0";
                part(all, "StatefulSet", proxy)["lifecycle"] = json!({});
            },
            "not-draining",
        ),
        (
            |all| part(all, "StatefulSet", POD)["volumes"][0]["configMap"]["name"] = json!("x"),
            "ConfigMap x is not among what is rendered",
        ),
    ];
    let mut good = rendered(&node, NATIVE);
    let config = part(&mut good, "ConfigMap", "/data/fencepost.yaml");
    let usual = config.as_str().expect("a file");
    assert!(usual.contains("delay: 10s"), "{usual}");
    *config = json!(usual.replace("delay: 10s", "delay: 1s"));
    let mut stories = JoinSet::new();
    for (spoil, reason) in cases {
        let (node, mut manifests) = (node.clone(), good.clone());
        spoil(&mut manifests);
        stories.spawn(async move {
            let dir = TempDir::new().expect("a temporary directory");
            let file = dir.path().join("manifests.yaml");
            let documents: Vec<_> = manifests.iter().map(Value::to_string).collect();
            std::fs::write(&file, documents.join("\n---\n")).expect("the directory is writable");
            let render = ["--manifests".to_owned(), file.display().to_string()];
            let said = node.play(&render, None).await;
            assert!(
                said.as_ref().is_err_and(|said| said.contains(reason)),
                "{reason}: {said:?}"
            );
        });
    }
    stories.join_all().await;
}
