//! Each kind of change between two tables, and series of changes.

use serde_json::{Value, json};

use super::{harmless, kinds, route, routes, table};
use crate::config::route_table::{RouteTable, TableChange};

const ORDERS: (&str, &str) = ("/orders/{id}/{*rest}", "order:{id}");

#[test]
fn a_narrower_route_with_another_key_is_told_with_a_request() {
    let old = routes(&[ORDERS]);
    let new = routes(&[ORDERS, ("/orders/{id}/items", "item:{id}")]);
    let findings = old.changes_to(&new);
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(
        findings[0].message,
        "PUT /orders/2/items: until now it is fenced as order:{id} (route /orders/{id}/{*rest}); \
         with the new routes it is fenced as item:{id} (route /orders/{id}/items)"
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
        // No request without one part has a key on either.
        (
            routes(&[("/{k}/{id}", "{k}:{id}")]),
            routes(&[("/{k}/{id}", "{k}:{id}"), ("/a/{id}", "a:{id}")]),
        ),
        (route("o:{id|lower|plain}"), route("o:{id|plain|lower}")),
        (route("{id|plain}:{id}"), route("{id}:{id|plain}")),
    ];
    for (old, new) in &same {
        assert_eq!(old.changes_to(new), [], "{old:?} {new:?}");
        assert_eq!(new.changes_to(old), [], "{new:?} {old:?}");
    }
    let [(old, new), ..] = &same;
    assert_eq!(old.digest(), old.clone().digest());
    assert_eq!(old.digest().len(), 32);
    assert_ne!(old.digest(), new.digest());
}

/// A table without routes for `safe-only` and `refuse`, and otherwise the one of a route.
fn one(table_or_route: &str) -> RouteTable {
    match table_or_route {
        "safe-only" | "refuse" => table(table_or_route, &[]),
        fields => route(fields),
    }
}

#[test]
fn a_filter_that_refuses_takes_keys_away_and_changes_none() {
    use TableChange::{Key, Refused};
    for (old, new, expected) in [
        // Keys stay as they are. A request that is no longer taken has none: the table after this
        // one could give it any.
        ("o:{id}", "o:{id|plain}", vec![Refused]),
        ("o:{id|plain}", "o:{id}", vec![]),
        ("o:{id|plain}", "o:{id|plain|lower}", vec![Key]),
        ("o:{id|lower}", "o:{id|lower|plain}", vec![Refused]),
        ("o:{id|int}", "o:{id|int|plain}", vec![Refused]),
        ("o:{id|int}", "o:{id|plain}", vec![Key, Refused]),
        ("o:{header.h}", "o:{header.h|plain}", vec![Refused]),
        ("o:{json.h|int}", "o:{json.h|int|plain}", vec![Refused]),
        (
            "path=/o/{*r} o:{r}",
            "path=/o/{*r} o:{r|plain}",
            vec![Refused],
        ),
        ("{path}", "{path|plain}", vec![Refused]),
        // Which signs are escaped shows in plain names too.
        (
            "path=/o-p/{id} {path|plain}",
            "path=/o-p/{id} /o-p/{id|plain}",
            vec![Key, Refused],
        ),
    ] {
        let [old_table, new_table] = [old, new].map(one);
        assert_eq!(kinds(&old_table, &new_table), expected, "{old} -> {new}");
    }
}

