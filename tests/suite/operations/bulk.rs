//! All marks at once: they are exported, and imported into another store.

use serde_json::Value;

use super::commands::marks;
use crate::support::{Config, Proxy, Store, Upstream, fenced, over_both_stores, put};

const ROUTES: &str = "routes:\n\
    - { path: '/orders/{id}', resource: 'order:{id}' }\n\
    - { path: '/once/{id}', resource: 'once:{id}', reuse: once }\n";

over_both_stores! {
    async fn marks_move_to_another_store(store: Store) {
        let upstream = Upstream::start().await;
        let from = Proxy::start(&Config::new(&upstream, &Store::sqlite()).with(ROUTES)).await;
        let (good, said) = marks(&from, &["export"]).await;
        assert!(good && said.is_empty(), "{said}");
        // More than the admin port lists at once.
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("many.jsonl");
        let line = |n| format!("{{\"resource\":\"many:{n}\",\"mark\":\"7\"}}");
        let many = (0..1010).map(line).collect::<Vec<_>>().join("\n");
        std::fs::write(&file, many).expect("written");
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
        assert!(good && said == "1012 marks were raised, 1 were as high or higher\n", "{said}");
        to.stale(put("/orders/7").token(281_474_976_710_652_u64)).await;
        to.forward(put("/orders/7").token(281_474_976_710_653_u64)).await;
        assert_eq!(to.token("order:a b").await, Some(6), "an import never lowers");
        // A token that was spent there is spent here.
        to.send(put("/once/1").token(41)).await.assert_problem(412, "stale-token");
        to.forward(put("/once/1").token(42)).await;
        let audit = to.mark("many:3").await.expect("it has a mark")["audit"].to_string();
        assert!(audit.contains("moved to another store"), "{audit}");
        let (_, said) = marks(&to, &[&import[..], &["--json"]].concat()).await;
        let again: Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!(again, serde_json::json!({ "raised": 0, "kept": 1013 }), "it can be run again");
    }
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
