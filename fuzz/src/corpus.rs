//! The corpus of a target: `fuzz/corpus/TARGET.tar`, one entry per input.
//!
//! The inputs alone decide the bytes of an archive: entries are sorted by name and carry no times,
//! owners or folders. So packing the same inputs again changes nothing that git could see.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use tar::{Archive, Builder, EntryType, Header};

/// An input, by the name that libFuzzer gave its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    pub name: String,
    pub data: Vec<u8>,
}

/// The folder of the archives.
#[must_use]
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// The archive of the target of this name.
#[must_use]
pub fn archive(target: &str) -> PathBuf {
    folder().join(target).with_extension("tar")
}

/// The inputs in an archive, in its order.
pub fn read(archive: &[u8]) -> io::Result<Vec<Input>> {
    let mut inputs = Vec::new();
    for entry in Archive::new(archive).entries()? {
        let mut entry = entry?;
        let name = String::from_utf8(entry.path_bytes().into_owned()).map_err(io::Error::other)?;
        let plain = entry.header().entry_type() == EntryType::Regular && !name.contains('/');
        if !plain {
            return Err(io::Error::other(format!("{name} is not a plain file")));
        }
        let mut data = Vec::new();
        entry.read_to_end(&mut data)?;
        inputs.push(Input { name, data });
    }
    Ok(inputs)
}

/// The archive of these inputs, whatever their order.
pub fn write(mut inputs: Vec<Input>) -> io::Result<Vec<u8>> {
    inputs.sort_by(|a, b| a.name.cmp(&b.name));
    let mut archive = Builder::new(Vec::new());
    for input in inputs {
        // Times and owners are 0 in a new header.
        let mut header = Header::new_ustar();
        header.set_mode(0o644);
        header.set_size(input.data.len() as u64);
        archive.append_data(&mut header, &input.name, input.data.as_slice())?;
    }
    archive.into_inner()
}

/// Writes every input of an archive to a file in `folder`, which it creates where there is none.
pub fn unpack(archive: &Path, folder: &Path) -> io::Result<usize> {
    let inputs = read(&fs::read(archive)?)?;
    fs::create_dir_all(folder)?;
    for input in &inputs {
        fs::write(folder.join(&input.name), &input.data)?;
    }
    Ok(inputs.len())
}

/// Replaces an archive by one of the files in `folder`.
pub fn pack(folder: &Path, archive: &Path) -> io::Result<usize> {
    let mut inputs = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().into_string().map_err(|name| {
            io::Error::other(format!("the name {} is not UTF-8", name.display()))
        })?;
        let data = fs::read(entry.path())?;
        inputs.push(Input { name, data });
    }
    let packed = inputs.len();
    fs::write(archive, write(inputs)?)?;
    Ok(packed)
}
