//! The configurations in the documents, as they stand there.

use std::path::Path;

/// The YAML behind `<!-- config: NAME -->` in a page of `docs`. Each bare `off` gets quotes: the
/// parser of the tests' own would read it as `false`.
pub fn config(page: &str, name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("docs")
        .join(page);
    let text = std::fs::read_to_string(path).expect("the page is there");
    let mark = format!("<!-- config: {name} -->\n```yaml\n");
    let (_, block) = text
        .split_once(&mark)
        .expect("the page has the configuration");
    let (block, _) = block.split_once("\n```").expect("its end");
    let lines = block.lines().map(|line| match line.split_once(": off") {
        Some((name, rest)) => format!("{name}: 'off'{rest}\n"),
        None => format!("{line}\n"),
    });
    lines.collect()
}
