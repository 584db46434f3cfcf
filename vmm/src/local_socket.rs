//! A UNIX socket under a name that only its owner may use.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why there is no socket.
#[derive(Debug, Error)]
pub enum SocketError {
    /// Another process answers there.
    #[error("another process listens at {}", .0.display())]
    Taken(PathBuf),
    /// Something else has the name.
    #[error("{} is there and is no socket", .0.display())]
    NoSocket(PathBuf),
    /// The socket cannot be made.
    #[error("listen at {}", .path.display())]
    Listen {
        /// Where.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// A listening socket. Its name goes with it.
#[derive(Debug)]
pub(crate) struct LocalSocket {
    path: PathBuf,
    /// Number of the file that was made: somebody else's is not removed.
    inode: u64,
    listener: UnixListener,
}

impl LocalSocket {
    /// Listens at a path. What a process that is gone has left there is replaced.
    ///
    /// # Errors
    /// Another process listens there, the name is taken by something else, or the folder cannot be
    /// written.
    pub(crate) fn open(path: &Path) -> Result<Self, SocketError> {
        match fs::symlink_metadata(path) {
            Ok(meta) if !meta.file_type().is_socket() => {
                return Err(SocketError::NoSocket(path.to_owned()));
            }
            Ok(_) if UnixStream::connect(path).is_ok() => {
                return Err(SocketError::Taken(path.to_owned()));
            }
            Ok(_) | Err(_) => {}
        }
        let failed = |source| SocketError::Listen { path: path.to_owned(), source };
        let (listener, inode) = listen(path).map_err(failed)?;
        Ok(Self { path: path.to_owned(), inode, listener })
    }

    pub(crate) fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Takes the name away. Who is connected stays so.
    pub(crate) fn remove(&self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|meta| meta.ino() == self.inode) {
            // A name that stays behind is replaced by the next who wants it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for LocalSocket {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Makes the socket under another name, so that nobody finds it before it is its owner's only.
fn listen(path: &Path) -> io::Result<(UnixListener, u64)> {
    let mut hidden = path.as_os_str().to_owned();
    hidden.push(format!(".{}", std::process::id()));
    let hidden = PathBuf::from(hidden);
    let listener = UnixListener::bind(&hidden)?;
    let named = fs::set_permissions(&hidden, Permissions::from_mode(0o600))
        .and_then(|()| fs::symlink_metadata(&hidden))
        .and_then(|meta| fs::rename(&hidden, path).map(|()| meta.ino()));
    if named.is_err() {
        let _ = fs::remove_file(&hidden);
    }
    Ok((listener, named?))
}
