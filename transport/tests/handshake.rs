//! Both ends of a connection, good and bad, over real sockets.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};
use tessera_transport::handshake::{ConnectionId, Hello, Role, answer, call, version};
use tessera_transport::{HandshakeError, Secret, VmId};
use wire::{Epoch, SliceId};

fn secret(byte: u8) -> Secret {
    Secret::from_bytes(&[byte; 32]).unwrap()
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

fn connection() -> ConnectionId {
    ConnectionId {
        role: Role::Frames(1),
        vm: VmId([7; 16]),
        epoch: Epoch(3),
        from: SliceId(2),
        to: SliceId(1),
    }
}

/// What the listener wants: exactly [`connection`].
fn expect(got: &ConnectionId) -> Result<(), HandshakeError> {
    let want = connection();
    if got.vm != want.vm {
        return Err(HandshakeError::WrongVm { theirs: Some(got.vm) });
    }
    if got.epoch != want.epoch {
        return Err(HandshakeError::WrongEpoch { theirs: Some(got.epoch) });
    }
    if (got.from, got.to) != (want.from, want.to) {
        return Err(HandshakeError::UnexpectedSlice { from: got.from, to: got.to });
    }
    if got.role != want.role {
        return Err(HandshakeError::UnexpectedPurpose);
    }
    Ok(())
}

/// Runs both ends; returns what the caller and what the listener saw.
fn meet(
    caller_secret: Secret,
    caller: ConnectionId,
) -> (Result<(), HandshakeError>, Result<ConnectionId, HandshakeError>) {
    let (mut one, mut two) = UnixStream::pair().unwrap();
    let thread = thread::spawn(move || call(&mut one, &caller_secret, &caller, soon()));
    let listener = answer(&mut two, &secret(1), expect, soon());
    drop(two);
    (thread.join().unwrap(), listener)
}

/// The listener against a peer that does `act` and then hangs up.
fn listen_to(act: impl FnOnce(&mut UnixStream) + Send + 'static) -> HandshakeError {
    let (mut one, mut two) = UnixStream::pair().unwrap();
    let thread = thread::spawn(move || act(&mut one));
    let error = answer(&mut two, &secret(1), expect, soon()).unwrap_err();
    drop(two);
    thread.join().unwrap();
    error
}

#[test]
fn equal_secrets_meet() {
    let (caller, listener) = meet(secret(1), connection());

    caller.unwrap();
    assert_eq!(listener.unwrap(), connection());
}

#[test]
fn wrong_secret_is_refused_on_both_sides() {
    let (caller, listener) = meet(secret(2), connection());

    assert!(matches!(caller, Err(HandshakeError::ProofRefused)), "{caller:?}");
    assert!(matches!(listener, Err(HandshakeError::Unproven)), "{listener:?}");
    let message = listener.unwrap_err().to_string();
    assert_eq!(message, "the peer could not prove that it knows the secret");
}

#[test]
fn another_vm_epoch_slice_or_class_is_refused_on_both_sides() {
    let vm = ConnectionId { vm: VmId([8; 16]), ..connection() };
    let epoch = ConnectionId { epoch: Epoch(4), ..connection() };
    let slice = ConnectionId { from: SliceId(9), ..connection() };
    let class = ConnectionId { role: Role::Frames(2), ..connection() };

    let vm = meet(secret(1), vm);
    let epoch = meet(secret(1), epoch);
    let slice = meet(secret(1), slice);
    let class = meet(secret(1), class);

    assert!(matches!(
        vm,
        (Err(HandshakeError::WrongVm { .. }), Err(HandshakeError::WrongVm { theirs: Some(_) }))
    ));
    assert!(matches!(
        epoch,
        (
            Err(HandshakeError::WrongEpoch { .. }),
            Err(HandshakeError::WrongEpoch { theirs: Some(Epoch(4)) })
        )
    ));
    assert!(matches!(
        slice,
        (
            Err(HandshakeError::UnexpectedSlice { from: SliceId(9), .. }),
            Err(HandshakeError::UnexpectedSlice { from: SliceId(9), .. })
        )
    ));
    assert!(matches!(
        class,
        (Err(HandshakeError::UnexpectedPurpose), Err(HandshakeError::UnexpectedPurpose))
    ));
}

#[test]
fn another_version_is_named_by_both_sides() {
    let (mut one, mut two) = UnixStream::pair().unwrap();
    let mut hello = Hello { connection: connection(), nonce: [5; 32] }.encode();
    hello[4..6].copy_from_slice(&99u16.to_le_bytes());
    one.write_all(&hello).unwrap();

    let listener = answer(&mut two, &secret(1), expect, soon()).unwrap_err();
    drop(two);
    let mut reply = Vec::new();
    one.read_to_end(&mut reply).unwrap();

    assert!(
        matches!(listener, HandshakeError::Version { ours, theirs: 99 } if ours == version()),
        "{listener}"
    );
    assert_eq!((&reply[..4], &reply[4..6]), (&b"TESS"[..], &version().to_le_bytes()[..]));
}

#[test]
fn caller_names_the_version_of_the_listener() {
    let (mut one, mut two) = UnixStream::pair().unwrap();
    let mut reply = [0; 8];
    reply[..4].copy_from_slice(b"TESS");
    reply[4] = 42;
    two.write_all(&reply).unwrap();

    let error = call(&mut one, &secret(1), &connection(), soon()).unwrap_err();

    assert!(matches!(error, HandshakeError::Version { theirs: 42, .. }), "{error}");
    assert_eq!(version(), 11);
}

#[test]
fn garbage_is_called_garbage_by_either_side() {
    let listener = listen_to(|peer| peer.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap());
    let (mut one, mut two) = UnixStream::pair().unwrap();
    two.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
    let caller = call(&mut one, &secret(1), &connection(), soon()).unwrap_err();

    assert!(matches!(listener, HandshakeError::Garbage { first } if &first == b"GET "));
    assert!(matches!(caller, HandshakeError::Garbage { first } if &first == b"SSH-"));
}

#[test]
fn malformed_role_is_refused() {
    let error = listen_to(|peer| {
        let mut hello = Hello { connection: connection(), nonce: [5; 32] }.encode();
        hello[6] = 77;
        peer.write_all(&hello).unwrap();
    });

    assert!(matches!(error, HandshakeError::Malformed { field: "the role", value: 77 }), "{error}");
}

#[test]
fn cut_hello_is_called_closed() {
    let error = listen_to(|peer| {
        let hello = Hello { connection: connection(), nonce: [5; 32] }.encode();
        peer.write_all(&hello[..40]).unwrap();
    });

    assert!(matches!(error, HandshakeError::Closed), "{error}");
}

#[test]
fn silence_is_called_silence_by_either_side() {
    let (mut one, mut two) = UnixStream::pair().unwrap();
    let near = || Instant::now() + Duration::from_millis(20);

    let listener = answer(&mut two, &secret(1), expect, near()).unwrap_err();
    let caller = call(&mut one, &secret(1), &connection(), near()).unwrap_err();

    assert!(matches!(listener, HandshakeError::Timeout), "{listener}");
    assert!(matches!(caller, HandshakeError::Timeout), "{caller}");
}

#[test]
fn replayed_proof_is_refused() {
    // A good meeting through a tap that keeps what the caller said.
    let (mut one, mut tap_near) = UnixStream::pair().unwrap();
    let (mut tap_far, mut two) = UnixStream::pair().unwrap();
    let caller = thread::spawn(move || call(&mut one, &secret(1), &connection(), soon()));
    let listener = thread::spawn(move || answer(&mut two, &secret(1), expect, soon()));
    let mut said = [0; 64 + 32];
    let mut reply = [0; 40];
    tap_near.read_exact(&mut said[..64]).unwrap();
    tap_far.write_all(&said[..64]).unwrap();
    tap_far.read_exact(&mut reply).unwrap();
    tap_near.write_all(&reply).unwrap();
    tap_near.read_exact(&mut said[64..]).unwrap();
    tap_far.write_all(&said[64..]).unwrap();
    tap_far.read_exact(&mut reply).unwrap();
    tap_near.write_all(&reply).unwrap();
    caller.join().unwrap().unwrap();
    listener.join().unwrap().unwrap();

    let error = listen_to(move |peer| {
        peer.write_all(&said).unwrap();
        let _ = peer.read_to_end(&mut Vec::new());
    });

    assert!(matches!(error, HandshakeError::Unproven), "{error}");
}
