//! Tests of the comparison of two route tables: by cases, and against a search of all short paths.

use std::collections::{BTreeSet, HashMap};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::compare::{Comparison, Indices, askings};
use super::witness::Sample;
use super::*;
use crate::routing::{CheckedPath, Source, percent_encoded};

fn table(unmatched: &str, routes: &[Value]) -> RouteTable {
    let routes: Vec<Value> = routes
        .iter()
        .map(|given| {
            let mut route = json!({
                "path": null, "mode": "enforce", "methods": null, "resource": null,
                "safe_methods": "optional", "token_format": "decimal", "reuse": "allow", "allow": [],
            });
            for (name, value) in given.as_object().expect("fields") {
                route[name] = value.clone();
            }
            route
        })
        .collect();
    let document = json!({ "version": 1, "unmatched": unmatched, "routes": routes });
    RouteTable::from_document(&document.to_string()).expect("a good table")
}

fn routes(list: &[(&str, &str)]) -> RouteTable {
    let rules = list.iter().map(|(path, resource)| {
        let mode = if resource.is_empty() {
            "bypass"
        } else {
            "enforce"
        };
        let resource = (!resource.is_empty()).then_some(resource);
        json!({ "path": path, "resource": resource, "mode": mode })
    });
    table("safe-only", &rules.collect::<Vec<_>>())
}

fn route(fields: &Value) -> RouteTable {
    let mut route = json!({ "path": "/o/{id}", "resource": "o:{id}" });
    for (name, value) in fields.as_object().expect("fields") {
        route[name] = value.clone();
    }
    table("safe-only", &[route])
}

fn kinds(old: &RouteTable, new: &RouteTable) -> Vec<TableChange> {
    let findings = old.changes_to(new);
    findings.iter().map(|finding| finding.change).collect()
}

const ORDERS: (&str, &str) = ("/orders/{id}/{*rest}", "order:{id}");

#[test]
fn a_narrower_route_with_another_key_is_told_with_a_request() {
    let old = routes(&[ORDERS]);
    let new = routes(&[ORDERS, ("/orders/{id}/items", "item:{id}")]);
    let findings = old.changes_to(&new);
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(
        findings[0].to_string(),
        "PUT /orders/2/items: until now it is fenced as \"order:2\" (route /orders/{id}/{*rest}); \
         with the new routes it is fenced as \"item:2\" (route /orders/{id}/items)"
    );
    assert!(findings[0].change.is_loss());
    assert_eq!(kinds(&new, &old), [TableChange::Key]);
}

#[test]
fn what_changes_nothing_is_not_told() {
    let same = [
        (
            routes(&[ORDERS]),
            routes(&[("/orders/{order}/{*rest}", "order:{order}")]),
        ),
        (
            routes(&[("/{a}/{b}", "{a}:{b}")]),
            routes(&[("/{b}/{a}", "{b}:{a}")]),
        ),
        (
            routes(&[("/o%72ders/{id}", "o:{id}")]),
            routes(&[("/orders/{id}", "o:{id}")]),
        ),
        // A route that takes a part of another one's paths, with the same keys.
        (
            routes(&[ORDERS]),
            routes(&[ORDERS, ("/orders/{id}/items", "order:{id}")]),
        ),
        (
            routes(&[("/f/{*rest}", "f/{rest}")]),
            routes(&[("/f/{*x}", "f/{x}"), ("/f/{a}/{b}", "f/{a}/{b}")]),
        ),
        // No request without one part has a key on either.
        (
            routes(&[("/{k}/{id}", "{k}:{id}")]),
            routes(&[("/{k}/{id}", "{k}:{id}"), ("/a/{id}", "a:{id}")]),
        ),
        (
            route(&json!({ "resource": "{id|int}:{id}" })),
            route(&json!({ "resource": "{id|int}:{id|lower}" })),
        ),
        (
            route(&json!({ "resource": "{host}" })),
            route(&json!({ "resource": "{host|lower}" })),
        ),
        (
            route(&json!({ "resource": "o:{id|lower|plain}" })),
            route(&json!({ "resource": "o:{id|plain|lower}" })),
        ),
        (
            route(&json!({ "resource": "{id|plain}:{id}" })),
            route(&json!({ "resource": "{id}:{id|plain}" })),
        ),
    ];
    for (old, new) in &same {
        assert_eq!(old.changes_to(new), [], "{old:?} {new:?}");
        assert_eq!(new.changes_to(old), [], "{new:?} {old:?}");
    }
    let [(old, new), ..] = &same;
    assert_eq!(old.digest(), new.digest());
    assert_eq!(old.digest().len(), 32);
    assert_ne!(old.to_document(), new.to_document());
}

