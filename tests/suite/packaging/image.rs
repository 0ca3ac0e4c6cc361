//! The image that the project's Dockerfile makes: what is in it, what it says of itself, and that
//! it serves and fences as a container with a read-only root and no privileges does.

mod build;
mod container;

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use tokio::net::UdpSocket;
use tokio::task::JoinSet;

pub use self::build::project;
use self::build::{image, list};
use self::container::{ContainerPlan, USER, volume};
use crate::support::network::in_a_network;
use crate::support::skip::{is_skipped, lacks};
use crate::support::tls::{Ca, server};
use crate::support::{Must, Upstream, eventually, get, or_return, put};

/// Where the marks lie.
const MARKS: &str = "/var/lib/fencepost";

#[test]
fn the_dockerfile_has_nothing_that_a_linter_warns_of() {
    let python = std::env::var_os("FENCEPOST_TEST_PYTHON").map_or_else(
        || project().join("target/tools/python/bin/python"),
        PathBuf::from,
    );
    let hadolint = python.with_file_name("hadolint");
    if is_skipped("hadolint") || !hadolint.exists() {
        lacks("hadolint");
        return;
    }
    let output = Command::new(hadolint)
        .current_dir(project())
        .args(["--no-color", "--failure-threshold=ignore"])
        .args(["Dockerfile", "tests/image/rust.Dockerfile"])
        .arg("config/compose/worker/Dockerfile")
        .output()
        .expect("hadolint can be started");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

/// A tag may be moved; a digest is one image.
#[test]
fn the_base_is_pinned_by_its_digest() {
    let dockerfile = std::fs::read_to_string(project().join("Dockerfile"));
    let dockerfile = dockerfile.expect("it is there");
    let bases: Vec<&str> = dockerfile
        .lines()
        .filter_map(|line| {
            line.strip_prefix("ARG RUST_IMAGE=")
                .or_else(|| line.strip_prefix("FROM "))
        })
        .filter(|base| !matches!(*base, "scratch" | "${RUST_IMAGE} AS build"))
        .collect();
    let [base] = bases[..] else {
        panic!("one base: {bases:?}");
    };
    let digest = base.split_once("@sha256:").map(|(_, digest)| digest);
    let digest = digest.expect("a digest behind the tag");
    assert!(digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()));
}

