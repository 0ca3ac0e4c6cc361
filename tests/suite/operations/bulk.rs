//! All marks at once: they are exported, and imported into another store.

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::commands::marks;
use crate::support::process::Process;
use crate::support::{
    Config, Proxy, Store, Upstream, eventually, fenced, or_return, over_both_stores, put,
};

const ROUTES: &str = "routes:\n\
    - { path: '/orders/{id}', resource: 'order:{id}' }\n\
    - { path: '/once/{id}', resource: 'once:{id}', reuse: once }\n";

/// A file of more marks than the admin port lists at once, in a directory of its own.
fn many_marks() -> (TempDir, String) {
    let dir = TempDir::new().expect("a directory");
    let file = dir.path().join("many.jsonl");
    let line = |n| format!("{{\"resource\":\"many:{n}\",\"mark\":\"7\"}}");
    let many = (0..1010).map(line).collect::<Vec<_>>().join("\n");
    std::fs::write(&file, many).expect("written");
    (dir, file.to_str().expect("text").to_owned())
}

over_both_stores! {
    async fn marks_move_to_another_store(store: Store) {
        let upstream = Upstream::start().await;
        let from = Proxy::start(&Config::new(&upstream, &Store::sqlite()).with(ROUTES)).await;
        let (dir, path) = many_marks();
        let (good, said) = marks(&from, &["import", &path, "--reason", "a test"]).await;
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

/// A command of `fencepost marks` that is in progress.
struct Running(Process);

impl Running {
    fn start(proxy: &Proxy, arguments: &[&str]) -> Self {
        let arguments = [&["marks"], arguments].concat();
        Self(Process::start(&mut proxy.admin_command(&arguments)))
    }

    /// Starts it while the proxy does not answer, and waits for a line that tells that it waits.
    async fn held_up(proxy: &Proxy, arguments: &[&str]) -> Self {
        proxy.pause().await;
        let command = Self::start(proxy, arguments);
        command.says("ing marks, after 10 s").await;
        command
    }

    /// Waits for a line of its output.
    async fn says(&self, words: &str) {
        eventually(words, || async {
            let lines = self.0.lines();
            lines.iter().any(|line| line.contains(words)).then_some(())
        })
        .await;
    }

    /// Its output, which says that it was interrupted and how far it has come.
    async fn interrupted(mut self, how_far: &str) -> String {
        let status = self.0.exit().await;
        let said = self.0.output();
        assert_eq!(status.code(), Some(1), "{said}");
        let told = said.contains("interrupted") && said.contains(how_far);
        assert!(told, "{said}");
        said
    }
}

#[tokio::test]
async fn an_interrupted_export_is_marked_as_partial_and_an_import_goes_on() {
    let (_upstream, proxy) = fenced(ROUTES).await;
    let (_dir, path) = many_marks();
    let import = ["import", &path, "--reason", "a test"];
    let command = Running::held_up(&proxy, &import).await;
    command.0.signal(Signal::INT);
    proxy.resume();
    let how_far = "many.jsonl:2: 1 marks were raised before, 0 were as high; run it again to go on";
    command.interrupted(how_far).await;
    let (good, said) = marks(&proxy, &import).await;
    let rest = "1009 marks were raised, 1 were as high or higher\n";
    assert!(good && said == rest, "{said}");

    let command = Running::held_up(&proxy, &["export"]).await;
    command.0.signal(Signal::TERM);
    proxy.resume();
    let partial = "the export is partial, with 0 marks";
    let said = command.interrupted(partial).await;
    // The line at its end keeps the file from being taken for a whole export.
    let lines = said.lines().filter(|line| line.starts_with('{'));
    let export: Vec<_> = lines.collect();
    assert_eq!(export, ["{\"partial\":0}"], "{said}");
    std::fs::write(&path, export.join("\n")).expect("written");
    let (good, said) = marks(&proxy, &import).await;
    assert!(!good && said.contains("partial"), "{said}");
}

/// A step that does not end holds no command that is told twice.
#[tokio::test]
async fn a_second_signal_ends_a_command_at_once() {
    let (_upstream, proxy) = fenced(ROUTES).await;
    let (_dir, path) = many_marks();
    let import = ["import", &path, "--reason", "a test"];
    let mut command = Running::held_up(&proxy, &import).await;
    command.0.signal(Signal::TERM);
    let stopping = "stopping; a second signal ends it at once";
    command.says(stopping).await;
    command.0.signal(Signal::TERM);
    assert_eq!(command.0.exit().await.code(), Some(1));
    proxy.resume();
}

#[tokio::test]
async fn an_interrupted_prune_stops_between_steps() {
    // Its first step is announced to the other instance, and waits for its lease.
    let store = or_return!(Store::postgres().await);
    let (_upstream, proxy) = Proxy::before(&store, "{}").await;
    let (_its_upstream, _other) = Proxy::before(&store, "{}").await;
    let prune = ["prune", "--unchanged-for", "720h", "--reason", "too many"];
    let command = Running::start(&proxy, &prune);
    command.says("announced to the other instances").await;
    command.0.signal(Signal::TERM);
    let how_far = "between two steps: 0 marks were deleted before; run it again to go on";
    command.interrupted(how_far).await;
}

/// A file that was cut, or is another one, changes nothing.
#[tokio::test]
async fn an_import_that_is_wrong_in_one_line_changes_nothing() {
    let (_upstream, proxy) = fenced(ROUTES).await;
    let dir = TempDir::new().expect("a directory");
    let file = dir.path().join("import.jsonl");
    let path = file.to_str().expect("text");
    let highest = r#"{"resource":"a","mark":"9223372036854775807","spent":true}"#;
    let unknown = r#"{"resource":"a","mark":"1","token":"2"}"#;
    for (line, words) in [
        (r#"{"resource":"a","mar"#, "EOF"),
        (r#"{"resource":"a","mark":7}"#, "expected a string"),
        (r#"{"resource":"a","mark":"-1"}"#, "digits"),
        (r#"{"resource":"","mark":"1"}"#, "0 bytes"),
        (unknown, "unknown field"),
        (highest, "no token is above"),
    ] {
        let good = "{\"resource\":\"good\",\"mark\":\"1\"}\n\n";
        std::fs::write(&file, format!("{good}{line}")).expect("written");
        let (taken, said) = marks(&proxy, &["import", path, "--reason", "a test"]).await;
        let told = said.contains("import.jsonl:3") && said.contains(words);
        assert!(!taken && told, "{line}: {said}");
    }
    let (taken, said) = marks(&proxy, &["import", "/nowhere", "--reason", "a test"]).await;
    assert!(!taken && said.contains("/nowhere"), "{said}");
    assert_eq!(marks(&proxy, &["export"]).await.1, "");
}
