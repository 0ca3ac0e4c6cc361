//! The book of the documents: its contents name every page once, and in the built book each link
//! leads to a file and an anchor that are there.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use regex::Regex;

use super::documents::{documents, links, read, walk};
use super::image::project;
use crate::support::or_return;
use crate::support::python::python;

/// `docs/../config` is `config`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => assert!(plain.pop(), "{} leads outside", path.display()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

#[test]
fn the_contents_name_every_page_once() {
    let contents = links(&read("docs/SUMMARY.md")).into_iter();
    let named = contents.map(|link| plain(&Path::new("docs").join(link)));
    let mut named: Vec<PathBuf> = named.collect();
    named.sort();
    let pages = documents().into_iter().chain(["CHANGELOG.md".to_owned()]);
    let mut pages: Vec<PathBuf> = pages.map(PathBuf::from).collect();
    pages.retain(|page| page != Path::new("docs/SUMMARY.md"));
    pages.sort();
    assert_eq!(named, pages);
}

/// The links of the built pages that do not lead to what is there.
fn broken(book: &Path) -> Vec<String> {
    let mut files = walk(book, "html");
    // The page for a server's errors: its links count from the top of a site.
    files.retain(|file| !file.ends_with("404.html"));
    assert!(files.len() > 30, "{} pages", files.len());
    let attribute = Regex::new(r#" (?:href|src)="([^"]*)""#).expect("a pattern");
    let text = |file: &PathBuf| std::fs::read_to_string(file).expect("a page");
    let texts: Vec<String> = files.iter().map(text).collect();
    let pages: BTreeMap<PathBuf, String> = files.into_iter().zip(texts).collect();
    let mut broken = Vec::new();
    for (file, page) in &pages {
        let links = attribute
            .captures_iter(page)
            .map(|found| found[1].to_owned());
        for link in links.filter(|link| !link.contains("://")) {
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match path {
                "" => file.clone(),
                path => plain(&file.parent().expect("a folder").join(path)),
            };
            let id = format!(" id=\"{anchor}\"");
            let has_anchor = || pages.get(&target).is_some_and(|page| page.contains(&id));
            if !target.exists() || !(anchor.is_empty() || has_anchor()) {
                broken.push(format!("{}: {link}", file.display()));
            }
        }
    }
    broken
}

#[test]
fn every_link_of_the_built_book_leads_somewhere() {
    let python = or_return!(python());
    let path = std::env::var("PATH").expect("a PATH");
    let tools = python.parent().expect("a directory").display();
    let dir = tempfile::tempdir().expect("a directory");
    let build = Command::new(project().join(".ci/book"))
        .arg(dir.path())
        .env("PATH", format!("{tools}:{path}"))
        .output();
    let build = build.expect("the script can be started");
    let said = String::from_utf8_lossy(&build.stderr);
    assert!(build.status.success() && !said.contains("WARN"), "{said}");
    assert_eq!(broken(dir.path()), Vec::<String>::new());

    let text = std::fs::read_to_string(dir.path().join("index.html")).expect("the first page");
    assert!(text.contains("searcher-"), "it has a search");
}