#[test]
fn it_has_one_program_and_nothing_that_others_may_change() {
    let image = or_return!(image());
    let list = |format: &str| {
        let mut find = Command::new("find");
        let find = find.arg(&image.root).args(["-printf", format]);
        let output = find.output().expect("find can be started");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let found = list("/%P %y%m %U:%G\n");
    assert_eq!(
        found.iter().collect::<Vec<_>>(),
        [
            "/ d755 0:0",
            "/LICENSE f444 0:0",
            "/etc d755 0:0",
            "/etc/fencepost d755 0:0",
            "/etc/group f644 0:0",
            "/etc/nsswitch.conf f644 0:0",
            "/etc/passwd f644 0:0",
            "/etc/ssl d755 0:0",
            "/etc/ssl/certs d755 0:0",
            "/etc/ssl/certs/ca-certificates.crt f444 0:0",
            "/fencepost f555 0:0",
            "/var d755 0:0",
            "/var/lib d755 0:0",
            "/var/lib/fencepost d700 65532:65532",
        ]
    );
    let sizes = list("%s %P\n").into_iter();
    let sizes = sizes.filter_map(|line| line.split(' ').next()?.parse::<u64>().ok());
    let bytes: u64 = sizes.sum();
    // Compiled without optimisation; the one that is shipped is smaller.
    let limit = 40 << 20;
    assert!(bytes <= limit, "{bytes} bytes on disk");
    assert!(image.packed <= limit, "{} bytes to pull", image.packed);
}

#[test]
fn it_says_what_it_is_and_how_it_is_run() {
    let image = or_return!(image());
    assert_eq!(image.config["os"], "linux");
    let config = &image.config["config"];
    let run = "User WorkingDir Entrypoint Cmd StopSignal ExposedPorts".split(' ');
    let run: Value = run.map(|name| config[name].clone()).collect();
    let (user, ports) = ("65532:65532", json!({ "7080/tcp": {}, "7081/tcp": {} }));
    let wanted = json!([user, MARKS, ["/fencepost"], ["serve"], "SIGTERM", ports]);
    assert_eq!(run, wanted);
    // An anonymous volume would go with its container, and the marks with it.
    let volumes = &config["Volumes"];
    assert!(volumes.is_null() || volumes == &json!({}), "{volumes}");
    let health = json!(["CMD", "/fencepost", "health"]);
    assert_eq!(config["Healthcheck"]["Test"], health);
    let pairs = list(&config["Env"]).iter().filter_map(Value::as_str);
    let listens: Vec<_> = pairs.filter(|pair| !pair.starts_with("PATH=")).collect();
    let data = "FENCEPOST_DEFAULT_LISTEN=0.0.0.0:7080";
    let admin = "FENCEPOST_DEFAULT_ADMIN_LISTEN=0.0.0.0:7081";
    assert_eq!(listens, [data, admin]);
    for (name, value) in [
        ("title", "fencepost"),
        ("description", env!("CARGO_PKG_DESCRIPTION")),
        ("licenses", env!("CARGO_PKG_LICENSE")),
        ("version", env!("CARGO_PKG_VERSION")),
        ("revision", "0123abc"),
        ("source", "unknown"),
    ] {
        let label = &config["Labels"][format!("org.opencontainers.image.{name}")];
        assert_eq!(label, value, "{name}");
    }
}

#[test]
fn it_serves_and_fences_and_remembers() {
    let image = or_return!(image());
    in_a_network(|| async {
        let upstream = Upstream::start().await;
        let marks = volume();
        // The second container is over the same volume.
        for first in [42, 41] {
            let plan = ContainerPlan::new(image, upstream.url());
            let mut container = plan.volume(marks.path(), MARKS).serve().await;
            for token in [first, 83 - first] {
                let answer = container.send(put("/orders/7").token(token)).await;
                if token == 42 {
                    answer.assert_forwarded();
                } else {
                    answer.assert_problem(412, "stale-token");
                }
            }
            for probe in ["/livez", "/readyz", "/metrics"] {
                assert_eq!(container.ask(probe).await.status(), 200, "{probe}");
            }
            container.stop().await;
        }
        assert_eq!(upstream.tokens("order:7"), [42, 42]);

        // Its files belong to its user, and lie nowhere else.
        for entry in std::fs::read_dir(marks.path()).expect("a directory") {
            let meta = entry.expect("an entry").metadata().expect("it is there");
            assert_eq!((meta.uid(), meta.gid()), (USER, USER));
        }
    });
}

#[test]
fn without_a_place_for_the_marks_it_does_not_start() {
    let image = or_return!(image());
    in_a_network(|| async {
        let plan = ContainerPlan::new(image, "http://127.0.0.1:3000");
        let mut container = plan.run().await;
        let (status, output) = container.exit().await;
        assert_eq!(status.code(), Some(1), "{output}");
        assert!(output.contains("marks.db"), "{output}");
    });
}

#[test]
fn it_is_asked_and_drained_from_inside_without_a_shell() {
    let image = or_return!(image());
    in_a_network(|| async {
        let upstream = Upstream::start().await;
        let marks = volume();
        let plan = ContainerPlan::new(image, upstream.url());
        let mut container = plan.volume(marks.path(), MARKS).serve().await;
        for shell in ["sh", "/bin/sh", "/bin/busybox"] {
            let run = container.exec(&[shell, "-c", "true"]);
            assert_eq!(run.status.code(), Some(127), "{run:?}");
        }
        let check = list(&image.config["config"]["Healthcheck"]["Test"]).iter();
        let check: Vec<&str> = check.skip(1).filter_map(Value::as_str).collect();
        let healthy = container.exec(&check);
        assert!(healthy.status.success(), "{healthy:?}");

        // Marks are read from inside only.
        assert_eq!(container.ask("/v1/marks").await.status(), 403);
        let inside = container.exec(&["/fencepost", "marks", "list"]);
        assert!(inside.status.success(), "{inside:?}");

        let drained = container.exec(&["/fencepost", "drain"]);
        assert!(drained.status.success(), "{drained:?}");
        assert_eq!(container.ask("/drained").await.status(), 200);
        let unready = container.exec(&check);
        assert_eq!(unready.status.code(), Some(1), "{unready:?}");
        let alive = container.exec(&["/fencepost", "health", "live"]);
        assert!(alive.status.success(), "{alive:?}");
        container.stop().await;
    });
}

/// Answers each question for a name with 127.0.0.1 (RFC 1035, section 4.1).
async fn name_server() -> JoinSet<()> {
    let socket = UdpSocket::bind("127.0.0.1:53").must().await;
    let mut task = JoinSet::new();
    task.spawn(async move {
        let mut query = [0; 512];
        loop {
            let (_, from) = socket.recv_from(&mut query).must().await;
            let end = 12 + query[12..].iter().position(|byte| *byte == 0).unwrap_or(0) + 5;
            let is_a = query[end - 4..end] == [0, 1, 0, 1];
            let mut answer = query[..2].to_vec();
            answer.extend([0x81, 0x80, 0, 1, 0, u8::from(is_a), 0, 0, 0, 0]);
            answer.extend(&query[12..end]);
            if is_a {
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4, 127, 0, 0, 1]);
            }
            socket.send_to(&answer, from).must().await;
        }
    });
    task
}

#[test]
fn names_come_from_the_hosts_file_and_from_dns() {
    let image = or_return!(image());
    in_a_network(|| async {
        let upstream = Upstream::start().await;
        let mut dns = None;
        for name in ["app.hosts.internal", "app.dns.internal"] {
            let marks = volume();
            let url = upstream.url().replace("127.0.0.1", name);
            let container = ContainerPlan::new(image, &url)
                .file("/etc/hosts", "127.0.0.1 localhost app.hosts.internal\n")
                .file("/etc/resolv.conf", "nameserver 127.0.0.1\n")
                .volume(marks.path(), MARKS)
                .serve()
                .await;
            let answer = container.send(put("/orders/7").token(1)).await;
            answer.assert_forwarded();
            if dns.is_none() {
                dns = Some(name_server().await);
            }
        }
    });
}

#[test]
fn upstreams_are_trusted_by_the_roots_in_it() {
    let image = or_return!(image());
    in_a_network(|| async {
        let ca = Ca::new("a public CA");
        let upstream = Upstream::start_tls(server(&ca.server(&["localhost"]), None, &[])).await;
        let marks = volume();
        let plan = || {
            let plan = ContainerPlan::new(image, upstream.url());
            let hosts = "127.0.0.1 localhost\n";
            plan.volume(marks.path(), MARKS).file("/etc/hosts", hosts)
        };
        let container = plan().serve().await;
        let refused = container.send(get("/orders/7")).await;
        refused.assert_problem(502, "upstream-unreachable");
        eventually("the reason in the log", || async {
            let lines = container.lines();
            let named = lines.iter().any(|line| line.contains("UnknownIssuer"));
            named.then_some(())
        })
        .await;
        drop(container);

        let roots = "/etc/ssl/certs/ca-certificates.crt";
        let container = plan().file(roots, ca.pem()).serve().await;
        container.send(get("/orders/7")).await.assert_forwarded();
    });
}
