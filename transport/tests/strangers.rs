//! Connections that prove nothing while a companion waits: they must not stall those that do.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly")]

use std::io::{self, Read};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};
use tessera_transport::{
    BootstrapMesh, Config, Listener, Member, MeshError, MeshTransport, Plan, Refused, Secret, VmId,
};
use wire::{Epoch, SliceId};

/// Idle callers of each companion, and for how many it has room.
const IDLE: usize = 50;
const PENDING: usize = 32;

/// Strangers one after the other, five seconds each, would take far longer.
fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn secret() -> Secret {
    Secret::from_bytes(&[1; 16]).unwrap()
}

fn listener() -> Listener {
    Listener::bind("127.0.0.1:0".parse().unwrap(), secret()).unwrap()
}

fn plan(addresses: &[SocketAddr]) -> Plan {
    let mut members = vec![Member { slice: SliceId(0), address: None }];
    let companions = (1..).zip(addresses);
    members
        .extend(companions.map(|(slice, at)| Member { slice: SliceId(slice), address: Some(*at) }));
    let config = Config::default();
    Plan { vm: VmId([3; 16]), epoch: Epoch(1), members, config, blob: Vec::new() }
}

/// Refusals as they were told: how many, and how many there were in all.
type Told = (u64, u64);

/// A companion that agrees, and what it was told while it waited for the bootstrap.
fn willing(listener: &Listener) -> Result<(MeshTransport, Told), MeshError> {
    let mut told = (0, 0);
    let mut note = |one: &Refused| told = (told.0 + 1, told.1 + 1 + one.untold);
    let (_, mut mesh) = listener.accept(Some(soon()), &mut note)?;
    mesh.answer(Ok(b""), soon())?;
    mesh.verdict(&|| 0, soon())?;
    Ok((mesh.into_transport(soon(), &mut |_| {})?, told))
}

fn idle(addresses: &[SocketAddr]) -> Vec<TcpStream> {
    let all = (0..IDLE).flat_map(|_| addresses);
    all.map(|address| TcpStream::connect(address).unwrap()).collect()
}

#[test]
fn idle_strangers_do_not_stall_the_set_up() {
    let listeners = [listener(), listener()];
    let addresses = listeners.each_ref().map(Listener::address);
    // They stay to the end and say nothing.
    let before = idle(&addresses);
    let companions = listeners.map(|listener| thread::spawn(move || willing(&listener)));

    let mut mesh = BootstrapMesh::connect(secret(), plan(&addresses), soon()).unwrap();
    mesh.gather(soon()).unwrap();
    mesh.commit(b"", soon()).unwrap();
    // The same while the slices connect to each other.
    let meanwhile = idle(&addresses);
    mesh.into_transport(soon(), &mut |_| {}).unwrap();

    for companion in companions {
        let (_, (told, refused)) = companion.join().unwrap().unwrap();
        // One more than there is room for takes the place of the oldest, the bootstrap too.
        let crowded = u64::try_from(IDLE - PENDING + 1).unwrap();
        assert!(refused >= crowded, "{refused} of {crowded}");
        assert!(told < refused, "{told} of {refused} were told one by one");
    }
    drop((before, meanwhile));
}

#[test]
fn callers_prove_themselves_side_by_side() {
    let listener = listener();
    let address = listener.address();
    // As many as there is room for beside the bootstrap: nobody has to go.
    let idle: Vec<_> = (1..PENDING).map(|_| TcpStream::connect(address).unwrap()).collect();
    let companion = thread::spawn(move || willing(&listener));

    let mut mesh = BootstrapMesh::connect(secret(), plan(&[address]), soon()).unwrap();
    mesh.gather(soon()).unwrap();
    mesh.commit(b"", soon()).unwrap();
    mesh.into_transport(soon(), &mut |_| {}).unwrap();

    assert_eq!(companion.join().unwrap().unwrap().1, (0, 0), "nobody was turned away");
    drop(idle);
}

/// How often a caller that is crowded out every time calls in all.
const CALLS: usize = 7;

#[test]
fn companion_that_hangs_up_and_goes_away_is_said_to_have_hung_up() {
    let door = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = door.local_addr().unwrap();
    let gone = thread::spawn(move || {
        let (caller, _) = door.accept().unwrap();
        // Nobody else is let in, and then the first one is sent away.
        drop(door);
        crowd_out(caller);
    });

    let error = BootstrapMesh::connect(secret(), plan(&[address]), soon()).unwrap_err();

    assert!(error.is_loss() && matches!(error, MeshError::Handshake { .. }), "{error}");
    gone.join().unwrap();
}

/// Reads a part of what the caller says first, and closes.
fn crowd_out(mut caller: TcpStream) {
    let mut hello = [0; 8];
    caller.read_exact(&mut hello).unwrap();
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    thread::spawn(move || {
        // Either end may close in any way, which is all that the other end must see.
        let _ = io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
}

#[test]
fn caller_that_is_crowded_out_calls_again() {
    let listener = listener();
    let (real, door) = (listener.address(), TcpListener::bind("127.0.0.1:0").unwrap());
    let address = door.local_addr().unwrap();
    thread::spawn(move || {
        for (count, caller) in door.incoming().enumerate() {
            // Every third one, so that calls of each kind are met.
            if count % 3 == 0 {
                crowd_out(caller.unwrap());
                continue;
            }
            let (caller, companion) = (caller.unwrap(), TcpStream::connect(real).unwrap());
            copy(caller.try_clone().unwrap(), companion.try_clone().unwrap());
            copy(companion, caller);
        }
    });
    let companion = thread::spawn(move || willing(&listener));

    let mut mesh = BootstrapMesh::connect(secret(), plan(&[address]), soon()).unwrap();
    mesh.gather(soon()).unwrap();
    mesh.commit(b"", soon()).unwrap();
    mesh.into_transport(soon(), &mut |_| {}).unwrap();

    assert_eq!(companion.join().unwrap().unwrap().1, (0, 0), "nobody reached it and was refused");
}

#[test]
fn caller_that_is_crowded_out_each_time_gives_up() {
    let door = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = door.local_addr().unwrap();
    let calls = thread::spawn(move || {
        door.incoming().take(CALLS).for_each(|caller| crowd_out(caller.unwrap()));
    });

    let error = BootstrapMesh::connect(secret(), plan(&[address]), soon()).unwrap_err();

    assert!(error.is_loss() && matches!(error, MeshError::Handshake { .. }), "{error}");
    calls.join().unwrap();
}
