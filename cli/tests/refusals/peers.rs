//! Peers that are absent, silent, strangers, or talk garbage.

use crate::support::{Companion, Folder, PATIENCE, Process, SECRET, can_share};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Instant;
use transport::handshake::{ConnectionId, HELLO_BYTES, Hello, Role, version};
use transport::{BootstrapMesh, Config, Member, MeshError, Plan, Secret, VmId};
use wire::{Epoch, SliceId};

const LOCAL: &str = "local,cpus=1,memory=64M";
const VM: VmId = VmId([3; 16]);

/// A bootstrap that knows the secret and sends `blob` as the VM's description. Returns the refusal.
fn call_with(companion: &Companion, secret: &[u8], blob: &[u8]) -> Result<String, MeshError> {
    let plan = Plan {
        vm: VM,
        epoch: Epoch(1),
        members: vec![
            Member { slice: SliceId(0), address: None },
            Member { slice: SliceId(1), address: Some(companion.address) },
        ],
        config: Config::default(),
        blob: blob.to_vec(),
    };
    let secret = Secret::from_bytes(secret).unwrap();
    let mut mesh = BootstrapMesh::connect(secret, plan, Instant::now() + PATIENCE)?;
    let mut answers = mesh.gather(Instant::now() + PATIENCE)?;
    assert_eq!(answers.len(), 1);
    Ok(answers.remove(0).1.unwrap_err())
}

/// Checks that a companion still serves: it reads what the next caller wants, and refuses it.
fn still_serves(companion: &Companion) {
    let refusal = call_with(companion, &SECRET, b"no description").unwrap();
    assert!(refusal.starts_with("read the configuration of slice0"), "{refusal}");
    companion.process.line_with("the VM was not started: read the configuration of slice0");
    companion.has_no_caller();
}

/// A greeting as a bootstrap sends it.
fn hello() -> [u8; HELLO_BYTES] {
    let connection = ConnectionId {
        role: Role::Control,
        vm: VM,
        epoch: Epoch(1),
        from: SliceId(0),
        to: SliceId(1),
    };
    Hello { connection, nonce: [9; 32] }.encode()
}

/// A greeting of the next version of the protocol: magic and version come first in all of them.
fn next_hello() -> [u8; HELLO_BYTES] {
    let mut hello = hello();
    hello[4..6].copy_from_slice(&(version() + 1).to_le_bytes());
    hello
}

fn other_version() -> String {
    let ours = version();
    format!("the peer speaks protocol version {}, this side speaks version {ours}", ours + 1)
}

/// Sends bytes, ends the direction, and waits until the other end closes.
fn send_and_leave(address: SocketAddr, bytes: &[u8]) {
    let mut stranger = TcpStream::connect(address).unwrap();
    stranger.set_read_timeout(Some(PATIENCE)).unwrap();
    stranger.set_write_timeout(Some(PATIENCE)).unwrap();
    // The other end may have had enough before all of it has been sent.
    let _ = stranger.write_all(bytes);
    let _ = stranger.shutdown(Shutdown::Write);
    let _ = stranger.read_to_end(&mut Vec::new());
}

#[test]
fn companion_turns_strangers_away_and_serves_the_next() {
    let folder = Folder::new();
    let companion = Companion::start(&folder);
    let noise: Vec<u8> =
        (0..1_000_000_u32).map(|n| n.wrapping_mul(0x9e37_79b9).to_le_bytes()[3]).collect();
    let half = &hello()[..HELLO_BYTES / 2];
    let versions = other_version();
    let replayed = [&hello()[..], &[0; 32]].concat();
    for (bytes, cause) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "does not speak this protocol"),
        (&noise, "does not speak this protocol"),
        (&[0; 4096], "does not speak this protocol"),
        (b"", "the peer closed the connection during the handshake"),
        (half, "the peer closed the connection during the handshake"),
        (&hello(), "the peer closed the connection during the handshake"),
        (&next_hello(), versions.as_str()),
        (&replayed, "the peer could not prove that it knows the secret"),
    ] {
        send_and_leave(companion.address, bytes);

        let line = companion.process.line_with("WARN");
        assert!(line.contains("refused 127.0.0.1:") && line.contains(cause), "{line}");
    }
    still_serves(&companion);
}

#[test]
fn companion_waits_for_a_silent_caller_a_bounded_time_only() {
    let folder = Folder::new();
    let companion = Companion::start(&folder);
    let mut silent = TcpStream::connect(companion.address).unwrap();
    silent.write_all(&hello()[..10]).unwrap();

    still_serves(&companion);

    drop(silent);
}

#[test]
fn companion_turns_wrong_secret_and_wrong_plans_away_and_serves_the_next() {
    let folder = Folder::new();
    let companion = Companion::start(&folder);
    let no_vcpu = br#"{"spec":{"slices":[{"vcpus":0,"memory":67108864},{"vcpus":0,"memory":0}],
        "interrupts":"auto","page_tables":"auto","clock_rate":1.0,"timer_spacing":"off",
        "hold_us":[20,2000]},"begins":"boot"}"#;
    let one_slice = br#"{"spec":{"slices":[{"vcpus":1,"memory":67108864}],
        "interrupts":"auto","page_tables":"auto","clock_rate":1.0,"timer_spacing":"off",
        "hold_us":[20,2000]},"begins":"boot"}"#;
    let one_more = br#"{"spec":{"slices":[{"vcpus":0,"memory":67108864}],
        "interrupts":"auto","page_tables":"auto","clock_rate":1.0,"timer_spacing":"off",
        "hold_us":[20,2000]},"begins":"join"}"#;

    let wrong = call_with(&companion, &[8; 32], b"").unwrap_err();
    companion.process.line_with("the peer could not prove that it knows the secret");
    let no_vcpu = call_with(&companion, &SECRET, no_vcpu).unwrap();
    let one_slice = call_with(&companion, &SECRET, one_slice).unwrap();
    companion.process.line_with("the VM was not started: slice1 refuses");
    let one_more = call_with(&companion, &SECRET, one_more).unwrap();
    companion.process.line_with("this host has not joined the VM: plan the VM");

    assert!(matches!(wrong, MeshError::Handshake { .. }), "{wrong}");
    assert_eq!(no_vcpu, "plan the VM: a VM has 1 to 256 vCPUs, not 0");
    assert_eq!(one_more, no_vcpu);
    assert_eq!(one_slice, "slice1 refuses: the VM has no such slice");
    still_serves(&companion);
}

