//! The figures that README quotes are those of the newest measurement: `benches/run.sh --readme` puts
//! them there.

use std::path::Path;

const BEGIN: &str = "<!-- benches:begin -->";
const END: &str = "<!-- benches:end -->";

/// What stands between the two lines, each of which is there once.
fn quoted(path: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{path}: {error}"));
    let parts: Vec<&str> = text.split(BEGIN).collect();
    let [_, after] = parts[..] else {
        panic!("{path} has {} lines {BEGIN}", parts.len() - 1);
    };
    let parts: Vec<&str> = after.split(END).collect();
    let [inside, _] = parts[..] else {
        panic!("{path} has {} lines {END}", parts.len() - 1);
    };
    inside.trim().to_owned()
}

#[test]
fn readme_quotes_the_newest_figures() {
    let short = quoted("benches/RESULTS.md");
    assert!(!short.is_empty());
    assert_eq!(
        quoted("README.md"),
        short,
        "`benches/run.sh --readme` writes both"
    );
}
