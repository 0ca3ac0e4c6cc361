//! Imports go one way.

use std::collections::BTreeSet;

use regex::Regex;

use super::house;

/// The modules of the crate, lowest first. Modules of one line may use each other,
/// but not both ways; `proxy` and `admin` may not at all.
const LAYERS: [&str; 11] = [
    "routing http1 throttle printable deadline_timer json_values locked worker socket timed_socket \
        boot_clock signals build_info",
    "config",
    "store metrics rejections progress",
    "traces",
    "fencing body",
    "upstream active_requests",
    "proxy admin",
    "server app",
    "attach demo init",
    "cli",
    "main lib",
];

fn layer(module: &str) -> usize {
    let has_it = |layer: &&str| layer.split(' ').any(|one| one == module);
    let found = LAYERS.iter().position(has_it);
    found.unwrap_or_else(|| panic!("`{module}` has no place among the layers of {}", file!()))
}

/// The module of the first level that a file belongs to.
fn module(path: &str) -> &str {
    let first = path.split('/').next().unwrap_or_default();
    first.trim_end_matches(".rs")
}

#[test]
fn imports_go_one_way() {
    let imports = house::imports();
    let modules = imports.iter().map(|(path, to)| (module(path), module(to)));
    let edges: BTreeSet<_> = modules
        .filter(|(from, to)| from != to && *from != "lib" && *to != "lib")
        .collect();
    for (from, to) in &edges {
        let (above, below) = (layer(from), layer(to));
        assert!(below <= above, "`{from}` uses `{to}`, which lies above it");
        let meet = below == above && above == layer("proxy");
        assert!(!meet, "`{from}` uses `{to}`; those two never meet");
        let back = edges.contains(&(*to, *from));
        assert!(!back, "`{from}` and `{to}` use each other");
    }
}

#[test]
fn the_core_names_no_http_and_routing_nothing_but_std() {
    let http = Regex::new(r"\b(http|hyper|hyper_util|axum|tower|reqwest)::").expect("a pattern");
    for (path, text) in house::sources() {
        let module = module(&path);
        let code = text.lines().map(str::trim_start);
        let code = code.filter(|line| !line.starts_with("//"));
        if module == "routing" {
            for line in code.clone().filter_map(|line| line.strip_prefix("use ")) {
                let root = line.split("::").next().unwrap_or_default();
                let own = ["std", "core", "alloc", "super", "self", "crate"].contains(&root)
                    || root.starts_with(char::is_uppercase);
                assert!(own, "{path}: use {line}");
            }
        }
        if ["store", "fencing", "routing"].contains(&module) {
            for line in code {
                assert!(!http.is_match(line), "{path}: {line}");
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
