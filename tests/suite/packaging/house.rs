//! The house rules that a reader relies on, where Clippy has none: files stay short, and no two
//! files import each other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use regex::Regex;

use super::documents::walk;

/// The most lines of code of a file; comments, blank lines and tests are not counted.
const FILE: usize = 400;
/// The most lines of a file of the suite.
const TEST_FILE: usize = 500;

/// The Rust files below a folder: their paths there, and their text.
pub fn files(folder: &str) -> BTreeMap<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let file = |path: PathBuf| {
        let inside = path.strip_prefix(&root).expect("below it");
        let inside = inside.to_str().expect("UTF-8").to_owned();
        let text = std::fs::read_to_string(&path).expect("a source file");
        (inside, text)
    };
    let found: BTreeMap<_, _> = walk(&root, "rs").into_iter().map(file).collect();
    assert!(found.len() > 100, "these are not all files of {folder}");
    found
}

/// The source files without their tests.
pub fn sources() -> BTreeMap<String, String> {
    let mut found = files("src");
    found.retain(|path, _| !(path.ends_with("tests.rs") || path.contains("/tests/")));
    for text in found.values_mut() {
        let code = text.find("\n#[cfg(test)]\nmod tests {");
        text.truncate(code.unwrap_or(text.len()));
    }
    found
}

#[test]
fn files_are_short() {
    for (path, text) in sources() {
        let lines = text.lines().map(str::trim_start);
        let code = lines.filter(|line| !line.is_empty() && !line.starts_with("//"));
        let count = code.count();
        assert!(count <= FILE, "src/{path}: {count} lines of code");
    }
}

#[test]
fn files_of_the_suite_are_short() {
    for (path, text) in files("tests/suite") {
        let lines = text.lines().count();
        assert!(lines <= TEST_FILE, "tests/suite/{path}: {lines} lines");
    }
}

/// A file that no `mod` names is not compiled, and its tests never run.
#[test]
fn every_file_is_compiled() {
    for folder in ["src", "tests/suite"] {
        let files = files(folder);
        let below = |path: &&String| !["lib.rs", "main.rs"].contains(&path.as_str());
        for path in files.keys().filter(below) {
            let module = path.trim_end_matches(".rs").trim_end_matches("/mod");
            let parents = match module.rsplit_once('/') {
                None => ["lib.rs".to_owned(), "main.rs".to_owned()],
                Some((folder, _)) => [format!("{folder}/mod.rs"), format!("{folder}.rs")],
            };
            let name = module.rsplit('/').next().unwrap_or_default();
            let line = format!(r"(?m)^(pub(\([^)]*\))? )?mod {name};$");
            let line = Regex::new(&line).expect("a pattern");
            let mut texts = parents.iter().filter_map(|parent| files.get(parent));
            let named = texts.any(|text| line.is_match(text));
            assert!(named, "no `mod {name};` in {parents:?}");
        }
    }
}

type Module = Vec<String>;

/// The paths that a `use` tree names.
fn paths(tree: &str) -> Vec<Module> {
    static INNERMOST: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"([\w:]*)\{([^{}]*)\}").expect("a regex"));
    let mut tree = tree.to_owned();
    while let Some(found) = INNERMOST.captures(&tree) {
        let items = found[2].split(',').map(str::trim);
        let items = items.filter(|item| !item.is_empty());
        let paths: Vec<_> = items.map(|item| format!("{}{item}", &found[1])).collect();
        tree = tree.replace(&found[0], &paths.join(","));
    }
    let plain = |path: &str| path.split(" as ").next().unwrap_or_default().to_owned();
    let name = |name: &str| name.trim().to_owned();
    let names = |path: String| path.split("::").map(name).collect();
    tree.split(',').map(plain).map(names).collect()
}

struct House {
    /// The file of each module.
    files: BTreeMap<Module, String>,
    /// Where an item stands that a module re-exports.
    exports: BTreeMap<(Module, String), (Module, Module)>,
}

