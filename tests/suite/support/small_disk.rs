//! A disk that a test can fill: a small file system of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use super::network::root_has;
use super::postgres::start_reaper;
use super::skip::or_lacks;

const SIZE: usize = 64 << 20;

/// A file system over a directory. Unmounted when dropped.
pub struct SmallDisk {
    filler: PathBuf,
    reaper: Child,
}

impl SmallDisk {
    /// `None`, and a line that says so, where this process may not mount one.
    pub fn over(dir: &Path) -> Option<Self> {
        root_has(&["mount"]).then_some(())?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={SIZE},mode=777")]);
        let mounted = mount.arg("tmpfs").arg(dir).status();
        let mounted = mounted.is_ok_and(|status| status.success());
        or_lacks(mounted.then_some(()), "mounts")?;
        Some(Self {
            filler: dir.join("filler"),
            reaper: start_reaper(dir, r#"umount --lazy "$1";"#),
        })
    }

    /// No file grows until [`Self::free`].
    pub fn fill(&self) {
        let full = fs::write(&self.filler, vec![0; SIZE]).expect_err("it has room for less");
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    }

    pub fn free(&self) {
        fs::remove_file(&self.filler).expect("it is there");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(self.reaper.stdin.take());
        let _ = self.reaper.wait();
    }
}
