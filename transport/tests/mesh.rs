//! Bootstrap and companions in one process, over the loopback.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly")]

use std::io::{Read, Write};
use std::iter;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tessera_transport::handshake::{ConnectionId, Role, call};
use tessera_transport::{
    BootstrapMesh, CarrierKind, Class, Config, Event, HandshakeError, Key, Keys, Listener, Member,
    MeshError, MeshTransport, Plan, Secret, ShmTransport, Transport, VmId, shm,
};
use wire::{Epoch, SliceId};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn secret(byte: u8) -> Secret {
    Secret::from_bytes(&[byte; 16]).unwrap()
}

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn listener() -> Listener {
    Listener::bind(loopback(), secret(1)).unwrap()
}

fn plan(addresses: &[SocketAddr]) -> Plan {
    plan_over(addresses, &[CarrierKind::Tcp])
}

fn plan_over(addresses: &[SocketAddr], carriers: &[CarrierKind]) -> Plan {
    let mut members = vec![Member { slice: SliceId(0), address: None }];
    let companions = (1..).zip(addresses);
    members
        .extend(companions.map(|(slice, at)| Member { slice: SliceId(slice), address: Some(*at) }));
    let blob = b"layout".to_vec();
    let config = Config { carriers: carriers.to_vec(), ..Config::default() };
    Plan { vm: VmId([3; 16]), epoch: Epoch(1), members, config, blob }
}

/// A companion that agrees to everything.
fn willing(listener: Listener) -> JoinHandle<Result<MeshTransport, MeshError>> {
    thread::spawn(move || {
        let (assignment, mut mesh) = listener.accept(Some(soon()), &mut |_| {})?;
        assert_eq!(assignment.blob, b"layout");
        mesh.answer(Ok(assignment.local.to_string().as_bytes()), soon())?;
        assert_eq!(mesh.verdict(&|| 5_000, soon())?, b"final");
        mesh.into_transport(soon(), &mut |_| {})
    })
}

/// The bootstrap of a VM that all companions have agreed to.
fn committed(plan: Plan) -> BootstrapMesh {
    let mut mesh = BootstrapMesh::connect(secret(1), plan, soon()).unwrap();
    mesh.gather(soon()).unwrap();
    mesh.commit(b"final", soon()).unwrap();
    mesh
}

/// Its transport, and the warnings on the way to it.
fn joined(mesh: BootstrapMesh) -> (MeshTransport, Vec<String>) {
    let mut warnings = Vec::new();
    let transport = mesh.into_transport(soon(), &mut |text| warnings.push(text.to_owned()));
    (transport.unwrap(), warnings)
}

/// Sends one frame from every slice to every other one and checks that each came.
fn everybody_talks(transports: &mut [&mut dyn Transport]) {
    for from in transports.iter_mut() {
        for to in from.peers().to_vec() {
            let text = format!("{} to {to}", from.local());
            from.send(to, Class::Coherence, text.as_bytes(), &[]).unwrap();
        }
    }
    let count = transports.len();
    for to in transports.iter_mut() {
        let mut seen = Vec::new();
        let (local, end) = (to.local(), soon());
        while seen.len() < count - 1 {
            assert!(Instant::now() < end);
            to.poll(16, &mut |event| match event {
                Event::Frame { from, bytes, .. } => {
                    assert_eq!(bytes, format!("{from} to {local}").as_bytes());
                    seen.push(from);
                }
                other => panic!("{other:?}"),
            });
        }
    }
}

/// The same of a bootstrap and its companions.
fn mesh_talks(bootstrap: &mut MeshTransport, companions: &mut [MeshTransport]) {
    let all = iter::once(bootstrap).chain(companions);
    let mut all: Vec<_> = all.map(|slice| &mut *slice.transport as &mut dyn Transport).collect();
    everybody_talks(&mut all);
}

#[test]
fn four_slices_join_and_talk() {
    let listeners = [listener(), listener(), listener()];
    let addresses: Vec<SocketAddr> = listeners.iter().map(Listener::address).collect();
    let companions = listeners.map(willing);
    let mut mesh = BootstrapMesh::connect(secret(1), plan(&addresses), soon()).unwrap();

    let answers = mesh.gather(soon()).unwrap();
    let ticks = AtomicU64::new(0);
    let clock = || ticks.fetch_add(10, Ordering::Relaxed);
    let estimate = mesh.measure_clock(SliceId(2), 4, &clock, soon()).unwrap();
    mesh.commit(b"final", soon()).unwrap();
    let mut bootstrap = mesh.into_transport(soon(), &mut |_| {}).unwrap();
    let mut others = companions.map(|companion| companion.join().unwrap().unwrap());

    let blobs: Vec<_> =
        (1..4).map(|n| (SliceId(n), Ok(format!("slice{n}").into_bytes()))).collect();
    assert_eq!(answers, blobs);
    assert_eq!((estimate.rtt_min, estimate.offset), (10, 4_995));
    mesh_talks(&mut bootstrap, &mut others);
}

