//! Keys that two routes share.

use serde_json::{Value, json};

use super::table;

#[test]
fn keys_that_two_routes_share_are_told_with_both_requests() {
    let told = |routes: &[Value]| {
        let shared = table("refuse", routes).shared_keys(|_, _| false);
        let told = shared.iter().map(|one| {
            let [first, second] = &one.requests;
            let kinds = (one.templates_differ, one.formats_differ);
            (
                format!("{} = {} = {first} = {second}", one.key, kinds.0),
                kinds.1,
            )
        });
        told.collect::<Vec<_>>()
    };
    let of = |path: &str, resource: &str| json!({ "path": path, "resource": resource });
    let orders = || of("/orders/{id}", "order:{id}");
    for (routes, expected) in [
        (
            vec![of("/files/{name}", "{name}"), orders()],
            vec![(
                "order:2 = true = PUT /orders/2 = PUT /files/order%3A2",
                false,
            )],
        ),
        (
            vec![orders(), of("/x/{k}/{id}", "{k}:{header.h|int}")],
            vec![("order:2 = true = PUT /orders/2 = PUT /x/order/x", false)],
        ),
        (
            vec![
                orders(),
                json!({ "path": "/b/{x}", "resource": "order:{x}", "token_format": "hex",
                                   "methods": ["POST"] }),
            ],
            vec![("order:2 = false = PUT /orders/2 = POST /b/2", true)],
        ),
        (
            vec![of("/o/{*rest}", "{rest}"), of("/p/{a}/{b}/", "{a}/{b}")],
            vec![("2/3 = true = PUT /o/2/3 = PUT /p/2/3/", false)],
        ),
        // The same template, or a path that is spelled out, is meant.
        (
            vec![orders(), of("/v2/orders/{x}/{*rest}", "order:{x}")],
            vec![],
        ),
        (vec![orders(), of("/orders", "order:{json.id}")], vec![]),
        (
            vec![of("/{*path}", "{path}"), of("/o/{id}/lines", "/o/{id}")],
            vec![],
        ),
        // Only a narrower route could be reached with that key, or only by a spelling that is
        // refused.
        (
            vec![
                of("/{kind}/{id}", "{kind}:{id}"),
                of("/order/{id}", "order:{id}"),
            ],
            vec![],
        ),
        (
            vec![of("/o/{id}", "o/{id}"), of("/f/{name}", "{name}")],
            vec![],
        ),
        (vec![orders(), of("/bills/{id}", "bill:{id}")], vec![]),
        (
            vec![orders(), json!({ "path": "/free/{id}", "mode": "bypass" })],
            vec![],
        ),
    ] {
        let expected: Vec<_> = expected
            .iter()
            .map(|(text, format)| ((*text).to_owned(), *format))
            .collect();
        assert_eq!(told(&routes), expected, "{routes:?}");
    }
}
