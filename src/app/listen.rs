//! Listening, on TCP or on a Unix socket.

use std::fs::Permissions;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::Context;
use rustix::fs::{Mode, fchmod};
use tokio::net::{TcpListener, UnixListener, UnixSocket};

use crate::config::Listen;
use crate::socket::Listener;

/// The connections that the kernel keeps until they are accepted.
const BACKLOG: u32 = 1024;

/// The mode of a Unix socket that is its user's alone.
pub(crate) const PRIVATE: u32 = 0o600;

/// Binds an address; returns the one that was got. `mode` is that of a Unix socket.
pub(crate) async fn bind(listen: &Listen, mode: u32) -> anyhow::Result<(Listener, String)> {
    match listen {
        Listen::Tcp(address) => {
            let listener = TcpListener::bind(address)
                .await
                .with_context(|| format!("cannot listen on {address}"))?;
            let bound = listener.local_addr()?.to_string();
            Ok((Listener::Tcp(listener), bound))
        }
        Listen::Unix(path) => {
            let name = format!("unix:{}", path.display());
            let listener =
                bind_socket(path, mode).with_context(|| format!("cannot listen on {name}"))?;
            Ok((Listener::Unix(listener), name))
        }
    }
}

fn bind_socket(path: &Path, mode: u32) -> anyhow::Result<UnixListener> {
    remove_left_over(path)?;
    let socket = UnixSocket::new_stream()?;
    bind_file(&socket, path, mode)?;
    // Adds the bits that the umask has held back.
    std::fs::set_permissions(path, Permissions::from_mode(mode))?;
    Ok(socket.listen(BACKLOG)?)
}

/// Gives the socket its file, which never allows more than `mode`: Linux makes it with the mode of
/// the descriptor, less the umask. A umask of our own would be that of all threads.
fn bind_file(socket: &UnixSocket, path: &Path, mode: u32) -> anyhow::Result<()> {
    fchmod(socket, Mode::from_raw_mode(mode))?;
    Ok(socket.bind(path)?)
}

/// Removes the socket that an earlier run has left. An error where a process listens on it, or may.
fn remove_left_over(path: &Path) -> anyhow::Result<()> {
    let Err(error) = UnixStream::connect(path) else {
        anyhow::bail!("another process listens there");
    };
    match error.kind() {
        ErrorKind::NotFound => Ok(()),
        ErrorKind::ConnectionRefused => {
            anyhow::ensure!(
                std::fs::symlink_metadata(path)?.file_type().is_socket(),
                "there is a file of that name that is not a socket"
            );
            Ok(std::fs::remove_file(path)?)
        }
        _ => Err(error).context(
            "there is a socket, and another process may listen on it: remove it if none does",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_never_allows_more_than_its_mode() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("front.sock");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build();
        let _entered = runtime.as_ref().expect("a runtime").enter();
        let socket = UnixSocket::new_stream().expect("a socket");
        bind_file(&socket, &path, PRIVATE).expect("it is bound");
        let found = std::fs::metadata(&path).expect("it is there");
        assert_eq!(found.permissions().mode() & 0o777, 0o600);
    }
}
