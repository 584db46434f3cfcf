//! A bootstrap whose host vanishes: no packet says so, and a companion has nothing to say by which it would find out.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly")]
#![expect(unsafe_code, reason = "a socket option that no crate has")]
// UNSAFETY: one system call on a socket of this test.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};
use tessera_transport::handshake::{ConnectionId, Role, call};
use tessera_transport::{
    BootstrapMesh, Config, ControlError, Listener, Member, MeshError, Plan, Secret, VmId,
};
use wire::{Epoch, SliceId};

/// From tcp(7): a socket that is closed in this mode says nothing to its peer.
const TCP_REPAIR: i32 = 19;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Closes a connection without a word.
fn vanish(stream: TcpStream) -> io::Result<()> {
    let on: i32 = 1;
    let length = libc::socklen_t::try_from(size_of_val(&on)).unwrap();
    let (fd, value) = (stream.as_raw_fd(), (&raw const on).cast());
    // SAFETY: the socket is open, and the kernel reads an integer of this length.
    let result = unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, TCP_REPAIR, value, length) };
    let result = if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    drop(stream);
    result
}

#[test]
fn companion_notices_that_its_bootstrap_has_vanished() {
    let secret = || Secret::from_bytes(&[1; 16]).unwrap();
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), secret()).unwrap();
    let address = listener.address();
    let mut first = TcpStream::connect(address).unwrap();
    let companion = thread::spawn(move || {
        let mut refused = Vec::new();
        let accepted =
            listener.accept(Some(soon()), &mut |it| refused.push(one_control(&it.error)));
        accepted.unwrap();
        refused
    });
    let connection = ConnectionId {
        role: Role::Control,
        vm: VmId([3; 16]),
        epoch: Epoch(1),
        from: SliceId(0),
        to: SliceId(1),
    };
    call(&mut first, &secret(), &connection, soon()).unwrap();
    // What was sent is acknowledged later. Else it is sent again, and then the kernel here says that there is nobody.
    thread::sleep(Duration::from_millis(500));
    if let Err(error) = vanish(first) {
        needs::skip(&format!("close a socket without a word: {error}"));
        return;
    }
    // It is heard once nobody waits for the other one any more.
    let members = [(0, None), (1, Some(address))];
    let members = members.map(|(slice, address)| Member { slice: SliceId(slice), address });
    let (config, members) = (Config::default(), members.to_vec());
    let plan = Plan { vm: VmId([4; 16]), epoch: Epoch(1), members, config, blob: Vec::new() };
    let _mesh = BootstrapMesh::connect(secret(), plan, soon()).unwrap();
    assert_eq!(companion.join().unwrap(), ["closed"]);
}

/// What was wrong with the control connection.
fn one_control(error: &MeshError) -> &'static str {
    match error {
        MeshError::Control { source: ControlError::Closed, .. } => "closed",
        MeshError::Control { source: ControlError::Timeout, .. } => "silent",
        _ => "something else",
    }
}
