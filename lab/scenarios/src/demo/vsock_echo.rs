//! The far end of the guest's test of sockets: an echo on this machine, for hosts that are namespaces of it.

use std::fs;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;

use anyhow::{Context, Result};
use guest_tests::VSOCK_ECHO_PORT;
use lab::{Lab, Mode};

/// Words of `tessera bootstrap` that give the guest sockets, with an echo behind them until this process ends. None where
/// hosts have kernels of their own: their sockets cannot be reached from here.
pub(crate) fn start(lab: &Lab) -> Result<Vec<String>> {
    if lab.mode() != Mode::Namespaces {
        return Ok(Vec::new());
    }
    let path = lab.folder().join("vsock");
    let path = path.to_str().context("the lab's folder is no UTF-8")?;
    let echo = format!("{path}_{VSOCK_ECHO_PORT}");
    // Of an earlier run.
    drop(fs::remove_file(&echo));
    let listener =
        UnixListener::bind(Path::new(&echo)).with_context(|| format!("listen at {echo}"))?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve(&stream));
        }
    });
    Ok(vec!["--vsock".to_owned(), format!("cid=3,socket={path}")])
}

/// Who goes away early has its reasons.
fn serve(stream: &UnixStream) -> io::Result<()> {
    let (mut from, mut to) = (stream, stream);
    io::copy(&mut from, &mut to)?;
    stream.shutdown(Shutdown::Write)
}
