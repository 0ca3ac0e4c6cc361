//! All marks at once: they are exported, and imported into another store.

use serde_json::Value;

use std::path::{Path, PathBuf};

use rustix::process::Signal;

use super::commands::marks;
use crate::support::process::Process;
use crate::support::{
    Config, Proxy, Store, Upstream, eventually, fenced, or_return, over_both_stores, put,
};

const ROUTES: &str = "routes:\n\
    - { path: '/orders/{id}', resource: 'order:{id}' }\n\
    - { path: '/once/{id}', resource: 'once:{id}', reuse: once }\n";

/// A file of more marks than the admin port lists at once.
fn many_marks(dir: &Path) -> PathBuf {
    let file = dir.join("many.jsonl");
    let line = |n| format!("{{\"resource\":\"many:{n}\",\"mark\":\"7\"}}");
    let many = (0..1010).map(line).collect::<Vec<_>>().join("\n");
    std::fs::write(&file, many).expect("written");
    file
}

over_both_stores! {
    async fn marks_move_to_another_store(store: Store) {
        let upstream = Upstream::start().await;
        let from = Proxy::start(&Config::new(&upstream, &Store::sqlite()).with(ROUTES)).await;
        let (good, said) = marks(&from, &["export"]).await;
        assert!(good && said.is_empty(), "{said}");
        let dir = tempfile::tempdir().expect("a directory");
        let file = many_marks(dir.path());
        let path = file.to_str().expect("text");
        let (good, said) = marks(&from, &["import", path, "--reason", "a test"]).await;
        assert!(good && said.starts_with("1010 marks were raised, 0 were"), "{said}");
        from.forward(put("/orders/7").token(281_474_976_710_653_u64)).await;
        from.forward(put("/orders/a%20b").token(5)).await;
        from.forward(put("/once/1").token(41)).await;
        let orders = marks(&from, &["export", "--prefix", "order:"]).await.1;
        assert_eq!(orders.lines().count(), 2, "{orders}");

        let export = dir.path().join("export.jsonl");
        let export = export.to_str().expect("text");
        let (good, printed) = marks(&from, &["export"]).await;
        assert!(good, "{printed}");
        assert_eq!(printed.lines().count(), 1013);
        std::fs::write(export, printed).expect("written");

        let to = Proxy::start(&Config::new(&upstream, &store).with(ROUTES)).await;
        to.forward(put("/orders/a%20b").token(6)).await;
        let import = ["import", export, "--reason", "moved to another store"];
        let (good, said) = marks(&to, &import).await;
        // Behind it stands a line of progress, where this has taken ten seconds.
        let raised = "1012 marks were raised, 1 were as high or higher\n";
        assert!(good && said.starts_with(raised), "{said}");
        to.stale(put("/orders/7").token(281_474_976_710_652_u64)).await;
        to.forward(put("/orders/7").token(281_474_976_710_653_u64)).await;
        assert_eq!(to.token("order:a b").await, Some(6), "an import never lowers");
        // A token that was spent there is spent here.
        to.send(put("/once/1").token(41)).await.assert_problem(412, "stale-token");
        to.forward(put("/once/1").token(42)).await;
        let audit = to.mark("many:3").await.expect("it has a mark")["audit"].to_string();
        assert!(audit.contains("moved to another store"), "{audit}");
        let (_, said) = marks(&to, &[&import[..], &["--json"]].concat()).await;
        let mut said = serde_json::Deserializer::from_str(&said).into_iter::<Value>();
        let again = said.next().expect("an answer").expect("JSON");
        assert_eq!(again, serde_json::json!({ "raised": 0, "kept": 1013 }), "it can be run again");
    }
}

/// Starts `fencepost marks …` against a proxy.
fn start(proxy: &Proxy, arguments: &[&str]) -> Process {
    Process::start(&mut proxy.admin_command(&[&["marks"], arguments].concat()))
}

/// Waits for a line of its output.
async fn says(command: &Process, words: &str) {
    eventually(words, || async {
        let lines = command.lines();
        lines.iter().any(|line| line.contains(words)).then_some(())
    })
    .await;
}

/// Returns its exit code and its output.
async fn ended(mut command: Process) -> (Option<i32>, String) {
    let status = command.exit().await;
    (status.code(), command.output())
}