#[test]
fn a_filter_that_refuses_takes_keys_away_and_changes_none() {
    use TableChange::{Key, Refused};
    let plain = || route(&json!({}));
    for (old, new, expected) in [
        // Keys stay as they are, and what is no longer taken has none: the table after this one could
        // give it any.
        (
            plain(),
            route(&json!({ "resource": "o:{id|plain}" })),
            vec![Refused],
        ),
        (
            route(&json!({ "resource": "o:{id|plain}" })),
            plain(),
            vec![],
        ),
        (
            route(&json!({ "resource": "o:{id|plain}" })),
            route(&json!({ "resource": "o:{id|plain|lower}" })),
            vec![Key],
        ),
        (
            route(&json!({ "resource": "o:{id|lower}" })),
            route(&json!({ "resource": "o:{id|lower|plain}" })),
            vec![Refused],
        ),
        (
            route(&json!({ "resource": "o:{id|int}" })),
            route(&json!({ "resource": "o:{id|int|plain}" })),
            vec![Refused],
        ),
        (
            route(&json!({ "resource": "o:{id|int}" })),
            route(&json!({ "resource": "o:{id|plain}" })),
            vec![Key, Refused],
        ),
        (
            route(&json!({ "resource": "o:{header.h}" })),
            route(&json!({ "resource": "o:{header.h|plain}" })),
            vec![Refused],
        ),
        (
            route(&json!({ "resource": "o:{json.h|int}" })),
            route(&json!({ "resource": "o:{json.h|int|plain}" })),
            vec![Refused],
        ),
        (
            route(&json!({ "path": "/o/{*r}", "resource": "o:{r}" })),
            route(&json!({ "path": "/o/{*r}", "resource": "o:{r|plain}" })),
            vec![Refused],
        ),
        (
            route(&json!({ "resource": "{path}" })),
            route(&json!({ "resource": "{path|plain}" })),
            vec![Refused],
        ),
        // Which signs are escaped shows in plain names too.
        (
            route(&json!({ "path": "/o-p/{id}", "resource": "{path|plain}" })),
            route(&json!({ "path": "/o-p/{id}", "resource": "/o-p/{id|plain}" })),
            vec![Key],
        ),
    ] {
        assert_eq!(kinds(&old, &new), expected, "{old:?} {new:?}");
    }
}

