//! The commands in the documents: tests play them as they stand there, and a block whose commands no
//! test plays says `not-run=REASON` behind its three backticks.

use std::path::Path;
use std::process::Command;

use super::documents::{documents, read};
use super::house::files;
use crate::fencing::client_recipes::{recipe, run};
use crate::fencing::lock_services::programs;
use crate::support::conformance::Conformance;
use crate::support::pages::{Shown, blocks, command, commands};
use crate::support::postgres::free_port;
use crate::support::proxy::fencepost;
use crate::support::{Config, Proxy, Step, Store, Upstream, or_return, put};

/// Why a block is not run.
const REASONS: [(&str, &str); 6] = [
    ("aws-cli", "the tests run boto3, not the CLI"),
    ("build", "it compiles fencepost, or runs other tests"),
    ("cluster", "it needs a Kubernetes cluster"),
    ("docker", "it needs a Docker engine"),
    ("hosts", "its hosts, databases or runners are the reader's"),
    ("root", "it installs a service on the machine"),
];

/// The commands that tests play: page, how they begin, the test.
const PLAYED: &str = "\
README.md |  | its_commands_work_one_after_the_other
docs/adopt.md | curl | the_commands_of_users_and_operators_work
docs/clients/README.md | cargo run | the_commands_that_test_a_client_work
docs/clients/README.md | ETCD_LOCK_REV=41 | the_commands_that_test_a_client_work
docs/clients/README.md | curl | the_commands_that_test_a_client_work
docs/clients/java.md | javac | the_java_recipe_obeys
docs/clients/java.md | java -cp | the_java_recipe_obeys
docs/clients/shell.md | etcdctl | the_shell_recipe_obeys
docs/clients/shell.md | psql | the_shell_recipe_takes_a_lock_of_postgres
docs/clients/shell.md | REDIS_URL | the_shell_recipe_takes_a_lock_of_redis_that_a_replica_has
docs/configuration.md | fencepost explain | the_commands_of_users_and_operators_work
docs/http.md | curl | the_commands_of_users_and_operators_work
docs/recipes.md | etcdctl | a_late_run_of_terraform_does_not_write_its_state
docs/runbook.md | fp status | the_commands_of_users_and_operators_work
docs/runbook.md | curl -s localhost:7081/metrics | the_commands_of_users_and_operators_work
docs/runbook.md | fp marks get | the_commands_of_users_and_operators_work
docs/runbook.md | fencepost probe | the_commands_of_users_and_operators_work
docs/runbook.md | fp marks export | the_commands_of_users_and_operators_work
docs/runbook.md | fp marks override | the_commands_of_users_and_operators_work
docs/runbook.md | fp marks resolve | the_commands_of_users_and_operators_work
docs/runbook.md | fp marks prune | the_commands_of_users_and_operators_work
";

