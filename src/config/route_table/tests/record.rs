//! The table as the store keeps it.

use serde_json::json;

use super::table;
use crate::config::route_table::RouteTable;

#[test]
fn a_table_is_read_back_as_it_was_written() {
    let table = table(
        "refuse",
        &[
            json!({ "path": "/o/{id}", "resource": "{id|int}:{query.q}", "methods": ["POST", "PUT"],
                    "safe_methods": "required", "token_format": "prefix-hex16", "reuse": "once",
                    "allow": ["semicolon", "encoded-slash"] }),
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