#[test]
fn each_kind_of_change_is_told_once() {
    use TableChange::{Added, Enforced, Format, Key, Refused, Reuse, Unfenced, Unrouted};
    let plain = || route(&json!({}));
    for (old, new, expected) in [
        (plain(), route(&json!({ "resource": "p:{id}" })), vec![Key]),
        (
            plain(),
            route(&json!({ "resource": "o:{id|lower}" })),
            vec![Key],
        ),
        (
            plain(),
            route(&json!({ "resource": "o:{id|int}" })),
            vec![Key, Refused],
        ),
        (
            plain(),
            route(&json!({ "resource": "o:{query.id}" })),
            vec![Key],
        ),
        (
            plain(),
            route(&json!({ "resource": "o:{json.id}" })),
            vec![Key],
        ),
        (
            plain(),
            route(&json!({ "resource": "{host}:{id}" })),
            vec![Key],
        ),
        (
            plain(),
            route(&json!({ "token_format": "hex" })),
            vec![Format],
        ),
        (
            plain(),
            route(&json!({ "mode": "observe" })),
            vec![Unfenced],
        ),
        (plain(), route(&json!({ "mode": "bypass" })), vec![Unfenced]),
        (
            plain(),
            route(&json!({ "safe_methods": "ignored" })),
            vec![Unfenced],
        ),
        (
            plain(),
            route(&json!({ "safe_methods": "required" })),
            vec![Enforced],
        ),
        (plain(), route(&json!({ "methods": ["PUT"] })), vec![]),
        (plain(), route(&json!({ "reuse": "once" })), vec![Reuse]),
        (
            plain(),
            route(&json!({ "path": "/o/{id}/" })),
            vec![Unfenced, Unrouted, Added],
        ),
        (plain(), table("refuse", &[]), vec![Unrouted]),
        (plain(), table("safe-only", &[]), vec![Unfenced, Unrouted]),
        (table("safe-only", &[]), plain(), vec![Added]),
        (table("refuse", &[]), plain(), vec![Added]),
        (
            route(&json!({ "mode": "observe" })),
            plain(),
            vec![Enforced],
        ),
        (
            route(&json!({ "mode": "observe" })),
            route(&json!({ "mode": "bypass" })),
            vec![],
        ),
        // A request that is refused for its spelling has no key to compare with the next table.
        (
            route(&json!({ "allow": ["semicolon"] })),
            plain(),
            vec![Refused],
        ),
        (
            route(&json!({ "allow": ["raw-characters", "empty-segments", "double-encoding"] })),
            plain(),
            vec![],
        ),
        // Nor has a request whose only part is empty.
        (
            routes(&[("/o", "o:all"), ("/o/{*rest}", "o:{rest}")]),
            routes(&[("/o/{*rest}", "o:{rest}")]),
            vec![Refused],
        ),
    ] {
        assert_eq!(kinds(&old, &new), expected, "{old:?} {new:?}");
    }
}

#[test]
fn signs_that_only_one_template_escapes_are_told() {
    let old = routes(&[("/a-b/{id}", "a-b:{id}")]);
    let new = routes(&[("/{k}/{id}", "{k}:{id}"), ("/x-y/{id}", "")]);
    assert_eq!(kinds(&old, &new).first(), Some(&TableChange::Key));
    let finding = &old.changes_to(&new)[0];
    assert!(
        finding.was.contains("%2D") && !finding.becomes.contains("%2D"),
        "{finding}"
    );
    // A slash within a segment reaches neither route, unless both let it through.
    let with = |resource: &str, allow: &[&str]| {
        route(&json!({ "path": "/o/{*rest}", "resource": resource, "allow": allow }))
    };
    let narrow =
        |allow: &[&str]| route(&json!({ "path": "/o/{id}", "resource": "o:{id}", "allow": allow }));
    let slash = &["encoded-slash"][..];
    assert_eq!(
        kinds(&with("o:{rest}", &[]), &narrow(&[])).first(),
        Some(&TableChange::Unfenced)
    );
    let has_key = |old: &RouteTable, new: &RouteTable| kinds(old, new).contains(&TableChange::Key);
    assert!(!has_key(&with("o:{rest}", &[]), &narrow(slash)));
    assert!(has_key(&with("o:{rest}", slash), &narrow(slash)));
}

#[test]
fn requests_name_what_the_keys_are_made_of() {
    let old = route(&json!({ "resource": "{host}:{header.x-tenant}:{id}" }));
    let new = route(&json!({ "resource": "{query.q}:{json.a.b}:{id}", "safe_methods": "ignored" }));
    let findings = old.changes_to(&new);
    let request = &findings[0].request;
    for part in ["PUT /o/2?q=", "Host: example.org", "x-tenant: ", "a.b \""] {
        assert!(request.contains(part), "{request}");
    }
    assert!(findings[1].request.starts_with("GET /o/2"), "{findings:?}");
    assert!(findings[1].request.contains("with a token"), "{findings:?}");
}

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

#[test]
fn tables_of_hundreds_of_routes_are_compared() {
    let paths: Vec<(String, String)> = (0..300)
        .flat_map(|n| {
            let path = |more: &str| (format!("/s{n}/{{id}}{more}"), format!("s{n}:{{id}}"));
            [path(""), path("/{*rest}")]
        })
        .collect();
    let mut list: Vec<(&str, &str)> = paths.iter().map(|(a, b)| (&**a, &**b)).collect();
    list.push(("/{*all}", "{path}"));
    let old = routes(&list);
    list.push(("/s7/{id}/items", "item:{id}"));
    assert_eq!(kinds(&old, &routes(&list)), [TableChange::Key]);
}