/// A companion on a host that has the key of one slice and not the secret.
fn keyed(slice: u16) -> Listener {
    Listener::bind(loopback(), secret(1).slice_key(SliceId(slice))).unwrap()
}

#[test]
fn companions_with_only_their_own_keys_join() {
    let listeners = [keyed(1), keyed(2), keyed(3)];
    let addresses: Vec<SocketAddr> = listeners.iter().map(Listener::address).collect();
    let companions = listeners.map(willing);
    let mesh = committed(plan(&addresses));

    let mut bootstrap = mesh.into_transport(soon(), &mut |_| {}).unwrap();

    let mut others = companions.map(|companion| companion.join().unwrap().unwrap());
    mesh_talks(&mut bootstrap, &mut others);
}

#[test]
fn companion_is_no_other_slice_than_that_of_its_key() {
    // At the address of slice 1 there is a companion with the key of slice 2.
    let other = keyed(2);
    let address = other.address();
    let companion = thread::spawn(move || {
        let mut refused = Vec::new();
        let end = Instant::now() + Duration::from_secs(2);
        let error = other.accept(Some(end), &mut |one| refused.push(one.to_string())).unwrap_err();
        (error, refused)
    });

    let error = BootstrapMesh::connect(secret(1), plan(&[address]), soon()).unwrap_err();

    assert!(
        matches!(&error, MeshError::Handshake { source: HandshakeError::ProofRefused, .. }),
        "{error}"
    );
    let (error, refused) = companion.join().unwrap();
    assert!(matches!(error, MeshError::NoBootstrap), "{error}");
    assert!(refused[0].ends_with("could not prove that it knows the secret"), "{refused:?}");
}

/// What a companion has, used as it pleases.
struct Hostile(Key);

impl Keys for Hostile {
    fn key(&self, _: &ConnectionId) -> Option<Key> {
        Some(self.0.clone())
    }
}

#[test]
fn companion_cannot_claim_the_id_of_another_while_the_mesh_forms() {
    let listeners = [listener(), listener(), listener()];
    let addresses: Vec<SocketAddr> = listeners.iter().map(Listener::address).collect();
    let [one, two, three] = listeners;
    let (companion, third) = (willing(one), willing(three));
    let (go, waits) = channel();
    let late = thread::spawn(move || {
        let (_, mut mesh) = two.accept(Some(soon()), &mut |_| {}).unwrap();
        mesh.answer(Ok(b""), soon()).unwrap();
        mesh.verdict(&|| 0, soon()).unwrap();
        waits.recv().unwrap();
        mesh.into_transport(soon(), &mut |_| {})
    });
    let plan = plan(&addresses);
    let connection = |from, to| ConnectionId {
        role: Role::Frames(0),
        vm: plan.vm,
        epoch: plan.epoch,
        from: SliceId(from),
        to: SliceId(to),
    };
    let mesh = committed(plan.clone());

    // Slice 3 is expected too. It has the key of its connection to slice 1, and that of its own calls.
    for key in [connection(3, 1), connection(2, 3), connection(0, 3)]
        .map(|own| secret(1).key(&own).unwrap())
    {
        for claimed in [2, 0] {
            let mut stream = TcpStream::connect(addresses[0]).unwrap();
            let error = call(&mut stream, &Hostile(key.clone()), &connection(claimed, 1), soon());
            assert!(matches!(error, Err(HandshakeError::ProofRefused)), "{error:?}");
        }
    }
    go.send(()).unwrap();
    mesh.into_transport(soon(), &mut |_| {}).unwrap();

    for slice in [companion, late, third] {
        slice.join().unwrap().unwrap();
    }
}

