//! A transport over TCP whose peer is played by the test.

use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use tessera_transport::{Class, Config, TcpTransport, Transport};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use wire::SliceId;

/// The slice that the test plays.
pub(crate) const PEER: SliceId = SliceId(1);

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (caller, listener.accept().unwrap().0)
}

/// A transport, and the raw other ends of its connections.
pub(crate) fn rig(config: Config) -> (TcpTransport, [TcpStream; Class::COUNT]) {
    let [(a, e), (b, f), (c, g), (d, h)] = [sockets(), sockets(), sockets(), sockets()];
    let peers = vec![(PEER, [a, b, c, d])];
    (TcpTransport::from_streams(SliceId(0), peers, config).unwrap(), [e, f, g, h])
}

/// What is woken when the transport has something to say.
pub(crate) fn watch(transport: &TcpTransport) -> Epoll {
    let epoll = Epoll::new().unwrap();
    let fd = transport.readiness().as_raw_fd();
    epoll.ctl(ControlOperation::Add, fd, EpollEvent::new(EventSet::IN, 0)).unwrap();
    epoll
}