#[test]
fn a_refused_method_has_a_key_all_the_same() {
    let methods = |method: &str, resource: &str| {
        route(&json!({ "methods": [method], "resource": resource, "safe_methods": "ignored" }))
    };
    let [put, delete] = ["PUT", "DELETE"].map(|method| methods(method, "o:{id}"));
    assert_eq!(kinds(&put, &delete), []);
    let findings = delete.changes_to(&methods("PUT", "p:{id}"));
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(
        findings[0].to_string(),
        "PUT /o/2: until now its method is refused, and its key is \"o:2\" (route /o/{id}); with the \
         new routes it is fenced as \"p:2\" (route /o/{id})"
    );
    // A request that both let through is shown, where there is one.
    let old = route(&json!({ "methods": ["PATCH", "POST"] }));
    let findings = old.changes_to(&route(
        &json!({ "methods": ["DELETE", "PATCH"], "resource": "p:{id}" }),
    ));
    assert!(findings[0].request.starts_with("PATCH"), "{findings:?}");
}

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
            vec![(
                "order:2 = true = PUT /orders/2 = PUT /x/order/x (h: 2)",
                false,
            )],
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
        // Only a narrower route could be reached with that key, or only by a spelling that is refused.
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

/// A series of changes does nothing that no single change may do.
#[test]
fn harmless_changes_in_a_row_are_harmless() {
    let mut tables = vec![
        ("nothing, refuse".to_owned(), table("refuse", &[])),
        ("nothing, safe-only".to_owned(), table("safe-only", &[])),
    ];
    let mut add = |routes: &[Value]| {
        tables.push((format!("{routes:?}"), table("refuse", routes)));
    };
    for resource in ["o:{id}", "p:{id}"] {
        for methods in [json!(null), json!(["PUT"]), json!(["DELETE"])] {
            for safe in ["optional", "ignored"] {
                for allow in [json!([]), json!(["semicolon"])] {
                    add(&[
                        json!({ "path": "/o/{id}", "resource": resource, "methods": methods,
                                  "safe_methods": safe, "allow": allow }),
                    ]);
                }
            }
        }
        add(&[json!({ "path": "/o/{id}", "resource": resource, "token_format": "hex" })]);
    }
    let rest = |allow: Value| json!({ "path": "/o/{*rest}", "resource": "o:{rest}", "allow": allow, "safe_methods": "ignored" });
    let slash = json!(["encoded-slash"]);
    for allow in [json!([]), slash.clone()] {
        add(&[rest(allow.clone())]);
        add(&[
            rest(allow.clone()),
            json!({ "path": "/o", "resource": "o" }),
        ]);
        add(&[rest(allow), json!({ "path": "/o", "resource": "all" })]);
    }
    for allow in [json!([]), slash] {
        let narrow = json!({ "path": "/o/{id}", "resource": "o:{id}", "allow": allow, "safe_methods": "ignored" });
        add(&[narrow.clone(), rest(json!([]))]);
        add(&[narrow, rest(json!(["encoded-slash"]))]);
    }
    for mode in ["observe", "bypass"] {
        add(&[json!({ "path": "/o/{id}", "resource": "o:{id}", "mode": mode })]);
    }
    for resource in ["o:ab", "p:ab"] {
        add(&[
            json!({ "path": "/o/a;b", "resource": resource, "allow": ["semicolon"] }),
            json!({ "path": "/x", "resource": "x" }),
        ]);
    }
    add(&[json!({ "path": "/x", "resource": "x" })]);
    let harmless = |from: &RouteTable, to: &RouteTable| {
        from.changes_to(to)
            .iter()
            .all(|found| !found.change.is_loss())
    };
    let all: Vec<Vec<bool>> = tables
        .iter()
        .map(|(_, from)| tables.iter().map(|(_, to)| harmless(from, to)).collect())
        .collect();
    let every = || 0..tables.len();
    for (a, b) in every().flat_map(|a| every().map(move |b| (a, b))) {
        let harm = every().find(|&c| all[a][b] && all[b][c] && !all[a][c]);
        let names = harm.map(|c| [a, b, c].map(|at| &tables[at].0));
        assert!(names.is_none(), "{names:#?}");
    }
}