/// The loopback address is no RDMA address on any machine.
#[test]
fn slices_fall_back_to_tcp_together_where_the_list_allows_it() {
    let listeners = [listener(), listener()];
    let addresses: Vec<SocketAddr> = listeners.iter().map(Listener::address).collect();
    let companions = listeners.map(willing);
    let plan = plan_over(&addresses, &[CarrierKind::Rdma, CarrierKind::Tcp]);
    let mesh = committed(plan);

    let (mut bootstrap, warnings) = joined(mesh);

    let mut others = companions.map(|companion| companion.join().unwrap().unwrap());
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let start = "rdma cannot be used, so tcp is tried: slice0: no RDMA";
    assert!(warnings[0].starts_with(start), "{warnings:?}");
    assert!(others.iter().all(|other| other.kind == CarrierKind::Tcp));
    mesh_talks(&mut bootstrap, &mut others);
}

/// Each slice calls those that it calls over TCP, so the third is called by two and calls none.
#[test]
fn slices_of_one_host_share_memory_where_the_list_asks_for_it() {
    for carriers in [&[CarrierKind::Shm][..], &[CarrierKind::Rdma, CarrierKind::Shm]] {
        let listeners = [listener(), listener(), listener()];
        let addresses: Vec<SocketAddr> = listeners.iter().map(Listener::address).collect();
        let companions = listeners.map(willing);
        let plan = plan_over(&addresses, carriers);
        let mesh = committed(plan);

        let (mut bootstrap, warnings) = joined(mesh);

        let mut others = companions.map(|companion| companion.join().unwrap().unwrap());
        assert_eq!(warnings.len(), carriers.len() - 1, "{warnings:?}");
        let kinds = others.iter().chain([&bootstrap]).map(|slice| slice.kind);
        assert!(kinds.into_iter().all(|kind| kind == CarrierKind::Shm));
        mesh_talks(&mut bootstrap, &mut others);
    }
}

/// The process runs this test once more, with a library that is none in the place of libibverbs.
#[test]
fn slices_join_over_tcp_where_libibverbs_cannot_be_loaded() {
    const NAME: &str = "slices_join_over_tcp_where_libibverbs_cannot_be_loaded";
    const HIDDEN: &str = "TESSERA_TEST_HIDDEN_LIBRARY";
    if std::env::var_os(HIDDEN).is_none() {
        let folder = std::env::temp_dir().join(format!("tessera-no-verbs-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("libibverbs.so.1"), "no library").unwrap();
        let again = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env(HIDDEN, "1")
            .env("LD_LIBRARY_PATH", &folder)
            .output()
            .unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stdout));
        return;
    }
    let listener = listener();
    let plan = plan_over(&[listener.address()], &[CarrierKind::Rdma, CarrierKind::Tcp]);
    let companion = willing(listener);
    let mesh = committed(plan);

    let (mut bootstrap, warnings) = joined(mesh);

    let mut other = companion.join().unwrap().unwrap();
    assert!(warnings[0].contains("no RDMA devices can be listed"), "{warnings:?}");
    assert_eq!((bootstrap.kind, other.kind), (CarrierKind::Tcp, CarrierKind::Tcp));
    everybody_talks(&mut [&mut *bootstrap.transport, &mut *other.transport]);
}

#[test]
fn rdma_alone_is_refused_with_the_reason_where_it_cannot_be() {
    let listener = listener();
    let plan = plan_over(&[listener.address()], &[CarrierKind::Rdma]);
    let companion = willing(listener);
    let mesh = committed(plan);

    let error = mesh.into_transport(soon(), &mut |_| {}).unwrap_err();

    assert!(matches!(&error, MeshError::Carrier { kind: CarrierKind::Rdma, .. }), "{error}");
    assert!(error.to_string().contains("slice0: no RDMA"), "{error}");
    let told = companion.join().unwrap().unwrap_err().to_string();
    assert!(told.starts_with("the bootstrap called it off: rdma cannot be used"), "{told}");
}

#[test]
fn strangers_are_turned_away_and_the_wait_goes_on() {
    let listener = listener();
    let address = listener.address();
    let companion = thread::spawn(move || {
        let mut refused = Vec::new();
        let accepted = listener.accept(Some(soon()), &mut |one| refused.push(one.to_string()));
        let (assignment, _mesh) = accepted.unwrap();
        (assignment.local, refused)
    });

    let wrong = BootstrapMesh::connect(secret(2), plan(&[address]), soon()).unwrap_err();
    let mut stranger = TcpStream::connect(address).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    // Whether it ends in a reset or an end is the kernel's choice.
    let _ = stranger.read_to_end(&mut Vec::new());
    let _mesh = BootstrapMesh::connect(secret(1), plan(&[address]), soon()).unwrap();

    let (local, refused) = companion.join().unwrap();
    assert_eq!(local, SliceId(1));
    assert!(
        matches!(&wrong, MeshError::Handshake { source: HandshakeError::ProofRefused, .. }),
        "{wrong}"
    );
    assert_eq!(wrong.to_string(), format!("the handshake with slice1 at {address} failed"));
    assert_eq!(refused.len(), 2, "{refused:?}");
    assert!(refused[0].ends_with("could not prove that it knows the secret"), "{refused:?}");
    assert!(refused[1].contains("does not speak this protocol"), "{refused:?}");
}

