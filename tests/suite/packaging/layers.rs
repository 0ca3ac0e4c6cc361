//! Imports go one way.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

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
    &["store", "metrics", "rejections", "log_filter"],
    &["traces"],
    &["fencing", "body"],
    &["upstream"],
    &["proxy", "admin"],
    &["server", "app"],
    &["attach", "demo"],
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

/// Every source file, with the module of the first level that it belongs to.
fn sources() -> Vec<(String, PathBuf, String)> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut open = vec![src.clone()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(dir).expect("a directory").flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let inside = path
                    .strip_prefix(&src)
                    .expect("below src")
                    .with_extension("");
                let first = inside.components().next().expect("a name").as_os_str();
                let module = first.to_string_lossy().into_owned();
                let text = std::fs::read_to_string(&path).expect("a source file");
                found.push((module, inside.with_extension("rs"), text));
            }
        }
    }
    assert!(found.len() > 20, "these are not all sources: {found:?}");
    found
}

/// The code of a file without its tests and comments.
fn code(path: &Path, text: &str) -> String {
    if path.components().any(|part| part.as_os_str() == "tests") || path.ends_with("tests.rs") {
        return String::new();
    }
    text.lines()
        .take_while(|line| !line.starts_with("#[cfg(test)]"))
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect::<Vec<_>>()
        .join("\n")
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
    for (module, path, text) in sources() {
        for import in imports(&code(&path, &text)) {
            if import == module || module == "lib" {
                continue;
            }
            let (from, to) = (layer(&module), layer(&import));
            assert!(
                to <= from,
                "{}: `{module}` uses `{import}`, which lies above it",
                path.display()
            );
            assert!(
                to < from || !LAYERS[from].contains(&"proxy"),
                "{}: `{module}` uses `{import}`; those two never meet",
                path.display(),
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
    for (module, path, text) in sources() {
        let code = code(&path, &text);
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
                assert!(own, "{}: use {line}", path.display());
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
                    assert!(!named, "{}: {line}", path.display());
                }
            }
        }
    }
}

#[test]
fn files_open_with_what_they_are_and_why() {
    for (_, path, text) in sources() {
        assert!(text.starts_with("//!"), "{}", path.display());
    }
}