// --- against a search ---

/// Segments of the search: the literals of the patterns, and texts that no pattern has.
const SEGMENTS: [&str; 7] = ["a", "b", "1", "07", "+7", "Z-q", "Z-:q"];
const VALUES: [&str; 5] = ["1", "07", "+7", "Z-q", "Z-:/q"];
const HOSTS: [&str; 2] = ["h.test", "1"];

fn one_pattern() -> impl Strategy<Value = String> {
    let segment = prop::sample::select(vec!["a", "b", "{x}", "{y}"]);
    let end = prop::sample::select(vec!["", "", "/", "/{*r}"]);
    (prop::collection::vec(segment, 0..=2), end).prop_map(|(mut segments, end)| {
        if segments == ["{x}", "{x}"] || segments == ["{y}", "{y}"] {
            segments.truncate(1);
        }
        let steps: Vec<String> = segments.iter().map(|one| format!("/{one}")).collect();
        match (steps.concat() + end).as_str() {
            "" => "/".to_owned(),
            path => path.to_owned(),
        }
    })
}

const TEMPLATES: [&str; 25] = [
    "{x}:{y}",
    "{y}:{x}",
    "k:{x}",
    "k:{y}",
    "k:{x|lower}",
    "k:{x|int}",
    "a:{x}",
    "{x}",
    "a",
    "a-b:{x}",
    "k:{r}",
    "{x}/{r}",
    "{x}-{r|lower}",
    "{path}",
    "{path|lower}",
    "{header.h}:{x}",
    "k:{header.h|int}",
    "{host}:{header.h}",
    "k:{x|plain}",
    "k-{x|plain}",
    "{x|plain}:{y}",
    "k:{x|int|plain}",
    "k:{r|plain}",
    "{path|plain}",
    "{host}:{header.h|plain}",
];

fn one_route() -> impl Strategy<Value = Value> {
    let template = prop::sample::select(TEMPLATES.to_vec());
    let mode = prop::sample::select(vec!["enforce", "enforce", "enforce", "observe", "bypass"]);
    let methods = prop::sample::select(vec![
        json!(null),
        json!(null),
        json!(["PUT"]),
        json!(["POST"]),
    ]);
    let safe = prop::sample::select(vec!["optional", "optional", "required", "ignored"]);
    let format = prop::sample::select(vec!["decimal", "decimal", "decimal", "hex"]);
    (one_pattern(), template, mode, methods, safe, format).prop_map(
        |(path, template, mode, methods, safe, format)| {
            let pattern = Pattern::parse(&path).expect("a good pattern");
            let fits = KeyTemplate::parse(template, &pattern).is_ok();
            json!({
                "path": path, "resource": if fits { template } else { "{path}" }, "mode": mode,
                "methods": methods, "safe_methods": safe, "token_format": format,
                "reuse": "allow", "allow": [],
            })
        },
    )
}

fn routes_and_unmatched() -> impl Strategy<Value = (Vec<Value>, &'static str)> {
    let routes = prop::collection::vec(one_route(), 0..=3);
    (routes, prop::sample::select(vec!["safe-only", "refuse"]))
}

/// Small changes of a template: what stands in it, and what it becomes.
const EDITS: [(&str, &str); 13] = [
    ("{x}", "{x|int}"),
    ("{x}", "{x|lower}"),
    ("{x|int}", "{x}"),
    ("{y}", "{x}"),
    ("{path}", "/{x}"),
    ("k:", "k-"),
    ("{x}", "{x|plain}"),
    ("{x|plain}", "{x}"),
    ("{x|plain}", "{x|lower}"),
    ("{x|int}", "{x|int|plain}"),
    ("{x|lower}", "{x|plain|lower}"),
    ("{r}", "{r|plain}"),
    ("{header.h}", "{header.h|plain}"),
];