#[test]
fn refusal_reaches_the_bootstrap_and_abort_the_others() {
    let (one, two) = (listener(), listener());
    let addresses = [one.address(), two.address()];
    let refuser = thread::spawn(move || {
        let (_, mut mesh) = one.accept(Some(soon()), &mut |_| {}).unwrap();
        mesh.answer(Err("memory does not fit"), soon()).unwrap();
    });
    let other = willing(two);
    let mut mesh = BootstrapMesh::connect(secret(1), plan(&addresses), soon()).unwrap();

    let answers = mesh.gather(soon()).unwrap();
    mesh.abort("slice1 refused");
    refuser.join().unwrap();
    let error = other.join().unwrap().unwrap_err();

    assert_eq!(answers[0], (SliceId(1), Err(String::from("memory does not fit"))));
    assert_eq!(answers[1], (SliceId(2), Ok(b"slice2".to_vec())));
    assert_eq!(error.to_string(), "the bootstrap called it off: slice1 refused");
}

#[test]
fn clocks_are_measured_once_all_have_prepared() {
    let listeners = [listener(), listener()];
    let addresses: Vec<SocketAddr> = listeners.iter().map(Listener::address).collect();
    let (go, prepare) = (Barrier::new(3), AtomicU64::new(0));
    thread::scope(|scope| {
        for listener in listeners {
            let (go, prepared) = (&go, &prepare);
            scope.spawn(move || {
                let (_, mut mesh) = listener.accept(Some(soon()), &mut |_| {}).unwrap();
                mesh.answer(Ok(b"agreed"), soon()).unwrap();
                mesh.prepare(soon()).unwrap();
                go.wait();
                mesh.check_waiting().unwrap();
                prepared.fetch_add(1, Ordering::SeqCst);
                mesh.answer(Ok(b"prepared"), soon()).unwrap();
                // Of both: each probe comes after both have said so.
                let clock = || prepared.load(Ordering::SeqCst);
                assert_eq!(mesh.verdict(&clock, soon()).unwrap(), b"final");
            });
        }
        let mut mesh = BootstrapMesh::connect(secret(1), plan(&addresses), soon()).unwrap();
        mesh.gather(soon()).unwrap();
        mesh.prepare(soon()).unwrap();
        go.wait();
        let answers = mesh.gather(soon()).unwrap();
        assert!(answers.iter().all(|(_, answer)| answer.as_deref() == Ok(b"prepared")));
        for slice in [1, 2].map(SliceId) {
            assert_eq!(mesh.measure_clock(slice, 4, &|| 2, soon()).unwrap().offset, 0);
        }
        mesh.commit(b"final", soon()).unwrap();
    });
}

