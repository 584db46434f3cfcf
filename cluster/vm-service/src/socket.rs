//! A UNIX socket at which a server of this host listens: who calls is known by the kernel.
//!
//! ```text
//!   listen --a socket that nobody answers is taken away--> accept --peer credentials, a place--> a connection
//!                                                              \--no place--> closed
//! ```

use crate::connection::Connection;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener as AsyncUnixListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::sleep;
use vmm::control::Caller;

/// After a connection that could not be accepted.
const AGAIN: Duration = Duration::from_millis(100);

/// Listens there, for the user whose process this is. A socket that is left over goes.
///
/// # Errors
/// Somebody listens there, or it cannot be made.
pub fn listen_at(path: &Path) -> io::Result<UnixListener> {
    if fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket()) {
        if UnixStream::connect(path).is_ok() {
            return Err(ErrorKind::AddrInUse.into());
        }
        fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Gives each connection of the socket a place.
pub async fn welcome_socket(
    listener: UnixListener,
    places: Arc<Semaphore>,
    to: mpsc::Sender<Connection>,
) {
    let listener = match AsyncUnixListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the socket is not served"),
    };
    loop {
        let accepted = match listener.accept().await {
            Ok((stream, _)) => Caller::of(&stream).map(|caller| (stream, caller)),
            Err(error) => Err(error),
        };
        match accepted {
            Ok((stream, caller)) => {
                // Without a place it is closed.
                let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
                if to.send(Connection::local(stream, caller, place)).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                tracing::debug!(%error, "a connection of the socket is not accepted");
                sleep(AGAIN).await;
            }
        }
    }
}
