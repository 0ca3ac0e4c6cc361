//! The pictures in the documents: small, shown somewhere, and without anything that a viewer would
//! run or load. `tests/tools/pictures.py` makes them.

use std::fs::DirEntry;

use super::documents::{documents, links, read};
use super::image::project;

const MAX_BYTES: u64 = 400_000;

fn pictures() -> Vec<DirEntry> {
    let folder = std::fs::read_dir(project().join("docs/pictures")).expect("the folder");
    folder.map(|entry| entry.expect("an entry")).collect()
}

#[test]
fn they_are_small_and_shown() {
    let pictures = pictures();
    let size = |entry: &DirEntry| entry.metadata().expect("its size").len();
    let total: u64 = pictures.iter().map(size).sum();
    assert!(total <= MAX_BYTES, "{total} bytes");
    let links: Vec<String> = documents()
        .iter()
        .flat_map(|page| links(&read(page)))
        .collect();
    for picture in &pictures {
        let path = format!("pictures/{}", picture.file_name().display());
        assert!(
            links.iter().any(|link| link.ends_with(&path)),
            "no page shows {path}"
        );
    }
    for made in [
        "admin.webp",
        "architecture.svg",
        "dashboard.svg",
        "demo.svg",
    ] {
        assert!(
            pictures.iter().any(|picture| picture.file_name() == made),
            "{made}"
        );
    }
}

/// What a viewer of this SVG would run, or load from elsewhere.
fn active(svg: &str) -> Vec<String> {
    // DTDs are refused, and so are the entities that only they declare.
    let document = roxmltree::Document::parse(svg).expect("XML");
    let mut found = Vec::new();
    for node in document.descendants().filter(roxmltree::Node::is_element) {
        let name = node.tag_name().name();
        if ["script", "foreignObject", "image", "iframe"].contains(&name) {
            found.push(format!("<{name}>"));
        }
        let css = node.text().filter(|_| name == "style").unwrap_or_default();
        let values = node.attributes().map(|attribute| {
            let (name, value) = (attribute.name(), attribute.value());
            if name.starts_with("on") || (name == "href" && !value.starts_with('#')) {
                found.push(format!("{name}={value}"));
            }
            value
        });
        for style in values.collect::<Vec<_>>().into_iter().chain([css]) {
            let outside = style.split("url(").skip(1).any(|url| !url.starts_with('#'));
            if outside || style.contains("@import") {
                found.push(style.to_owned());
            }
        }
    }
    found
}

#[test]
fn an_svg_runs_and_loads_nothing() {
    let mut looked_at = 0;
    for picture in pictures() {
        if picture
            .path()
            .extension()
            .is_some_and(|ending| ending == "svg")
        {
            let text = std::fs::read_to_string(picture.path()).expect("text");
            assert_eq!(
                active(&text),
                Vec::<String>::new(),
                "{:?}",
                picture.file_name()
            );
            looked_at += 1;
        }
    }
    assert_eq!(looked_at, 3);
    for content in [
        "<script/>",
        "<a href='//elsewhere.example'/>",
        "<g onload='x()'/>",
        "<style>@import 'x.css'</style>",
        "<style>g { fill: url(http://elsewhere.example) }</style>",
        "<g style='fill: url(\"http://elsewhere.example\")'/>",
    ] {
        let svg = format!("<svg xmlns='http://www.w3.org/2000/svg'>{content}</svg>");
        assert_eq!(active(&svg).len(), 1, "{content}");
    }
}