impl House {
    /// The module that a path leads to, and what is left of the path.
    fn find(&self, here: &Module, path: &Module) -> Option<(Module, Module)> {
        let first = path.first()?.as_str();
        let mut base = here.clone();
        let mut at = 1;
        match first {
            "crate" => base.clear(),
            "self" => {}
            "super" => {
                at = path.iter().take_while(|name| *name == "super").count();
                base.truncate(here.len().checked_sub(at)?);
            }
            _ => {
                at = 0;
                base.push(first.to_owned());
                if !self.files.contains_key(&base) {
                    return None;
                }
                base.pop();
            }
        }
        while let Some(name) = path.get(at) {
            base.push(name.clone());
            if !self.files.contains_key(&base) {
                base.pop();
                break;
            }
            at += 1;
        }
        Some((base, path[at..].to_vec()))
    }

    fn resolve(&self, here: &Module, path: &Module) -> Option<Module> {
        let (mut module, mut rest) = self.find(here, path)?;
        for _ in 0..5 {
            let Some(name) = rest.first() else { break };
            let Some((next, left)) = self.exports.get(&(module.clone(), name.clone())) else {
                break;
            };
            (module, rest) = (next.clone(), left.clone());
        }
        Some(module)
    }
}

/// The imports of the source files, main.rs left out: which one imports which.
pub fn imports() -> BTreeSet<(String, String)> {
    let comment = Regex::new(r"(?m)//.*$").expect("a regex");
    let import = Regex::new(r"(?m)^ *(pub(?:\([^)]*\))? )?use ([^;]+);").expect("a regex");
    let inline = Regex::new(r"\b(?:crate|super|self)(?:::\w+)+").expect("a regex");
    let scope = Regex::new(r"pub\(in [^)]*\)").expect("a regex");
    let mut house = House {
        files: BTreeMap::new(),
        exports: BTreeMap::new(),
    };
    let mut texts = Vec::new();
    for (path, text) in sources() {
        let names = path.trim_end_matches(".rs").split('/').map(str::to_owned);
        let mut module: Module = names.collect();
        module.pop_if(|last| ["mod", "lib", "main"].contains(&last.as_str()));
        if path != "main.rs" {
            house.files.insert(module.clone(), path);
            let text = comment.replace_all(&text, "");
            texts.push((module, scope.replace_all(&text, "pub").into_owned()));
        }
    }
    let mut exports = BTreeMap::new();
    for (module, text) in &texts {
        let all = import.captures_iter(text);
        for found in all.filter(|found| found.get(1).is_some()) {
            for path in paths(&found[2]) {
                if let Some((to, rest)) = house.find(module, &path)
                    && let Some(name) = rest.last()
                {
                    exports.insert((module.clone(), name.clone()), (to, rest));
                }
            }
        }
    }
    house.exports = exports;
    let mut edges = BTreeSet::new();
    for (module, text) in &texts {
        let mut named = Vec::new();
        let all = import.captures_iter(text);
        for found in all.filter(|found| found.get(1).is_none()) {
            named.extend(paths(&found[2]));
        }
        let body = import.replace_all(text, "");
        for found in inline.find_iter(&body) {
            named.push(found.as_str().split("::").map(str::to_owned).collect());
        }
        for path in named {
            if let Some(to) = house.resolve(module, &path).filter(|to| to != module) {
                edges.insert((house.files[module].clone(), house.files[&to].clone()));
            }
        }
    }
    assert!(edges.len() > 500, "the imports were found: {}", edges.len());
    edges
}

#[test]
fn no_two_files_import_each_other() {
    let circles = circles(imports());
    assert!(circles.is_empty(), "these import each other: {circles:#?}");
}

/// The imports by which files import one another in a circle of any length. Imports of files that
/// import nothing of what is left, or that nothing left imports, are taken away until all that is
/// left is in a circle or between two.
fn circles(mut left: BTreeSet<(String, String)>) -> BTreeSet<(String, String)> {
    loop {
        let from: BTreeSet<_> = left.iter().map(|(from, _)| from.clone()).collect();
        let to: BTreeSet<_> = left.iter().map(|(_, to)| to.clone()).collect();
        let before = left.len();
        left.retain(|(a, b)| to.contains(a) && from.contains(b));
        if left.len() == before {
            return left;
        }
    }
}
