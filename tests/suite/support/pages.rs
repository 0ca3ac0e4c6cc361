//! The configurations and commands in the documents, as they stand there.

use std::path::Path;
use std::sync::LazyLock;

use regex::{Captures, Regex};

/// The YAML behind `<!-- config: NAME -->` in a page of `docs`. Each bare `off` gets quotes: the
/// parser of the tests' own would read it as `false`.
pub fn config(page: &str, name: &str) -> String {
    let text = text_of(&format!("docs/{page}"));
    let mark = format!("<!-- config: {name} -->\n```yaml\n");
    let (_, block) = text.split_once(&mark).expect("it has the configuration");
    let (block, _) = block.split_once("\n```").expect("its end");
    let lines = block.lines().map(|line| match line.split_once(": off") {
        Some((name, rest)) => format!("{name}: 'off'{rest}\n"),
        None => format!("{line}\n"),
    });
    lines.collect()
}

fn text_of(page: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    std::fs::read_to_string(path).expect("the page is there")
}

/// A block of a page: what stands behind its three backticks, its first line's number, its lines.
pub struct Block {
    pub info: String,
    pub line: usize,
    pub lines: Vec<String>,
}

/// The blocks of a text, without the indentation of the list that they are in.
pub fn blocks(text: &str) -> Vec<Block> {
    static BLOCK: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"(?ms)^( *)```([^\n]*)\n(.*?)^ *```$").expect("a pattern"));
    let block = |found: Captures<'_>| {
        let from = found[1].len();
        let lines = found[3].lines().map(|line| line.get(from..));
        Block {
            info: found[2].to_owned(),
            line: text[..found.get_match().start()].lines().count() + 1,
            lines: lines
                .map(|line| line.unwrap_or_default().to_owned())
                .collect(),
        }
    };
    BLOCK.captures_iter(text).map(block).collect()
}

/// A command of a page, and the lines of its output that the page shows.
#[derive(Clone)]
pub struct Shown {
    pub command: String,
    pub output: Vec<String>,
}

/// The commands in the `console` blocks of a text.
pub fn commands(text: &str) -> Vec<Shown> {
    let mut commands: Vec<Shown> = Vec::new();
    let blocks = blocks(text).into_iter();
    for block in blocks.filter(|block| block.info.starts_with("console")) {
        for line in block.lines {
            let last = commands.last_mut();
            match (line.strip_prefix("$ "), last) {
                (Some(command), _) => commands.push(Shown {
                    command: command.to_owned(),
                    output: Vec::new(),
                }),
                (None, Some(last)) if last.command.ends_with('\\') => {
                    last.command.push('\n');
                    last.command.push_str(&line);
                }
                (None, last) => last.expect("a command").output.push(line),
            }
        }
    }
    commands
}

/// The one command of a page (relative to the top) that begins so.
pub fn command(page: &str, begins: &str) -> Shown {
    let all = commands(&text_of(page)).into_iter();
    let mut fit = all.filter(|shown| shown.command.starts_with(begins));
    let found = fit.next().unwrap_or_else(|| panic!("{page}: no {begins}"));
    assert!(fit.next().is_none(), "{page}: {begins} twice");
    found
}