#[test]
fn each_kind_of_change_is_told_once() {
    use TableChange::{Added, Enforced, Format, Key, Observed, Refused, Removed, Unfenced};
    for (old, new, expected) in [
        ("o:{id}", "p:{id}", vec![Key]),
        ("o:{id}", "o:{id|lower}", vec![Key]),
        ("o:{id}", "o:{id|int}", vec![Key, Refused]),
        ("o:{id}", "o:{query.id}", vec![Key]),
        ("o:{id}", "o:{json.id}", vec![Key]),
        ("o:{id}", "{host}:{id}", vec![Key]),
        ("o:{id}", "token_format=hex", vec![Format]),
        ("o:{id}", "mode=observe", vec![Observed]),
        ("o:{id}", "mode=observe p:{id}", vec![Observed]),
        ("o:{id}", "mode=bypass", vec![Unfenced]),
        ("o:{id}", "safe_methods=ignored", vec![Unfenced]),
        ("o:{id}", "safe_methods=required", vec![Enforced]),
        ("o:{id}", "methods=PUT", vec![]),
        ("o:{id}", "reuse=once", vec![]),
        ("o:{id}", "path=/o/{id}/", vec![Removed, Added]),
        ("o:{id}", "refuse", vec![Removed]),
        ("o:{id}", "safe-only", vec![Removed]),
        ("safe-only", "o:{id}", vec![Added]),
        ("refuse", "o:{id}", vec![Added]),
        ("mode=observe", "o:{id}", vec![Enforced]),
        ("mode=observe", "mode=bypass", vec![]),
        // A request that is refused for its spelling has no key to compare with the next table.
        ("allow=semicolon", "o:{id}", vec![Refused]),
        ("allow=raw-characters,empty-segments", "o:{id}", vec![]),
    ] {
        let [old_table, new_table] = [old, new].map(one);
        assert_eq!(kinds(&old_table, &new_table), expected, "{old} -> {new}");
    }
    // Writes to a path that no route lists have passed while routes only observed.
    let observed = json!({ "path": "/x/{id}", "resource": "x:{id}", "mode": "observe" });
    let listed = json!({ "path": "/o/{id}", "resource": "o:{id}" });
    let unlisted = |unmatched| table(unmatched, std::slice::from_ref(&observed));
    let new = table("safe-only", &[observed.clone(), listed]);
    assert_eq!(kinds(&unlisted("safe-only"), &new), [Enforced, Added]);
    assert_eq!(kinds(&unlisted("refuse"), &new), [Added]);
    assert_eq!(kinds(&new, &unlisted("safe-only")), [Removed]);
    assert_eq!(kinds(&new, &unlisted("refuse")), [Removed]);
    // Nor has a request whose only part is empty.
    let old = routes(&[("/o", "o:all"), ("/o/{*rest}", "o:{rest}")]);
    let new = routes(&[("/o/{*rest}", "o:{rest}")]);
    assert_eq!(kinds(&old, &new), [Refused]);
}

/// An operator may stop enforcing and begin again, in as many steps as he likes. None of them gives
/// a request another key.
#[test]
fn tables_that_have_enforced_are_remembered() {
    use TableChange::{Added, Enforced, Format, Key, Observed, Removed, Unfenced};
    let old = one("o:{id}");
    for (between, change) in [("mode=observe", Observed), ("refuse", Removed)] {
        let back = if change == Observed { Enforced } else { Added };
        let (between, findings) = old.replaced_by(&one(between));
        assert_eq!(findings[0].change, change);
        // Read back from the store, and after a start with the same routes.
        let again = RouteTable::from_document(&between.to_document());
        assert_eq!(again.as_ref(), Ok(&between));
        let (between, findings) = between.replaced_by(&between.alone());
        assert_eq!(findings, []);
        for (new, expected) in [
            ("o:{id}", vec![back]),
            ("p:{id}", vec![back, Key]),
            ("token_format=hex", vec![back, Format]),
            ("mode=observe p:{id}", vec![]),
            ("path=/o/a x:a", vec![back, Key]),
        ] {
            assert_eq!(kinds(&between, &one(new)), expected, "{new}");
        }
        assert_eq!(kinds(&between, &one("mode=bypass")), [Unfenced]);
        let (_, findings) = between.replaced_by(&one("p:{id}"));
        let told = &findings[1].message;
        let expected = "under earlier routes it is fenced as o:{id} (route /o/{id}); with the new \
                        routes it is fenced as p:{id} (route /o/{id})";
        assert!(told.ends_with(expected), "{told}");
        // Nothing is remembered that is enforced again.
        let (again, _) = between.replaced_by(&old);
        assert_eq!(again, old);
        assert!(between.remembers() && !again.remembers());
        // Remembered tables are no difference between two instances.
        assert_ne!(between, between.alone());
        assert_eq!(between.digest(), between.alone().digest());
    }
    // Routes that have never enforced may change their keys as they like.
    let fresh = one("mode=observe");
    assert_eq!(kinds(&fresh, &one("mode=observe p:{id}")), []);
    assert_eq!(kinds(&fresh, &one("refuse")), []);
    // Another route takes a part of the paths of one that is gone, after a more specific one.
    let old = routes(&[("/o/{id}/{*rest}", "o:{id}"), ("/o/{id}", "o:{id}")]);
    let changes = |new| kinds(&old, &routes(&[new]));
    assert_eq!(changes(("/{kind}/{id}", "i:{id}")), [Key, Removed, Added]);
    assert_eq!(changes(("/{kind}/{id}", "")), [Unfenced, Removed]);
    assert_eq!(changes(("/o/{id}/items", "o:{id}")), [Removed, Removed]);
    // A proxy that has missed one table: all that was on record, and all that it has served, count.
    let ignored = "safe_methods=ignored";
    let (served, recorded) = (one(ignored), one("safe_methods=required"));
    let (gone, _) = served.replaced_by(&one("refuse"));
    let (gone, findings) = recorded.replaced_by(&gone);
    assert!(
        findings.iter().all(|found| !found.change.is_loss()),
        "{findings:?}"
    );
    assert_eq!(kinds(&gone, &one(ignored)), [Added, Unfenced]);
    assert_eq!(kinds(&gone, &recorded), [Added]);
}

