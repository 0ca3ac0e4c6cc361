//! The documents: their links lead somewhere, the tests that they name exist, and README is a short
//! front page with the figures of the newest measurement.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const BEGIN: &str = "<!-- benches:begin -->";
const END: &str = "<!-- benches:end -->";

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn read(path: &str) -> String {
    std::fs::read_to_string(top().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The files with this ending below a folder.
pub fn walk(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let (mut found, mut open) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(dir).expect("a folder") {
            let path = entry.expect("it can be listed").path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|own| own == ending) {
                found.push(path);
            }
        }
    }
    found
}

/// The documents for readers, relative to the top.
pub fn documents() -> Vec<String> {
    let folders = ["docs", "config", "charts"].into_iter();
    let pages = folders.flat_map(|folder| walk(&top().join(folder), "md"));
    let relative = |path: PathBuf| {
        let path = path.strip_prefix(top()).expect("below it");
        path.display().to_string()
    };
    let pages = pages.map(relative).chain(["README.md".to_owned()]);
    pages.collect::<BTreeSet<_>>().into_iter().collect()
}

/// The text without its blocks of code.
fn prose(text: &str) -> String {
    let parts = text.split("\n```").step_by(2);
    parts.collect::<Vec<_>>().join("\n")
}

/// The headings as readers see them.
pub fn headings(text: &str) -> BTreeSet<String> {
    let text = prose(text);
    let lines = text.lines().filter(|line| line.starts_with('#'));
    lines
        .map(|line| line.trim_start_matches(['#', ' ']).replace('`', ""))
        .collect()
}

/// The name that GitHub and others give a heading's anchor.
pub fn anchor(heading: &str) -> String {
    let kept = heading
        .chars()
        .filter(|c| c.is_alphanumeric() || *c == '-' || *c == ' ');
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// The targets of the links that stay in the repository.
pub fn links(text: &str) -> Vec<String> {
    let text = prose(text).replace('\n', " ");
    let targets = text
        .split("](")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once(')')?.0.to_owned()));
    targets.filter(|target| !target.contains("://")).collect()
}

#[test]
fn links_lead_somewhere() {
    let mut wrong = Vec::new();
    for document in documents() {
        let folder = PathBuf::from(&document);
        let folder = folder.parent().expect("a folder");
        for link in links(&read(&document)) {
            let (path, at) = link.split_once('#').unwrap_or((&link, ""));
            let target = match path {
                "" => top().join(&document),
                path => top().join(folder).join(path),
            };
            let known = target.exists()
                && (at.is_empty() || {
                    let text = std::fs::read_to_string(&target).unwrap_or_default();
                    headings(&text).iter().any(|heading| anchor(heading) == at)
                });
            if !known {
                wrong.push(format!("{document}: {link}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn pictures_are_small_and_shown() {
    let pages = documents().into_iter();
    let links: Vec<String> = pages.flat_map(|page| links(&read(&page))).collect();
    let mut bytes = 0;
    for picture in std::fs::read_dir(top().join("docs/pictures")).expect("the folder") {
        let picture = picture.expect("an entry");
        let path = format!("pictures/{}", picture.file_name().display());
        let shown = links.iter().any(|link| link.ends_with(&path));
        assert!(shown, "no page shows {path}");
        bytes += picture.metadata().expect("its size").len();
    }
    assert!(bytes <= 400_000, "{bytes}");
}

/// `admission::` in a document is a module of the suite, or one of the program's unit tests.
#[test]
fn tests_that_are_named_exist() {
    let mut wrong = Vec::new();
    for document in documents() {
        for code in prose(&read(&document)).split('`').skip(1).step_by(2) {
            let Some((module, name)) = code.split_once("::") else {
                continue;
            };
            // A test's name, and not that of a type in a crate.
            let is_test =
                |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_:…".contains(c);
            if module.is_empty() || !module.chars().chain(name.chars()).all(is_test) {
                continue;
            }
            let groups = std::fs::read_dir(top().join("tests/suite")).expect("a directory");
            let groups = groups.map(|group| group.expect("it can be listed").path());
            let mut folders = groups.chain([top().join("tests/suite"), top().join("src")]);
            let is_there = |folder: PathBuf| {
                let at = folder.join(module);
                at.is_dir() || at.with_extension("rs").exists()
            };
            if !folders.any(is_there) {
                wrong.push(format!("{document}: {code}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Backticked words of a cell of a table.
fn code(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

#[test]
fn the_walk_through_the_source_is_true() {
    let page = read("docs/internals/architecture.md");
    let steps = page.lines().filter(|line| line.contains("| `src/"));
    let mut walked = 0;
    for step in steps {
        let cells: Vec<&str> = step.split('|').collect();
        for file in code(cells[2]) {
            let source = read(file);
            for item in code(cells[3]) {
                let goes_on = |c: char| c.is_alphanumeric() || c == '_';
                let defines = |line: &str| {
                    let after = line.split_once(item).map(|(_, after)| after);
                    after.is_some_and(|after| !after.starts_with(goes_on))
                };
                assert!(source.lines().any(defines), "{file} has no `{item}`");
            }
        }
        walked += 1;
    }
    assert!(walked > 10, "the table was not found");
}

#[test]
fn readme_is_a_front_page() {
    let lines = read("README.md").lines().count();
    assert!(lines <= 220, "{lines} lines; the rest belongs into docs/");
}

/// The text between the two marks.
fn quoted(path: &str) -> String {
    let text = read(path);
    let (_, after) = text.split_once(BEGIN).expect(BEGIN);
    let (inside, after) = after.split_once(END).expect(END);
    assert!(!after.contains(BEGIN), "{path} has two {BEGIN}");
    inside.trim().to_owned()
}

#[test]
fn readme_quotes_the_newest_figures() {
    let (short, here) = (quoted("benches/RESULTS.md"), quoted("README.md"));
    assert!(!short.is_empty());
    assert_eq!(here, short, "`benches/run.sh --readme` writes both");
}

/// docs/problems.md explains each type of the data port, and the program has no other one.
#[test]
fn each_problem_type_is_explained() {
    let page = read("docs/problems.md");
    let (index, rest) = page.split_once("\n## ").expect("a heading");
    let mut types = BTreeSet::new();
    for row in index.lines().filter_map(|row| row.strip_prefix("| [`")) {
        let (word, _) = row.split_once('`').expect("a word");
        let linked = format!("{word}`](#{word})");
        assert!(row.starts_with(&linked), "{word} is not linked");
        let heading = format!("`{word}`\n");
        let mut sections = rest.split("\n## ");
        let section = sections.find(|section| section.starts_with(&heading));
        let section = section.unwrap_or_else(|| panic!("{word} has no section"));
        for part in ["**Means.**", "**Client.**", "**Operator.**"] {
            assert!(section.contains(part), "{word} has no {part}");
        }
        types.insert(word.to_owned());
    }
    let refusals = fencepost::metrics::Outcome::ALL
        .iter()
        .map(|outcome| outcome.as_str());
    let others = ["advanced", "current", "unfenced", "claimed", "replayed"];
    let refusals = refusals.filter(|word| !word.starts_with("observed-") && !others.contains(word));
    assert_eq!(refusals.map(str::to_owned).collect::<BTreeSet<_>>(), types);
}
