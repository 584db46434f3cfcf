//! The handshake: its decoders, and both of its ends against a peer that says anything.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};
use transport::handshake::{Channel, ConnectionId, Hello, Reply, Role, answer, call};
use transport::{Secret, VmId};
use wire::{Epoch, SliceId};

/// A peer whose words are the input, and who listens to nothing.
struct Script<'a>(&'a [u8]);

impl Read for Script<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Script<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Channel for Script<'_> {
    fn set_wait(&self, _wait: Duration) -> io::Result<()> {
        Ok(())
    }

    fn finish(&self) {}
}

pub(crate) fn run(input: &[u8]) {
    if let Ok(hello) = Hello::decode(input) {
        assert_eq!(&hello.encode()[..], input);
    }
    if let Ok(reply) = Reply::decode(input) {
        assert_eq!(&reply.encode()[..], input);
    }
    let secret = Secret::from_bytes(&[1; 16]).expect("16 bytes are enough");
    let connection = ConnectionId {
        role: Role::Control,
        vm: VmId([2; 16]),
        epoch: Epoch(1),
        from: SliceId(0),
        to: SliceId(1),
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    assert!(call(&mut Script(input), &secret, &connection, deadline).is_err());
    assert!(answer(&mut Script(input), &secret, |_| Ok(()), deadline).is_err());
}