/// The comparison knows the templates, not what their filters make of each text.
#[test]
fn two_ways_to_the_same_keys_are_told() {
    for (old, new) in [
        ("{id|int}:{id}", "{id|int}:{id|lower}"),
        ("{host}", "{host|lower}"),
    ] {
        assert_eq!(
            kinds(&one(old), &one(new)),
            [TableChange::Key],
            "{old} -> {new}"
        );
    }
    for (old, new) in [
        (("/f/{*rest}", "f/{rest}"), ("/f/{a}/{b}", "f/{a}/{b}")),
        (("/{*all}", "{path}"), ("/o/{id}", "/o/{id}")),
    ] {
        let both = routes(&[old, new]);
        assert_eq!(kinds(&routes(&[old]), &both), [TableChange::Key]);
        assert_eq!(kinds(&both, &routes(&[old])), [TableChange::Key]);
    }
}

#[test]
fn signs_that_only_one_template_escapes_are_told() {
    let old = routes(&[("/a-b/{id}", "a-b:{id}")]);
    let new = routes(&[("/{k}/{id}", "{k}:{id}"), ("/x-y/{id}", "")]);
    assert_eq!(kinds(&old, &new).first(), Some(&TableChange::Key));
    let finding = &old.changes_to(&new)[0];
    assert!(
        finding.message.contains("fenced as {k}:{id}"),
        "{finding:?}"
    );
    // A slash within a segment reaches neither route, unless both let it through.
    let with = |resource: &str, allow: &[&str]| {
        table(
            "safe-only",
            &[json!({ "path": "/o/{*rest}", "resource": resource, "allow": allow })],
        )
    };
    let narrow = |allow: &[&str]| {
        table(
            "safe-only",
            &[json!({ "path": "/o/{id}", "resource": "o:{id}", "allow": allow })],
        )
    };
    let slash = &["encoded-slash"][..];
    let wide = kinds(&with("o:{rest}", &[]), &narrow(&[]));
    assert!(wide.contains(&TableChange::Removed), "{wide:?}");
    let has_key = |old: &RouteTable, new: &RouteTable| kinds(old, new).contains(&TableChange::Key);
    assert!(has_key(&with("o:{rest}", slash), &narrow(slash)));
}

#[test]
fn findings_name_the_templates_and_the_token() {
    let old = route("{host}:{header.x-tenant}:{id}");
    let new = route("{query.q}:{json.a.b}:{id} safe_methods=ignored");
    let findings = old.changes_to(&new);
    let shown = &findings[0].message;
    for part in [
        "PUT /o/2: ",
        "{host}:{header.x-tenant}:{id} (",
        "{query.q}:{json.a.b}:{id} (",
    ] {
        assert!(shown.contains(part), "{shown}");
    }
    let shown = &findings[1].message;
    assert!(shown.starts_with("GET /o/2 (with a token): "), "{shown}");
}

#[test]
fn a_refused_method_has_a_key_all_the_same() {
    let methods = |method: &str, resource: &str| {
        route(&format!("{resource} methods={method} safe_methods=ignored"))
    };
    let [put, delete] = ["PUT", "DELETE"].map(|method| methods(method, "o:{id}"));
    assert_eq!(kinds(&put, &delete), []);
    let findings = delete.changes_to(&methods("PUT", "p:{id}"));
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(
        findings[0].message,
        "PUT /o/2: until now it is fenced as o:{id} (route /o/{id}); with the new routes it is fenced \
         as p:{id} (route /o/{id})"
    );
    // The report shows a request that both let through, if there is one.
    let old = route("methods=PATCH,POST");
    let findings = old.changes_to(&route("methods=DELETE,PATCH p:{id}"));
    assert!(findings[0].message.starts_with("PATCH "), "{findings:?}");
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
        for methods in [
            json!(["DELETE", "PATCH", "POST", "PUT"]),
            json!(["PUT"]),
            json!(["DELETE"]),
        ] {
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
    let every = || 0..tables.len();
    let next = |from: &RouteTable, to: usize| harmless(from, &tables[to].1);
    for a in every() {
        let direct: Vec<bool> = every().map(|c| next(&tables[a].1, c).is_some()).collect();
        for b in every() {
            let Some(between) = next(&tables[a].1, b) else {
                continue;
            };
            let harm = every().find(|&c| next(&between, c).is_some() && !direct[c]);
            let names = harm.map(|c| [a, b, c].map(|at| &tables[at].0));
            assert!(names.is_none(), "{names:#?}");
        }
    }
}
