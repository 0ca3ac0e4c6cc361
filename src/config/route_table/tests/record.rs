//! The table as the store keeps it, and the records of version 0.1.0.

use serde_json::json;

use super::{routes, table};
use crate::config::route_table::{RouteTable, TableChange};

#[test]
fn what_version_0_1_0_has_recorded_is_compared_by_what_it_does() {
    let recorded = |rows: &[(&str, &str)]| -> Vec<(String, String)> {
        let gone = [("/gone/{id}", "gone:{id}")];
        let rows = rows.iter().chain(&gone);
        rows.map(|(path, template)| ((*path).to_owned(), (*template).to_owned()))
            .collect()
    };
    let now = routes(&[("/o/{id}", "o:{id}"), ("/o/{id}/x", "")]);
    let changes = |rows: &[(&str, &str)]| now.changes_from_templates(&recorded(rows));
    assert_eq!(changes(&[("/o/{order}", "o:{order}")]), []);
    let other = changes(&[("/o/{order}", "p:{order}")]);
    assert_eq!(other.len(), 1, "{other:?}");
    assert_eq!(other[0].change, TableChange::Key);
    // Both names of a capture are on record, and nothing says which was the last.
    assert_eq!(changes(&[("/o/{a}", "o:{a}"), ("/o/{b}", "o:{b}")]), []);
    let last = changes(&[("/o/{a}", "o:{a}"), ("/o/{b}", "p:{b}")]);
    let first = changes(&[("/o/{a}", "p:{a}"), ("/o/{b}", "o:{b}")]);
    assert_eq!((last.len(), first.len()), (1, 1), "{last:?} {first:?}");

    // A route that takes requests from a wider one.
    let wide = [("/orders/{id}/{*rest}", "order:{id}")];
    let narrow = routes(&[wide[0], ("/orders/{id}/items", "item:{id}")]);
    let changes = narrow.changes_from_templates(&recorded(&wide));
    assert_eq!(changes.len(), 1, "{changes:?}");
    let said = changes[0].to_string();
    assert!(
        said.contains("/orders/2/items: until now it is fenced as \"order:2\""),
        "{said}"
    );
    assert_eq!(routes(&wide).changes_from_templates(&recorded(&wide)), []);
}

#[test]
fn a_table_is_read_back_as_it_was_written() {
    let table = table(
        "refuse",
        &[
            json!({ "path": "/o/{id}", "resource": "{id|int}:{query.q}", "methods": ["POST", "PUT"],
                    "safe_methods": "required", "token_format": "prefix-hex16", "reuse": "once",
                    "allow": ["semicolon", "backslash"] }),
            json!({ "path": "/free/{*rest}", "mode": "bypass" }),
        ],
    );
    let document = table.to_document();
    let again = RouteTable::from_document(&document).expect("it reads its own");
    assert_eq!((&again, again.to_document()), (&table, document.clone()));
    for (part, other) in [
        ("\"version\":1", "\"version\":2"),
        ("\"reuse\":\"once\"", "\"reuse\":\"twice\""),
        ("prefix-hex16", "roman"),
        ("semicolon", "comma"),
        ("{id|int}", "{di|int}"),
        ("\"version\":1", "\"version\":1,\"hosts\":[]"),
        ("/free/{*rest}", "/o/{other}"),
    ] {
        let bad = document.replacen(part, other, 1);
        assert_ne!(bad, document, "{part}");
        assert!(RouteTable::from_document(&bad).is_err(), "{bad}");
    }
}