#[test]
fn listen_address_that_is_taken_is_refused() {
    let folder = Folder::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let arguments = ["companion", "--listen", &address, "--secret-file", "vm.key"];

    let line = folder.must_refuse(&mut folder.tessera(&arguments));

    let begins = format!("be a companion: connect the slices: cannot listen on {address}: ");
    assert!(line.starts_with(&begins), "{line}");
}

#[test]
fn kvm_wrong_secret_is_refused_and_the_right_one_gets_a_vm() {
    if !can_share() {
        return;
    }
    let folder = Folder::new();
    folder.secret("other.key", &[8; 32], 0o600);
    let companion = Companion::start(&folder);
    let slice = companion.slice(1, "64M");

    let wrong = folder.refuse(&[LOCAL, &slice], &["--secret-file", "other.key"]);
    companion.process.line_with("the peer could not prove that it knows the secret");
    // The kernel asks for a reset at once.
    let right = folder.bootstrap(&[LOCAL, &slice], &["--limit", "20"]);
    let right = Process::start(&mut folder.tessera(&right)).end();
    let companion = companion.process.end();

    let at = slice.split(',').next().unwrap();
    let begins = format!("start the VM: connect the slices: the handshake with slice1 at {at} ");
    assert!(wrong.starts_with(&begins), "{wrong}");
    assert!(wrong.ends_with("refused the proof of this side: the secrets differ"), "{wrong}");
    assert_eq!(right.status, Some(3), "{right:?}");
    assert_eq!(companion.status, Some(0), "{companion:?}");
}

#[test]
fn kvm_refusal_of_one_companion_leaves_the_other_waiting() {
    if !can_share() {
        return;
    }
    let folder = Folder::new();
    let (willing, small) = (Companion::start(&folder), Companion::start(&folder));

    let line = folder.refuse(&[LOCAL, &willing.slice(1, "64M"), &small.slice(1, "900G")], &[]);

    assert!(line.starts_with("start the VM: slice2 refuses: "), "{line}");
    willing.process.line_with("the VM was not started: ");
    small.process.line_with("the VM was not started: ");
    still_serves(&willing);
    still_serves(&small);
}

#[test]
fn kvm_nobody_at_the_address_is_a_lost_slice() {
    if !can_share() {
        return;
    }
    let folder = Folder::new();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();

    let line = folder.lose(&[LOCAL, &format!("{free},cpus=1,memory=64M")]);

    let begins = format!("start the VM: connect the slices: cannot connect to slice1 at {free}: ");
    assert!(line.starts_with(&begins), "{line}");
}

/// Runs a bootstrap against a listener that answers the greeting with bytes and hangs up.
fn bootstrap_against(answer: Vec<u8>, run: impl Fn(&Folder, &[&str]) -> String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let slice = format!("{},cpus=1,memory=64M", listener.local_addr().unwrap());
    let server = thread::spawn(move || {
        let (mut caller, _) = listener.accept().unwrap();
        caller.set_read_timeout(Some(PATIENCE)).unwrap();
        caller.read_exact(&mut [0; HELLO_BYTES]).unwrap();
        caller.write_all(&answer).unwrap();
    });

    let line = run(&Folder::new(), &[LOCAL, &slice]);

    server.join().unwrap();
    let begins = "start the VM: connect the slices: the handshake with slice1 at 127.0.0.1:";
    assert!(line.starts_with(begins), "{line}");
    line
}

fn refuse(folder: &Folder, slices: &[&str]) -> String {
    folder.refuse(slices, &[])
}

#[test]
fn kvm_companion_that_talks_garbage_is_refused() {
    if !can_share() {
        return;
    }
    for answer in [b"SSH-2.0-OpenSSH_9.2p1\r\n".to_vec(), vec![0xff; 1_000]] {
        let line = bootstrap_against(answer, refuse);
        assert!(line.contains("does not speak this protocol"), "{line}");
    }
}

#[test]
fn kvm_companion_of_another_version_is_refused() {
    if !can_share() {
        return;
    }
    let line = bootstrap_against(next_hello()[..8].to_vec(), refuse);
    assert!(line.ends_with(&other_version()), "{line}");
}

#[test]
fn kvm_companion_that_hangs_up_is_a_lost_slice() {
    if !can_share() {
        return;
    }
    // Nothing, and the first half of what a companion answers: magic and version are the same.
    for answer in [Vec::new(), hello()[..8].to_vec()] {
        let line = bootstrap_against(answer, Folder::lose);
        assert!(line.ends_with("the peer closed the connection during the handshake"), "{line}");
    }
}

#[test]
fn kvm_companion_that_says_nothing_is_refused_in_bounded_time() {
    if !can_share() {
        return;
    }
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let slice = format!("{},cpus=1,memory=64M", silent.local_addr().unwrap());

    let line = Folder::new().refuse(&[LOCAL, &slice], &[]);

    assert!(line.ends_with("the peer said nothing in time"), "{line}");
}