/// Two tables, most of them the same but for the template of one route.
fn two_tables() -> impl Strategy<Value = (RouteTable, RouteTable)> {
    let edit = prop::sample::select(EDITS.to_vec());
    let edit = (any::<prop::sample::Index>(), edit, 0..4);
    (routes_and_unmatched(), routes_and_unmatched(), edit).prop_map(|(old, other, edit)| {
        let (at, (from, to), choice) = edit;
        let mut new = if choice == 0 { other } else { old.clone() };
        if choice > 1 && !new.0.is_empty() {
            let route = &mut new.0[at.index(old.0.len())];
            let text = |name: &str| route[name].as_str().expect("text").to_owned();
            let pattern = Pattern::parse(&text("path")).expect("a good pattern");
            let template = text("resource").replacen(from, to, 1);
            if KeyTemplate::parse(&template, &pattern).is_ok() {
                route["resource"] = json!(template);
            }
        }
        (distinct(old), distinct(new))
    })
}

/// Two routes of one shape are no table.
fn distinct((mut routes, unmatched): (Vec<Value>, &str)) -> RouteTable {
    let mut seen = BTreeSet::new();
    routes.retain(|route| {
        let path = route["path"].as_str().expect("text");
        seen.insert(Pattern::parse(path).expect("a good pattern").shape())
    });
    table(unmatched, &routes)
}

/// Every path of up to three segments. Only `{*r}` takes a third one, and it takes no numbers.
fn all_paths() -> Vec<String> {
    let mut all = vec!["/".to_owned()];
    let mut longest = vec![String::new()];
    for length in 1..=3 {
        let segments: &[&str] = if length < 3 {
            &SEGMENTS
        } else {
            &["a", "Z-q", "Z-:q"]
        };
        let longer = longest.iter().flat_map(|path| {
            let longer = segments.iter();
            longer.map(move |segment| format!("{path}/{}", percent_encoded(segment)))
        });
        longest = longer.collect();
        for path in &longest {
            all.extend([path.clone(), format!("{path}/")]);
        }
    }
    all
}

fn found_by_search(
    comparison: &Comparison,
    tables: [&RouteTable; 2],
) -> BTreeSet<(Indices, TableChange)> {
    let mut found = BTreeSet::new();
    let uses = |what: &str| {
        tables
            .iter()
            .any(|table| table.to_document().contains(what))
    };
    let values = if uses("{header.") {
        &VALUES[..]
    } else {
        &VALUES[..1]
    };
    let hosts = if uses("{host}") {
        &HOSTS[..]
    } else {
        &HOSTS[..1]
    };
    for raw_path in all_paths() {
        for (value, host) in values
            .iter()
            .flat_map(|value| hosts.iter().map(move |host| (value, *host)))
        {
            let sample = Sample {
                path: CheckedPath::parse(&raw_path).expect("a good path"),
                raw_path: raw_path.clone(),
                values: HashMap::from([
                    (Source::Header("h".to_owned()), (*value).to_owned()),
                    (Source::Host, host.to_owned()),
                ]),
            };
            let sides = comparison.sides(sample);
            for asking in askings([None, None]) {
                let changes = sides.changes(asking);
                found.extend(changes.into_iter().map(|change| (sides.indices, change)));
            }
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn what_a_search_of_all_paths_finds_is_told_and_nothing_else(
        (old, new) in two_tables()
    ) {
        let comparison = Comparison::new([&old, &new]).expect("no two routes of one shape");
        let told: BTreeSet<(Indices, TableChange)> = comparison
            .pairs()
            .flat_map(|pair| comparison.findings(pair).into_iter().map(move |one| (pair, one.change)))
            .collect();
        prop_assert_eq!(
            &told, &found_by_search(&comparison, [&old, &new]), "{} -> {}", old.to_document(), new.to_document()
        );
        let kinds: BTreeSet<TableChange> = old.changes_to(&new).iter().map(|one| one.change).collect();
        let expected: BTreeSet<TableChange> = told.iter().map(|(_, change)| *change).collect();
        prop_assert_eq!(kinds, expected);
    }
}
