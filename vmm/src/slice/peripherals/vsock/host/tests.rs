//! The thread, turn by turn.

use super::super::tests::{alone, take_descriptors};
use super::super::{OpenVsock, VsockSpec};
use super::*;
use std::os::unix::net::UnixStream;

#[test]
fn listener_without_descriptors_is_not_asked_again_at_once() {
    if !alone("host::tests::listener_without_descriptors_is_not_asked_again_at_once") {
        return;
    }
    let path = std::env::temp_dir().join(format!("tessera-vsock-host-{}", std::process::id()));
    let open = OpenVsock::new(&VsockSpec { cid: 3, socket: path.clone() }, &Arc::default());
    let open = open.unwrap();
    let mut host = open.host.lock().unwrap().take().unwrap();
    let mut events = Vec::with_capacity(EVENTS);
    let mut taken = take_descriptors();
    drop(taken.pop());
    let _client = UnixStream::connect(&path).unwrap();

    host.turn(&mut events).unwrap();
    assert_eq!((host.listens, host.clients.len()), (false, 0), "it would be told again and again");
    // A rest has an end, whether or not there are descriptors by then.
    while !host.listens {
        host.turn(&mut events).unwrap();
    }
    host.turn(&mut events).unwrap();
    assert_eq!((host.listens, host.clients.len()), (false, 0));
    drop(taken);
    while host.clients.is_empty() {
        host.turn(&mut events).unwrap();
    }
    assert!(host.rests_until.is_none());
}
