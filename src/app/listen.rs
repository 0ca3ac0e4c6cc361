//! Listening, on TCP or on a Unix socket.
//!
//! A Unix socket is bound in a directory that is this user's alone, gets its mode there, and is
//! renamed to its name when it listens. So under its name it never has another mode, and never
//! refuses a connection while it is being made. Of two processes that start at once, one gets the
//! name, and the other gets an error.

use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{
    DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _,
    PermissionsExt as _,
};
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;
use tokio::net::{TcpListener, UnixListener, UnixSocket};

use crate::config::Listen;
use crate::server::DataListener;

/// The connections that the kernel keeps until they are accepted.
const BACKLOG: u32 = 1024;

/// The most bytes of a Unix socket's path (`sun_path` of Linux, less the NUL).
const SOCKET_PATH_MAX: usize = 107;

/// Binds an address; returns the one that was got. `mode` is that of a Unix socket.
pub(crate) async fn bind(
    listen: &Listen,
    mode: Option<u32>,
) -> anyhow::Result<(DataListener, String)> {
    match listen {
        Listen::Tcp(address) => {
            let listener = TcpListener::bind(address)
                .await
                .with_context(|| format!("cannot listen on {address}"))?;
            let bound = listener.local_addr()?.to_string();
            Ok((DataListener::Tcp(listener), bound))
        }
        Listen::Unix(path) => {
            let name = format!("unix:{}", path.display());
            let listener =
                bind_socket(path, mode).with_context(|| format!("cannot listen on {name}"))?;
            Ok((DataListener::Unix(listener), name))
        }
    }
}

fn bind_socket(path: &Path, mode: Option<u32>) -> anyhow::Result<UnixListener> {
    let left = left_over(path)?;
    let private = Private::make(path.parent().unwrap_or(Path::new("/")))?;
    let socket = UnixSocket::new_stream()?;
    private.bind(&socket)?;
    let name = private.socket();
    if let Some(mode) = mode {
        std::fs::set_permissions(&name, Permissions::from_mode(mode))?;
    }
    let listener = socket.listen(BACKLOG)?;
    put(&name, path, left)?;
    Ok(listener)
}

/// Device and inode.
type SocketFileId = (u64, u64);

fn id(metadata: &Metadata) -> SocketFileId {
    (metadata.dev(), metadata.ino())
}

/// The socket that an earlier run has left. An error where a process listens on it, or may.
fn left_over(path: &Path) -> anyhow::Result<Option<SocketFileId>> {
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    anyhow::ensure!(
        found.file_type().is_socket(),
        "there is a file of that name that is not a socket"
    );
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => anyhow::bail!("another process listens there"),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(Some(id(&found))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).context(
            "there is a socket, and another process may listen on it: remove it if none does",
        ),
    }
}

/// Puts the socket in its place, which is empty or has the socket that was left there.
fn put(name: &Path, place: &Path, left: Option<SocketFileId>) -> anyhow::Result<()> {
    let rename = |flags| renameat_with(CWD, name, CWD, place, flags);
    let without_a_look = |error| [Errno::INVAL, Errno::NOSYS, Errno::OPNOTSUPP].contains(&error);
    if let Some(left) = left {
        match rename(RenameFlags::EXCHANGE) {
            // The old socket is private now, and goes with the directory.
            Ok(()) if id(&std::fs::symlink_metadata(name)?) == left => return Ok(()),
            Ok(()) => {
                rename(RenameFlags::EXCHANGE)?;
                anyhow::bail!("another process has begun to listen there");
            }
            Err(Errno::NOENT) => {}
            Err(error) if without_a_look(error) => return Ok(std::fs::rename(name, place)?),
            Err(error) => return Err(io::Error::from(error).into()),
        }
    }
    match rename(RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        Err(Errno::EXIST) => anyhow::bail!("another process has begun to listen there"),
        Err(error) if without_a_look(error) => Ok(std::fs::rename(name, place)?),
        Err(error) => Err(io::Error::from(error).into()),
    }
}

/// A directory beside the socket's place that only this user can look into. Removed on drop.
struct Private {
    directory: PathBuf,
}

impl Private {
    fn make(parent: &Path) -> io::Result<Self> {
        let directory = parent.join(format!(".fencepost-{:016x}", rand::random::<u64>()));
        DirBuilder::new().mode(0o700).create(&directory)?;
        Ok(Self { directory })
    }

    fn socket(&self) -> PathBuf {
        self.directory.join("s")
    }

    /// Binds it. Its path may be longer than the kernel takes, where that of its place is not.
    fn bind(&self, socket: &UnixSocket) -> io::Result<()> {
        let name = self.socket();
        if name.as_os_str().len() <= SOCKET_PATH_MAX {
            return socket.bind(name);
        }
        let directory: File = OpenOptions::new()
            .read(true)
            .custom_flags((OFlags::DIRECTORY | OFlags::NOFOLLOW).bits().cast_signed())
            .open(&self.directory)?;
        socket.bind(format!("/proc/self/fd/{}/s", directory.as_raw_fd()))
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.socket());
        if let Err(error) = std::fs::remove_dir(&self.directory) {
            tracing::warn!("{} could not be removed: {error}", self.directory.display());
        }
    }
}
