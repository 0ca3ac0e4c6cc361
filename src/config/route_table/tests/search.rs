//! The comparison against a search of all short paths.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{harmless, table};
use crate::config::judging::Mode;
use crate::config::route_table::comparison::{Asking, Comparison, Pair};
use crate::config::route_table::{RouteTable, TableChange};
use crate::routing::{
    CheckedPath, KeyShape, KeyTemplate, Pattern, ResourceKey, Router, SamplePath, Source,
    percent_encoded,
};

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
        json!(["DELETE", "PATCH", "POST", "PUT"]),
        json!(["DELETE", "PATCH", "POST", "PUT"]),
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

/// Small changes of a template: the text in it, and its replacement.
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

/// Some tables in a row, most of them the same except for the template or the mode of one route, or
/// for one route that is gone.
fn tables(count: usize) -> impl Strategy<Value = Vec<RouteTable>> {
    let mode = prop::sample::select(vec!["enforce", "observe", "observe", "bypass"]);
    let edit = prop::sample::select(EDITS.to_vec());
    let edit = (any::<prop::sample::Index>(), edit, mode, 0..7);
    let step = (routes_and_unmatched(), edit);
    (
        routes_and_unmatched(),
        prop::collection::vec(step, count - 1),
    )
        .prop_map(|(first, steps)| {
            let mut all = vec![first];
            for (other, (at, (from, to), mode, choice)) in steps {
                let mut new = all[all.len() - 1].clone();
                let at = at.index(new.0.len().max(1));
                match (choice, new.0.get_mut(at)) {
                    (0, _) => new = other,
                    (1, _) | (_, None) => {}
                    (2, _) => drop(new.0.remove(at)),
                    (3 | 4, Some(route)) => route["mode"] = json!(mode),
                    (_, Some(route)) => {
                        let text = |name: &str| route[name].as_str().expect("text").to_owned();
                        let pattern = Pattern::parse(&text("path")).expect("a good pattern");
                        let template = text("resource").replacen(from, to, 1);
                        if KeyTemplate::parse(&template, &pattern).is_ok() {
                            route["resource"] = json!(template);
                        }
                    }
                }
                all.push(new);
            }
            all.into_iter().map(distinct).collect()
        })
}

/// Two routes of one shape are no table.
fn distinct((mut routes, unmatched): (Vec<Value>, &str)) -> RouteTable {
    let patterns = routes.iter().map(|route| {
        let path = route["path"].as_str().expect("text");
        Pattern::parse(path).expect("a good pattern")
    });
    let patterns: Vec<Pattern> = patterns.collect();
    for conflict in Router::new(&patterns).1.iter().rev() {
        routes.remove(conflict.second);
    }
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

/// The key of a request.
fn rendered(
    table: &RouteTable,
    path: &CheckedPath,
    known: impl Fn(&Source) -> Option<String>,
) -> Option<ResourceKey> {
    let (router, _) = table.router();
    let key = table.routes[router.find(path)?].key.as_ref()?;
    let mut value = |source: &Source| Ok(known(source));
    key.render(path, &mut value).ok()
}

/// Names two routes.
type Paths = [Option<String>; 2];

fn paths(pair: Pair<'_>) -> Paths {
    pair.map(|rule| Some(rule?.path.to_string()))
}

fn found_by_search(
    comparison: &Comparison,
    tables: [&RouteTable; 2],
) -> BTreeSet<(Paths, TableChange)> {
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
            let path = CheckedPath::parse(&raw_path).expect("a good path");
            let sample = SamplePath {
                raw: raw_path.clone(),
                literals: path
                    .segments_from(0)
                    .map(|text| Some(text.to_owned()))
                    .collect(),
                path,
            };
            let known = |source: &Source| match source {
                Source::Host => Some(host.to_owned()),
                _ => Some((*value).to_owned()),
            };
            let rendered = [0, 1].map(|at| rendered(tables[at], &sample.path, known));
            let mut sides = comparison.sides(sample);
            // The keys themselves, whose equality is what counts.
            sides.keys = rendered.map(|key| {
                Some(KeyShape {
                    keys: (key?.as_str().to_owned(), None),
                    narrow: BTreeSet::new(),
                })
            });
            for asking in Asking::ALL {
                let changes = sides.changes(asking);
                found.extend(
                    changes
                        .into_iter()
                        .map(|change| (paths(sides.pair), change)),
                );
            }
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn what_a_search_of_all_paths_finds_is_told_and_else_only_doubtful_keys(
        tables in tables(2)
    ) {
        let [old, new] = [&tables[0], &tables[1]].map(Clone::clone);
        let comparison = Comparison::new([&old, &new]);
        let told: BTreeSet<(Paths, TableChange)> = comparison
            .pairs()
            .flat_map(|pair| {
                let found = comparison.findings(pair).into_iter();
                found.map(move |one| (paths(pair), one.change))
            })
            .collect();
        let found = found_by_search(&comparison, [&old, &new]);
        let both = || format!("{} -> {}", old.to_document(), new.to_document());
        let missed: Vec<_> = found.difference(&told).collect();
        prop_assert!(missed.is_empty(), "{missed:?} {}", both());
        // Two templates may make the same keys in two ways.
        let doubtful = |change: TableChange| matches!(change, TableChange::Key | TableChange::Refused);
        let wrong: Vec<_> = told.difference(&found).filter(|(_, change)| !doubtful(*change)).collect();
        prop_assert!(wrong.is_empty(), "{wrong:?} {}", both());
        let kinds: BTreeSet<TableChange> = old.changes_to(&new).iter().map(|one| one.change).collect();
        let expected: BTreeSet<TableChange> = told.iter().map(|(_, change)| *change).collect();
        prop_assert_eq!(kinds, expected);
        let same = Comparison::new([&old, &old]);
        prop_assert!(same.pairs().all(|pair| same.findings(pair).is_empty()));
    }

    /// However many changes lead there: what was fenced passes no unfenced route but an observing
    /// one, and what is fenced again has the key that it had.
    #[test]
    fn a_series_of_changes_gives_no_request_another_key(tables in tables(6)) {
        let paths: Vec<CheckedPath> = all_paths().iter().map(|path| {
            CheckedPath::parse(path).expect("a good path")
        }).collect();
        let known = |_: &Source| Some("v".to_owned());
        let mut had: BTreeMap<usize, ResourceKey> = BTreeMap::new();
        let mut now = table("refuse", &[]);
        for table in &tables {
            let Some(next) = harmless(&now, table) else { continue };
            let (router, _) = table.router();
            for (at, path) in paths.iter().enumerate() {
                let Some(rule) = router.find(path).map(|found| &table.routes[found]) else { continue };
                let series = || format!("{} -> {}", now.to_document(), next.to_document());
                match (rule.mode, rendered(table, path, known)) {
                    (Mode::Bypass, _) => prop_assert!(!had.contains_key(&at), "{at} {}", series()),
                    (Mode::Enforce, Some(key)) => {
                        let old = had.entry(at).or_insert_with(|| key.clone());
                        prop_assert_eq!(&*old, &key, "{}", series());
                    }
                    _ => {}
                }
            }
            prop_assert_eq!(RouteTable::from_document(&next.to_document()), Ok(next.clone()));
            now = next;
        }
    }
}
