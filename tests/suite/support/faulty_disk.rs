//! A disk that a test can fill.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::store::tool;

/// Loaded into a program, it stands between that and its files.
pub struct FaultyDisk(TempDir);

impl FaultyDisk {
    /// A disk without fault; `None`, and a line that says so, where there is no C compiler.
    pub fn new() -> Option<Self> {
        let compiler = tool("cc")?;
        let control = TempDir::new().expect("a temporary directory");
        let all = fs::Permissions::from_mode(0o777);
        fs::set_permissions(control.path(), all).expect("it is ours");
        let source = control.path().join("faulty_disk.c");
        fs::write(&source, include_str!("faulty_disk.c")).expect("it is writable");
        let built = Command::new(compiler)
            .args(["-O1", "-shared", "-fPIC", "-o"])
            .arg(control.path().join("faulty_disk.so"))
            .arg(source)
            .arg("-ldl")
            .output()
            .expect("it can be run");
        let said = String::from_utf8_lossy(&built.stderr);
        assert!(built.status.success(), "{said}");
        Some(Self(control))
    }

    /// The environment of a program whose files below this path are on the disk.
    pub fn of(&self, path: &Path) -> [(&'static str, PathBuf); 3] {
        let path = fs::canonicalize(path).expect("it is there");
        [
            ("LD_PRELOAD", self.0.path().join("faulty_disk.so")),
            ("FAULTY_DISK", self.0.path().to_owned()),
            ("FAULTY_DISK_OF", path),
        ]
    }

    /// No file grows until [`Self::free`].
    pub fn fill(&self) {
        self.begin("full");
    }

    pub fn free(&self) {
        self.end("full");
    }

    fn begin(&self, state: &str) {
        fs::write(self.0.path().join(state), "").expect("it is writable");
    }

    fn end(&self, state: &str) {
        fs::remove_file(self.0.path().join(state)).expect("it is there");
    }
}
