//! Imports go one way.

use std::collections::BTreeSet;

use super::house;

/// The modules of the crate, lowest first. Modules of one line may use each other,
/// but not both ways; `proxy` and `admin` may not at all.
const LAYERS: &[&[&str]] = &[
    &[
        "routing",
        "http1",
        "throttle",
        "printable",
        "deadline_timer",
        "json_values",
        "locked",
        "worker",
        "socket",
        "timed_socket",
        "boot_clock",
        "signals",
        "build_info",
    ],
    &["config"],
    &["store", "metrics", "rejections", "progress"],
    &["traces"],
    &["fencing", "body"],
    &["upstream", "active_requests"],
    &["proxy", "admin"],
    &["server", "app"],
    &["attach", "demo", "init"],
    &["cli"],
    &["main", "lib"],
];

fn layer(module: &str) -> usize {
    LAYERS
        .iter()
        .position(|layer| layer.contains(&module))
        .unwrap_or_else(|| {
            panic!("`{module}` has no place among the layers of tests/suite/packaging/layers.rs")
        })
}

/// Every source file with the module of the first level that it belongs to, and its code without
/// tests and comments.
fn sources() -> Vec<(String, String, String)> {
    let source = |(path, text): (String, String)| {
        let module = path.split('/').next().unwrap_or_default();
        let module = module.trim_end_matches(".rs").to_owned();
        let code = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        (module, path, code.collect::<Vec<_>>().join("\n"))
    };
    house::sources().into_iter().map(source).collect()
}

/// The modules of the first level that a file names after `crate::`.
fn imports(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, root) in code.match_indices("crate::") {
        let rest = &code[at + root.len()..];
        let names: Vec<&str> = match rest.strip_prefix('{') {
            Some(list) => list
                .split('}')
                .next()
                .unwrap_or_default()
                .split(',')
                .collect(),
            None => vec![rest],
        };
        for name in names.into_iter().map(str::trim_start) {
            let end = name
                .find(|c: char| !c.is_alphanumeric() && c != '_')
                .unwrap_or(name.len());
            // Items that the crate's root re-exports belong to no layer.
            if name.starts_with(char::is_lowercase) {
                found.insert(name[..end].to_owned());
            }
        }
    }
    found
}

#[test]
fn imports_go_one_way() {
    let mut edges = BTreeSet::new();
    for (module, path, code) in sources() {
        for import in imports(&code) {
            if import == module || module == "lib" {
                continue;
            }
            let (from, to) = (layer(&module), layer(&import));
            assert!(
                to <= from,
                "{path}: `{module}` uses `{import}`, which lies above it"
            );
            assert!(
                to < from || !LAYERS[from].contains(&"proxy"),
                "{path}: `{module}` uses `{import}`; those two never meet"
            );
            edges.insert((module.clone(), import));
        }
    }
    for (module, import) in &edges {
        assert!(
            !edges.contains(&(import.clone(), module.clone())),
            "`{module}` and `{import}` use each other"
        );
    }
    assert!(
        edges.contains(&("proxy".into(), "routing".into())),
        "the imports were found: {edges:?}"
    );
}

#[test]
fn the_core_names_no_http_and_routing_nothing_but_std() {
    for (module, path, code) in sources() {
        let uses = || {
            code.lines()
                .filter(|line| line.trim_start().starts_with("use ") || line.contains("::"))
        };
        if module == "routing" {
            for line in code
                .lines()
                .filter_map(|line| line.trim_start().strip_prefix("use "))
            {
                let root = line.split("::").next().unwrap_or_default();
                let own = ["std", "core", "alloc", "super", "self", "crate"].contains(&root)
                    || root.starts_with(char::is_uppercase);
                assert!(own, "{path}: use {line}");
            }
        }
        if ["store", "fencing", "routing"].contains(&&*module) {
            for line in uses() {
                for http in [
                    "http::",
                    "hyper::",
                    "hyper_util::",
                    "axum::",
                    "tower::",
                    "reqwest::",
                ] {
                    let named = line.match_indices(http).any(|(at, _)| {
                        !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_')
                    });
                    assert!(!named, "{path}: {line}");
                }
            }
        }
    }
}

#[test]
fn files_open_with_what_they_are_and_why() {
    for (path, text) in house::files("src") {
        assert!(text.starts_with("//!"), "{path}");
    }
}
