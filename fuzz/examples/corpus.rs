//! Unpacks the corpus of a target for a long run, and packs what the run has learned: see
//! `docs/internals/fuzzing.md`.

use std::path::Path;

use fencepost_fuzz::{TARGETS, corpus};

fn main() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let &[verb @ ("pack" | "unpack"), target, folder] = arguments.as_slice() else {
        return Err("expected: pack TARGET FOLDER, or unpack TARGET FOLDER".to_owned());
    };
    if !TARGETS.iter().any(|known| known.name == target) {
        let names: Vec<&str> = TARGETS.iter().map(|known| known.name).collect();
        return Err(format!(
            "unknown target {target}: use one of {}",
            names.join(", ")
        ));
    }
    let (archive, folder) = (corpus::archive(target), Path::new(folder));
    let done = if verb == "pack" {
        corpus::pack(folder, &archive)
    } else {
        corpus::unpack(&archive, folder)
    };
    let inputs = done.map_err(|error| {
        let (archive, folder) = (archive.display(), folder.display());
        format!("cannot {verb}, with {archive} and {folder}: {error}")
    })?;
    println!("{verb}ed: {inputs} inputs");
    Ok(())
}