#[test]
fn companion_that_prepares_hears_that_nobody_waits_for_it() {
    for told in [true, false] {
        let listener = listener();
        let plan = plan(&[listener.address()]);
        let (begun, begins) = channel();
        let companion = thread::spawn(move || {
            let (_, mut mesh) = listener.accept(Some(soon()), &mut |_| {}).unwrap();
            mesh.answer(Ok(b""), soon()).unwrap();
            mesh.prepare(soon()).unwrap();
            begun.send(()).unwrap();
            loop {
                if let Err(error) = mesh.check_waiting() {
                    return error;
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        let mut mesh = BootstrapMesh::connect(secret(1), plan, soon()).unwrap();
        mesh.gather(soon()).unwrap();
        mesh.prepare(soon()).unwrap();
        begins.recv().unwrap();
        if told {
            mesh.abort("its own memory is damaged");
        } else {
            drop(mesh);
        }
        let error = companion.join().unwrap();
        assert_eq!(matches!(error, MeshError::Aborted { .. }), told, "{error}");
    }
}

#[test]
fn companion_that_dies_before_its_answer_is_named() {
    let (one, two) = (listener(), listener());
    let addresses = [one.address(), two.address()];
    let slow = thread::spawn(move || {
        let (_, mut mesh) = one.accept(Some(soon()), &mut |_| {}).unwrap();
        // It never answers; only the end of the bootstrap frees it.
        mesh.verdict(&|| 0, soon()).unwrap_err()
    });
    let dead = thread::spawn(move || drop(two.accept(Some(soon()), &mut |_| {}).unwrap()));
    let mut mesh = BootstrapMesh::connect(secret(1), plan(&addresses), soon()).unwrap();
    dead.join().unwrap();

    let error = mesh.gather(soon()).unwrap_err();
    drop(mesh);

    assert!(error.to_string().starts_with("the set-up with slice2 at "), "{error}");
    assert!(matches!(slow.join().unwrap(), MeshError::Control { .. }));
}

#[test]
fn slice_that_cannot_reach_another_stops_all() {
    let (one, two) = (listener(), listener());
    let addresses = [one.address(), two.address()];
    // Slice 1 commits and ends without joining: slice 2 cannot connect to it.
    let deserter = thread::spawn(move || {
        let (_, mut mesh) = one.accept(Some(soon()), &mut |_| {}).unwrap();
        mesh.answer(Ok(b""), soon()).unwrap();
        mesh.verdict(&|| 0, soon()).unwrap();
    });
    let other = willing(two);
    let mesh = committed(plan(&addresses));
    deserter.join().unwrap();

    let error = mesh.into_transport(soon(), &mut |_| {}).unwrap_err();

    assert!(
        error.to_string().contains("slice1") || error.to_string().contains("slice2"),
        "{error}"
    );
    other.join().unwrap().unwrap_err();
}

#[test]
fn nobody_listening_is_named() {
    let free = TcpListener::bind(loopback()).unwrap().local_addr().unwrap();

    let error = BootstrapMesh::connect(secret(1), plan(&[free]), soon()).unwrap_err();

    assert_eq!(error.to_string(), format!("cannot connect to slice1 at {free}"));
}

#[test]
fn plan_with_an_address_twice_is_refused() {
    let twice = plan(&[loopback(), loopback()]);

    let error = BootstrapMesh::connect(secret(1), twice, soon()).unwrap_err();

    assert!(matches!(error, MeshError::Plan(_)), "{error}");
}

#[test]
fn steps_out_of_order_are_refused() {
    let listener = listener();
    let address = listener.address();
    let companion = thread::spawn(move || {
        let (_, mesh) = listener.accept(Some(soon()), &mut |_| {}).unwrap();
        mesh.into_transport(soon(), &mut |_| {}).unwrap_err()
    });
    let mesh = BootstrapMesh::connect(secret(1), plan(&[address]), soon()).unwrap();

    let error = companion.join().unwrap();
    let other = mesh.into_transport(soon(), &mut |_| {}).unwrap_err();

    assert!(matches!(error, MeshError::OutOfOrder { .. }), "{error}");
    assert!(matches!(other, MeshError::OutOfOrder { .. }), "{other}");
}

#[test]
fn wait_for_a_bootstrap_ends_at_its_deadline() {
    let end = Instant::now() + Duration::from_millis(20);

    let error = listener().accept(Some(end), &mut |_| {}).unwrap_err();

    assert!(matches!(error, MeshError::NoBootstrap), "{error}");
}

#[test]
fn shared_memory_is_passed_over_an_authenticated_socket() {
    let connection = ConnectionId {
        role: Role::SharedMemory,
        vm: VmId([3; 16]),
        epoch: Epoch(1),
        from: SliceId(1),
        to: SliceId(0),
    };
    let (near, far) = UnixStream::pair().unwrap();
    let caller = thread::spawn(move || {
        let pair = shm::connect(far, &secret(1), &connection, soon()).unwrap();
        ShmTransport::new(SliceId(1), vec![pair], Config::default()).unwrap()
    });
    let pair = shm::accept(near, &secret(1), |_| Ok(()), soon()).unwrap();
    let mut first = ShmTransport::new(SliceId(0), vec![pair], Config::default()).unwrap();
    let mut second = caller.join().unwrap();

    everybody_talks(&mut [&mut first, &mut second]);
}

#[test]
fn shared_memory_with_a_wrong_secret_is_refused() {
    let connection = ConnectionId {
        role: Role::SharedMemory,
        vm: VmId([3; 16]),
        epoch: Epoch(1),
        from: SliceId(1),
        to: SliceId(0),
    };
    let (near, far) = UnixStream::pair().unwrap();
    let caller = thread::spawn(move || shm::connect(far, &secret(2), &connection, soon()));

    let error = shm::accept(near, &secret(1), |_| Ok(()), soon()).unwrap_err();

    assert!(matches!(error, shm::ShmError::Handshake { .. }), "{error}");
    caller.join().unwrap().unwrap_err();
}