#[tokio::test]
async fn an_interrupted_export_is_marked_as_partial_and_an_import_goes_on() {
    let (_upstream, proxy) = fenced(ROUTES).await;
    let dir = tempfile::tempdir().expect("a directory");
    let file = many_marks(dir.path());
    let path = file.to_str().expect("text");
    let import = ["import", path, "--reason", "a test"];
    // A proxy that does not answer holds a step up, and lines tell that the command waits.
    proxy.pause().await;
    let command = start(&proxy, &import);
    says(&command, "importing marks, after 10 s").await;
    command.signal(Signal::INT);
    proxy.resume();
    let (code, said) = ended(command).await;
    assert_eq!(code, Some(1), "{said}");
    let how_far = "many.jsonl:2: 1 marks were raised before, 0 were as high; run it again to go on";
    assert!(
        said.contains("interrupted") && said.contains(how_far),
        "{said}"
    );
    let (good, said) = marks(&proxy, &import).await;
    assert!(
        good && said == "1009 marks were raised, 1 were as high or higher\n",
        "{said}"
    );

    proxy.pause().await;
    let command = start(&proxy, &["export"]);
    says(&command, "exporting marks, after 10 s").await;
    command.signal(Signal::TERM);
    proxy.resume();
    let (code, said) = ended(command).await;
    assert_eq!(code, Some(1), "{said}");
    let note = "interrupted: the export is partial, with 0 marks";
    assert!(said.contains(note), "{said}");
    // The line at its end keeps the file from being taken for a whole export.
    let lines = said.lines().filter(|line| line.starts_with('{'));
    let export: Vec<_> = lines.collect();
    assert_eq!(export, ["{\"partial\":0}"], "{said}");
    std::fs::write(&file, export.join("\n")).expect("written");
    let (good, said) = marks(&proxy, &import).await;
    assert!(!good && said.contains("partial"), "{said}");
}

/// A step that does not end holds no command that is told twice.
#[tokio::test]
async fn a_second_signal_ends_a_command_at_once() {
    let (_upstream, proxy) = fenced(ROUTES).await;
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("one.jsonl");
    std::fs::write(&file, "{\"resource\":\"one:1\",\"mark\":\"7\"}").expect("written");
    proxy.pause().await;
    let path = file.to_str().expect("text");
    let command = start(&proxy, &["import", path, "--reason", "a test"]);
    says(&command, "importing marks, after 10 s").await;
    command.signal(Signal::TERM);
    says(&command, "stopping; a second signal ends it at once").await;
    command.signal(Signal::TERM);
    let (code, said) = ended(command).await;
    assert_eq!(code, Some(1), "{said}");
    proxy.resume();
}

#[tokio::test]
async fn an_interrupted_prune_stops_between_steps() {
    // Its first step is announced to the other instance, and waits for its lease.
    let store = or_return!(Store::postgres().await);
    let (_upstream, proxy) = Proxy::before(&store, "{}").await;
    let (_its_upstream, _other) = Proxy::before(&store, "{}").await;
    let arguments = ["--unchanged-for", "720h", "--reason", "too many"];
    let command = start(&proxy, &[&["prune"][..], &arguments].concat());
    says(&command, "announced to the other instances").await;
    command.signal(Signal::TERM);
    let (code, said) = ended(command).await;
    assert_eq!(code, Some(1), "{said}");
    let note = "interrupted between two steps: 0 marks were deleted before; run it again to go on";
    assert!(said.contains(note), "{said}");
}

/// A file that was cut, or is another one, changes nothing.
#[tokio::test]
async fn an_import_that_is_wrong_in_one_line_changes_nothing() {
    let (_upstream, proxy) = fenced(ROUTES).await;
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("import.jsonl");
    let path = file.to_str().expect("text");
    for (line, words) in [
        ("{\"resource\":\"a\",\"mar", "EOF"),
        ("{\"resource\":\"a\",\"mark\":7}", "expected a string"),
        ("{\"resource\":\"a\",\"mark\":\"-1\"}", "digits"),
        ("{\"resource\":\"\",\"mark\":\"1\"}", "0 bytes"),
        (
            "{\"resource\":\"a\",\"mark\":\"1\",\"token\":\"2\"}",
            "unknown field",
        ),
        (
            "{\"resource\":\"a\",\"mark\":\"9223372036854775807\",\"spent\":true}",
            "no token is above",
        ),
    ] {
        let good = "{\"resource\":\"good\",\"mark\":\"1\"}\n\n";
        std::fs::write(&file, format!("{good}{line}")).expect("written");
        let (taken, said) = marks(&proxy, &["import", path, "--reason", "a test"]).await;
        assert!(
            !taken && said.contains("import.jsonl:3") && said.contains(words),
            "{line}: {said}"
        );
    }
    let (taken, said) = marks(&proxy, &["import", "/nowhere", "--reason", "a test"]).await;
    assert!(!taken && said.contains("/nowhere"), "{said}");
    assert_eq!(marks(&proxy, &["export"]).await.1, "");
    let (taken, said) = marks(&proxy, &["import", path]).await;
    assert!(!taken && said.contains("--reason"), "{said}");
}
