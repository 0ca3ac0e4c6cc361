//! Writes the manual pages that a package installs: `cargo run --example man -- DIR`. An example,
//! so that the program does not carry the generator.

use std::path::Path;

/// Writes a page per command into the folder, which must exist.
pub fn write(folder: &Path) -> std::io::Result<()> {
    let program = fencepost::cli::command_line()
        .version(env!("CARGO_PKG_VERSION"))
        .disable_help_subcommand(true);
    clap_mangen::generate_to(program, folder)
}

#[allow(dead_code, reason = "the tests use the other function alone")]
fn main() -> std::io::Result<()> {
    let folder = std::env::args_os().nth(1);
    write(Path::new(&folder.unwrap_or_else(|| ".".into())))
}