#[test]
fn each_command_is_played_by_a_test_or_says_that_it_is_not() {
    let cells = |row: &'static str| row.split(" | ").collect::<Vec<_>>();
    let rows: Vec<_> = PLAYED.lines().map(cells).collect();
    let (mut wrong, mut used) = (Vec::new(), vec![false; rows.len()]);
    for page in documents() {
        let text = read(&page);
        let lines: Vec<&str> = text.lines().collect();
        for block in blocks(&text) {
            let at = format!("{page}:{}", block.line);
            let (kind, mark) = block.info.split_once(' ').unwrap_or((&block.info, ""));
            let shown = block.lines.iter().any(|line| line.starts_with("$ "));
            match (kind, mark.strip_prefix("not-run=")) {
                ("console" | "sh", Some(reason)) => {
                    let known = REASONS.iter().any(|(known, _)| *known == reason);
                    let problem = format!("{at}: {reason} is no reason of {REASONS:?}");
                    wrong.extend((!known).then_some(problem));
                }
                ("sh", None) => {
                    let before = lines[..block.line - 1].last().unwrap_or(&"");
                    if !before.trim().starts_with("<!-- recipe: ") {
                        wrong.push(format!("{at}: neither a recipe nor `not-run=REASON`"));
                    }
                }
                ("console", None) => {
                    let body = format!("```console\n{}\n```", block.lines.join("\n"));
                    for Shown { command, .. } in commands(&body) {
                        let is = |row: &Vec<&str>| row[0] == page && command.starts_with(row[1]);
                        match rows.iter().position(is) {
                            Some(known) => used[known] = true,
                            None => wrong.push(format!(
                                "{at}: `{command}` is not in PLAYED, and its block has no not-run="
                            )),
                        }
                    }
                }
                _ if shown => wrong.push(format!("{at}: commands in a block of `{kind}`")),
                _ => {}
            }
        }
    }
    let tests: String = files("tests/suite").into_values().collect();
    for (row, used) in rows.iter().zip(used) {
        let (page, begins, test) = (row[0], row[1], row[2]);
        // In the runbook some stand in a block with commands of a cluster.
        let marked = !used && read(page).contains(&format!("$ {begins}"));
        if !tests.contains(&format!("fn {test}(")) || !(used || marked) {
            wrong.push(format!("{page}: `{begins}` is gone, or {test} is"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Recipes that no test runs: their pages say how they were run.
const BY_HAND: [&str; 1] = ["leader.go"];

#[test]
fn each_recipe_is_run_by_a_test_or_was_run_by_hand() {
    let tests = files("tests/suite").into_iter();
    let tests = tests.filter(|(path, _)| path.starts_with("fencing/"));
    let tests: String = tests.map(|(_, text)| text).collect();
    let mut recipes = 0;
    for page in documents() {
        for rest in read(&page).split("<!-- recipe: ").skip(1) {
            let (name, _) = rest.split_once(" -->").expect("the end of the mark");
            let run = tests.contains(&format!("\"{name}\""));
            assert_ne!(run, BY_HAND.contains(&name), "{page}: {name}");
            recipes += 1;
        }
    }
    assert!(recipes > 20, "{recipes}");
}

/// The words of a text; one with a digit, such as a time, an address or an id, is `#`.
fn shape(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || "\"'(){}[],;".contains(c));
    let words = words.filter(|word| !word.is_empty()).map(|word| {
        let digits = word.contains(|c: char| c.is_ascii_digit());
        if digits { "#" } else { word }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// A directory, in which a shell has fencepost in its path; and what stands in the pages for what.
pub struct Stage {
    pub dir: tempfile::TempDir,
    for_real: Vec<(String, String)>,
}

impl Stage {
    pub fn new(for_real: &[(&str, String)]) -> Self {
        let own = |(from, to): &(&str, String)| ((*from).to_owned(), to.clone());
        Self {
            dir: tempfile::tempdir().expect("a directory"),
            for_real: for_real.iter().map(own).collect(),
        }
    }

    /// A text of a page, with what stands for it here.
    pub fn real(&self, text: &str) -> String {
        let pairs = self.for_real.iter();
        pairs.fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
    }

    pub fn command(&self, text: &str) -> Command {
        let text = self.real(&format!("fp() {{ fencepost \"$@\"; }}\n{text}"));
        let program = fencepost().get_program().to_owned();
        let beside = Path::new(&program).parent().expect("a folder").display();
        let path = std::env::var("PATH").expect("a path");
        let mut command = Command::new("sh");
        command.args(["-c", &text]).current_dir(&self.dir);
        command.env("PATH", format!("{beside}:{path}"));
        command.env("USER", "me");
        command
    }

    /// Plays the command of a page that begins so: it must succeed, and print what the page shows.
    async fn play(&self, page: &str, begins: &str) -> String {
        let shown = command(page, begins);
        let ran = run(&mut self.command(&shown.command)).await;
        assert!(ran.good, "{}: {}", shown.command, ran.said);
        let printed = shape(&ran.said);
        for line in shown.output.iter().filter(|line| !line.contains('…')) {
            let there = printed.contains(&shape(line));
            assert!(there, "{}: no {line:?} in {}", shown.command, ran.said);
        }
        ran.said
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_users_and_operators_work() {
    let [_curl, _jq] = or_return!(programs(["curl", "jq"]));
    let upstream = Upstream::start().await;
    let config = Config::new(&upstream, &Store::sqlite());
    let config = config.with("barrier: { wait: 200ms, settle: 60s }");
    let mut proxy = Proxy::start(&config).await;
    let nowhere = format!("http://127.0.0.1:{}", free_port());
    let id = proxy.ask("/readyz").await.json()["instance"].clone();
    let stage = |proxy: &Proxy| {
        let (data, admin) = (proxy.data().to_string(), proxy.admin().to_string());
        let token_file = proxy.token_file().display().to_string();
        let fencepost = format!("FENCEPOST_ADMIN_URL=http://{admin} fencepost \"$@\"");
        Stage::new(&[
            ("/run/secrets/fencepost/admin/token", token_file),
            ("http://orders-app:8080", nowhere.clone()),
            ("http://UPSTREAM", nowhere.clone()),
            ("http://FENCEPOST", format!("http://{data}")),
            ("orders:7080", data.clone()),
            ("127.0.0.1:7080", data),
            ("localhost:7081", admin),
            ("4f0c2a91b6d3", id.as_str().expect("an id").to_owned()),
            ("fencepost \"$@\"", fencepost),
        ])
    };
    let here = stage(&proxy);

    // For users.
    let file = "upstream: { url: http://127.0.0.1:3000 }\nroutes: [{ path: '/orders/{id}', resource: 'order:{id}' }]\n";
    std::fs::write(here.dir.path().join("fencepost.yaml"), file).expect("it is writable");
    let explain = "fencepost explain";
    here.play("docs/configuration.md", explain).await;
    let claimed = here.play("docs/http.md", "curl -i -X POST").await;
    assert!(claimed.contains("HTTP/1.1 204"), "{claimed}");
    let page = commands(&read("docs/adopt.md"));
    for (shown, wanted) in page.iter().zip(["HTTP/1.1 200", "HTTP/1.1 412", ""]) {
        let ran = run(&mut here.command(&shown.command)).await;
        let is_right = ran.good != wanted.is_empty() && ran.said.contains(wanted);
        assert!(is_right, "{}: {}", shown.command, ran.said);
    }
    assert_eq!(page.len(), 3);

    // What the runbook's pictures show: a stale write, an unknown outcome, one that waits for it.
    upstream.on_token(43, [Step::Close]);
    for (token, id, status, outcome) in [
        (41, "checkout-17", 412, "stale-token"),
        (43, "checkout-18", 502, "outcome-unknown"),
        (44, "refund-3", 503, "older-in-flight"),
    ] {
        let write = put("/orders/7").token(token).header("X-Request-Id", id);
        proxy.refuse(write, status, outcome).await;
    }
    proxy.forward(put("/orders/__canary__").token(7)).await;
    let before = "fp status | curl -s localhost:7081/metrics | fp marks get | fencepost probe | \
        fp marks export | fp marks resolve";
    for begins in before.split(" | ") {
        here.play("docs/runbook.md", begins).await;
    }
    // An override and a prune: nothing is in use any more.
    proxy.stop().await;
    let proxy = Proxy::start(&config).await;
    let here = stage(&proxy);
    here.play("docs/runbook.md", "fp marks override").await;
    for shown in commands(&read("docs/runbook.md")) {
        if shown.command.starts_with("fp marks prune") {
            let ran = run(&mut here.command(&shown.command)).await;
            assert!(ran.good, "{}: {}", shown.command, ran.said);
            let line = shape(shown.output.last().expect("output"));
            assert!(shape(&ran.said).contains(&line), "no {line}: {}", ran.said);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_that_test_a_client_work() {
    let [_curl] = or_return!(programs(["curl"]));
    // The first command of the page: it listens at an address of its own here.
    let server = Conformance::start().await;
    let here = Stage::new(&[("127.0.0.1:7070", server.address.to_string())]);
    for file in ["fenced.sh", "nightly.sh"] {
        recipe("shell.md", file, here.dir.path());
    }
    let page = "docs/clients/README.md";
    let refused = command(page, "ETCD_LOCK_REV=41");
    let ran = run(&mut here.command(&refused.command)).await;
    assert_eq!((ran.good, &ran.said), (false, &refused.output[0]));
    let verdict = run(&mut here.command(&command(page, "curl").command)).await;
    let verdict: serde_json::Value = serde_json::from_str(&verdict.said).expect("JSON");
    let shown = command(page, "curl").output.join("");
    for (name, value) in verdict.as_object().expect("an object") {
        assert!(shown.contains(&format!("\"{name}\":")), "{name}: {value}");
    }
    let well = verdict["passed"] == true && verdict["claimed"] == true;
    assert!(well, "{verdict}");
}
