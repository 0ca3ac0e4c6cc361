//! The configurations and commands in the documents, as they stand there.

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

/// A block of a page: what stands behind its three backticks, its first line's number, its lines.
pub struct Block {
    pub info: String,
    pub line: usize,
    pub lines: Vec<String>,
}

/// The blocks of a text, without the indentation of the list that they are in.
pub fn blocks(text: &str) -> Vec<Block> {
    let (mut blocks, mut open) = (Vec::new(), None::<(usize, Block)>);
    for (number, line) in text.lines().enumerate() {
        let indent = line.len() - line.trim_start().len();
        match (&mut open, line.trim_start().strip_prefix("```")) {
            (None, Some(info)) => {
                let (info, line) = (info.to_owned(), number + 1);
                let lines = Vec::new();
                open = Some((indent, Block { info, line, lines }));
            }
            (Some(_), Some("")) => blocks.extend(open.take().map(|(_, block)| block)),
            (Some((indent, block)), _) => {
                let from = (*indent).min(line.len());
                block.lines.push(line[from..].to_owned());
            }
            (None, None) => {}
        }
    }
    blocks
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
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let text = std::fs::read_to_string(path).expect("the page is there");
    let all = commands(&text).into_iter();
    let mut fit = all.filter(|shown| shown.command.starts_with(begins));
    let found = fit.next().unwrap_or_else(|| panic!("{page}: no {begins}"));
    assert!(fit.next().is_none(), "{page}: {begins} twice");
    found
}
