//! One slice more in a mesh that runs: with traffic going on, and with newcomers that are none.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly")]

mod growing;

use growing::{alone, grown, listener, meet, secret, soon, willing};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tessera_transport::control::Control;
use tessera_transport::handshake::{Role, answer};
use tessera_transport::{
    AddPeerError, CarrierKind, Class, Config, Event, HandshakeError, Invitation, Listener,
    Membership, MeshError, MeshTransport, PeerLink, SendError, Summons, Transport,
};
use wire::SliceId;

const CARRIERS: [CarrierKind; 2] = [CarrierKind::Tcp, CarrierKind::Shm];
const SECOND: SliceId = SliceId(1);
const THIRD: SliceId = SliceId(2);

fn over(kind: CarrierKind) -> Config {
    // So long that no load of the machine looks like a loss.
    Config { carriers: vec![kind], lease: Duration::from_secs(50), ..Config::default() }
}

/// For a wait that comes to nothing, after what has to come before.
fn moment() -> Instant {
    Instant::now() + Duration::from_secs(2)
}

/// What the thread of a transport is told.
enum Order {
    Add(PeerLink, Sender<Result<(), AddPeerError>>),
    Remove(SliceId, Sender<bool>),
    /// How many frames came from each.
    Count(Sender<BTreeMap<SliceId, u32>>),
    Lost(Sender<Vec<SliceId>>),
}

/// A slice whose thread sends numbered frames of all classes to all its peers, as fast as they go, and checks that those
/// of its peers come in order and without a gap.
struct Running {
    local: SliceId,
    orders: Sender<Order>,
    thread: JoinHandle<()>,
    membership: Membership,
}

impl Running {
    fn start(slice: MeshTransport) -> Self {
        let (orders, told) = channel();
        let MeshTransport { transport, membership, .. } = slice;
        let local = transport.local();
        Self { local, orders, thread: thread::spawn(move || run(transport, &told)), membership }
    }

    fn remove(&self, peer: SliceId) -> bool {
        ask(&self.orders, |tell| Order::Remove(peer, tell))
    }

    fn count(&self, from: SliceId) -> u32 {
        ask(&self.orders, Order::Count).get(&from).copied().unwrap_or(0)
    }

    fn lost(&self) -> Vec<SliceId> {
        ask(&self.orders, Order::Lost)
    }

    /// Waits until many more frames came from a slice.
    fn hears(&self, from: SliceId) {
        let (before, end) = (self.count(from), soon());
        while self.count(from) < before + 1000 {
            assert!(Instant::now() < end, "nothing comes from {from} any more");
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn loses(&self, peer: SliceId) {
        let end = soon();
        while !self.lost().contains(&peer) {
            assert!(Instant::now() < end, "the loss of {peer} is not noticed");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn ask<T>(orders: &Sender<Order>, order: impl FnOnce(Sender<T>) -> Order) -> T {
    let (tell, told) = channel();
    orders.send(order(tell)).unwrap();
    told.recv_timeout(Duration::from_secs(60)).unwrap()
}

fn run(mut transport: Box<dyn Transport>, told: &Receiver<Order>) {
    let mut sent: BTreeMap<(SliceId, Class), u32> = BTreeMap::new();
    let mut came: BTreeMap<(SliceId, Class), u32> = BTreeMap::new();
    let mut lost = Vec::new();
    loop {
        for peer in transport.peers().to_vec() {
            for class in Class::ALL {
                let next = sent.entry((peer, class)).or_default();
                match transport.send(peer, class, &next.to_le_bytes(), &[7; 100]) {
                    Ok(()) => *next += 1,
                    Err(SendError::Full | SendError::Gone) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
        let count = transport.poll(256, &mut |event| match event {
            Event::Frame { from, class, bytes } => {
                let next = came.entry((from, class)).or_default();
                assert_eq!(bytes[..4], next.to_le_bytes(), "{from} {class:?}");
                *next += 1;
            }
            Event::Lost { peer, .. } => lost.push(peer),
            other => panic!("{other:?}"),
        });
        match told.try_recv() {
            Ok(Order::Add(link, tell)) => tell.send(transport.add_peer(link)).unwrap(),
            Ok(Order::Remove(peer, tell)) => {
                let former = transport.remove_peer(peer);
                sent.retain(|(to, _), _| *to != peer);
                came.retain(|(from, _), _| *from != peer);
                tell.send(former.is_some_and(|former| former.peer() == peer)).unwrap();
            }
            Ok(Order::Count(tell)) => {
                let mut sums = BTreeMap::new();
                came.iter().for_each(|((from, _), n)| *sums.entry(*from).or_insert(0) += n);
                tell.send(sums).unwrap();
            }
            Ok(Order::Lost(tell)) => tell.send(lost.clone()).unwrap(),
            Err(TryRecvError::Empty) if count == 0 => thread::yield_now(),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return,
        }
    }
}

/// A newcomer up to where both sides agree.
fn agreed(
    membership: &mut Membership,
    slice: SliceId,
    address: SocketAddr,
) -> Result<Invitation<'_>, MeshError> {
    let mut invitation = membership.invite(slice, address, b"join", soon())?;
    assert_eq!(invitation.answer(soon())?, Ok(b"facts".to_vec()));
    invitation.commit(b"final", soon())?;
    Ok(invitation)
}

/// Slices that run.
struct Vm(Vec<Running>);

impl Vm {
    fn of(n: u16, kind: CarrierKind) -> Self {
        Self(grown(n, over(kind)).into_iter().map(Running::start).collect())
    }

    /// All links to a newcomer, or why there are none; ends the invitation as `end` says.
    fn meets(
        &mut self,
        slice: SliceId,
        address: SocketAddr,
        deadline: Instant,
        end: impl FnOnce(Invitation<'_>, Vec<(&Sender<Order>, Result<PeerLink, MeshError>)>),
    ) {
        let (first, rest) = self.0.split_first_mut().unwrap();
        let Running { orders, membership, .. } = first;
        let mut invitation = agreed(membership, slice, address).unwrap();
        let memberships: Vec<&Membership> = rest.iter().map(|one| &one.membership).collect();
        let links = meet(&mut invitation, &memberships, deadline);
        let all = [&*orders].into_iter().chain(rest.iter().map(|one| &one.orders));
        end(invitation, all.zip(links).collect());
    }

    /// A good newcomer joins.
    fn grows(&mut self, slice: SliceId) {
        let listener = listener(secret(1));
        let address = listener.address();
        let newcomer = willing(listener);
        self.meets(slice, address, soon(), |invitation, links| {
            for (orders, link) in links {
                ask(orders, |tell| Order::Add(link.unwrap(), tell)).unwrap();
            }
            invitation.admit(b"state", soon()).unwrap();
        });
        self.0.push(Running::start(newcomer.join().unwrap().unwrap()));
    }

    /// Frames go between all, and nobody has lost anybody.
    fn goes_on(&self) {
        for to in &self.0 {
            let others = self.0.iter().filter(|from| from.local != to.local);
            others.for_each(|from| to.hears(from.local));
            assert_eq!(to.lost(), []);
        }
    }

    fn finish(self) {
        for slice in self.0 {
            // Others may lose it now.
            drop(slice.orders);
            slice.thread.join().unwrap();
        }
    }
}

#[test]
fn mesh_grows_while_frames_go_between_its_members() {
    for kind in CARRIERS {
        let mut vm = Vm::of(1, kind);
        for slice in 1..4 {
            vm.grows(SliceId(slice));
            vm.goes_on();
        }
        vm.finish();
    }
}

#[test]
fn slices_that_started_together_take_one_more_whatever_its_number() {
    for kind in CARRIERS {
        let mut vm = Vm::of(2, kind);
        // Numbers need not ascend: the second has its place between two others.
        vm.grows(SliceId(9));
        vm.grows(SliceId(5));
        vm.goes_on();
        vm.finish();
    }
}

/// Each slice that stays removes the one that left; the others go on, and another one can join.
#[test]
fn removed_peer_is_gone_without_a_loss_and_the_others_go_on() {
    for kind in CARRIERS {
        let mut vm = Vm::of(3, kind);
        vm.goes_on();
        let left = vm.0.remove(1);

        assert!(vm.0.iter().all(|slice| slice.remove(SECOND) && !slice.remove(SECOND)));

        left.loses(SliceId(0));
        left.loses(THIRD);
        vm.goes_on();
        assert!(vm.0.iter().all(|slice| slice.count(SECOND) == 0));
        vm.0[0].membership.keep(|slice| slice != SECOND);
        vm.grows(SliceId(3));
        vm.goes_on();
        vm.finish();
    }
}

#[test]
fn newcomer_with_only_its_own_key_joins() {
    let mut vm = Vm::of(2, CarrierKind::Tcp);
    let listener = listener(secret(1).slice_key(THIRD));
    let address = listener.address();
    let newcomer = willing(listener);
    vm.meets(THIRD, address, soon(), |invitation, links| {
        assert!(links.iter().all(|(_, link)| link.as_ref().unwrap().peer() == THIRD));
        invitation.admit(b"state", soon()).unwrap();
    });
    assert_eq!(newcomer.join().unwrap().unwrap().transport.peers(), [SliceId(0), SECOND]);
    vm.goes_on();
}

#[test]
fn newcomer_with_another_secret_or_key_is_refused() {
    let mut vm = Vm::of(2, CarrierKind::Tcp);
    for stranger in [listener(secret(2)), listener(secret(1).slice_key(SECOND))] {
        let address = stranger.address();
        let waits = thread::spawn(move || stranger.accept(Some(moment()), &mut |_| {}).map(drop));
        let error = agreed(&mut vm.0[0].membership, THIRD, address).unwrap_err();
        assert!(
            matches!(&error, MeshError::Handshake { source: HandshakeError::ProofRefused, .. }),
            "{error}"
        );
        vm.goes_on();
        assert!(matches!(waits.join().unwrap(), Err(MeshError::NoBootstrap)));
    }
    vm.grows(THIRD);
    vm.goes_on();
    vm.finish();
}

#[test]
fn number_and_address_of_a_newcomer_are_its_own() {
    let mut vm = Vm::of(3, CarrierKind::Tcp);
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let membership = &mut vm.0[0].membership;
    membership.keep(|slice| slice != THIRD);
    for used in [SliceId(0), SECOND, THIRD] {
        let error = membership.invite(used, free, b"", soon()).unwrap_err();
        assert!(matches!(error, MeshError::NotFresh { slice } if slice == used), "{error}");
    }
    // Nobody is there; the number is not used up by that.
    let error = membership.invite(SliceId(3), free, b"", soon()).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot connect to slice3 at {free}"));

    let listener = listener(secret(1));
    let address = listener.address();
    let newcomer = willing(listener);
    let invitation = agreed(&mut vm.0[0].membership, SliceId(3), address).unwrap();
    let called: Vec<SliceId> = invitation.summons().iter().map(|(slice, _)| *slice).collect();
    assert_eq!(called, [SECOND], "who has left is not called");
    invitation.abort("enough");
    let told = newcomer.join().unwrap().unwrap_err().to_string();
    assert_eq!(told, "the bootstrap called it off: enough");

    let companion = &mut vm.0[1].membership;
    let error = companion.invite(SliceId(3), free, b"", soon()).unwrap_err();
    assert!(matches!(error, MeshError::NotTheBootstrap { local: SECOND }), "{error}");
    vm.goes_on();
}

#[test]
fn steps_out_of_order_are_refused() {
    let mut vm = Vm::of(1, CarrierKind::Tcp);
    let membership = &mut vm.0[0].membership;
    for early in [true, false] {
        let listener = listener(secret(1));
        let address = listener.address();
        let newcomer = willing(listener);
        let mut invitation = membership.invite(SECOND, address, b"join", soon()).unwrap();
        let error = match early {
            true => invitation.admit(b"state", soon()).unwrap_err(),
            false => invitation.meet(soon()).unwrap_err(),
        };
        assert!(matches!(error, MeshError::OutOfOrder { .. }), "{error}");
        newcomer.join().unwrap().unwrap_err();
    }
}

/// How far a newcomer goes. It ends then, unless it hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stops {
    Assigned,
    Refuses,
    Agreed,
    Committed,
    /// It takes no call, as long as the test wants.
    Hangs,
    /// It waits for a moment to be let in.
    Met,
}

fn stops(listener: Listener, at: Stops, end: Receiver<()>) -> JoinHandle<()> {
    thread::spawn(move || {
        let (_, mut mesh) = listener.accept(Some(soon()), &mut |_| {}).unwrap();
        match at {
            Stops::Assigned => return,
            Stops::Refuses => return mesh.answer(Err("memory does not fit"), soon()).unwrap(),
            _ => mesh.answer(Ok(b"facts"), soon()).unwrap(),
        }
        if at == Stops::Agreed {
            return;
        }
        mesh.verdict(&|| 0, soon()).unwrap();
        match at {
            Stops::Hangs => drop(end.recv()),
            Stops::Met => drop(mesh.into_transport(moment(), &mut |_| {}).unwrap_err()),
            _ => {}
        }
    })
}

#[test]
fn newcomer_that_stops_before_it_is_wanted_changes_nothing() {
    let mut vm = Vm::of(2, CarrierKind::Tcp);
    for at in [Stops::Assigned, Stops::Refuses, Stops::Agreed] {
        let listener = listener(secret(1));
        let address = listener.address();
        let (_end, wait) = channel();
        let newcomer = stops(listener, at, wait);
        let membership = &mut vm.0[0].membership;
        let mut invitation = membership.invite(THIRD, address, b"join", soon()).unwrap();
        let answer = invitation.answer(soon());
        newcomer.join().unwrap();
        match at {
            Stops::Assigned => assert!(answer.unwrap_err().is_loss()),
            Stops::Refuses => assert_eq!(answer.unwrap(), Err("memory does not fit".to_owned())),
            _ => {
                answer.unwrap().unwrap();
                let clock = invitation.measure_clock(2, &|| 0, soon());
                assert!(clock.unwrap_err().is_loss());
            }
        }
        drop(invitation);
        vm.goes_on();
    }
    vm.grows(THIRD);
    vm.goes_on();
    vm.finish();
}

#[test]
fn newcomer_that_stops_half_way_leaves_the_mesh_as_it_was() {
    for kind in CARRIERS {
        let mut vm = Vm::of(2, kind);
        for (at, deadline) in [(Stops::Committed, soon()), (Stops::Hangs, moment())] {
            let listener = listener(secret(1));
            let address = listener.address();
            let (end, wait) = channel();
            let newcomer = stops(listener, at, wait);
            vm.meets(THIRD, address, deadline, |_, links| {
                assert!(links.iter().all(|(_, link)| link.is_err()), "{at:?}");
            });
            drop(end);
            newcomer.join().unwrap();
            vm.goes_on();
        }
        vm.grows(THIRD);
        vm.goes_on();
        vm.finish();
    }
}

/// All have links, and the newcomer ends before it is let in: before the members have added it, and after.
#[test]
fn newcomer_that_ends_when_all_have_met_it_can_be_removed() {
    for kind in CARRIERS {
        let mut vm = Vm::of(2, kind);
        for added in [false, true] {
            let listener = listener(secret(1));
            let address = listener.address();
            let (_end, wait) = channel();
            let newcomer = stops(listener, Stops::Met, wait);
            vm.meets(THIRD, address, soon(), |invitation, links| {
                newcomer.join().unwrap();
                for (orders, link) in links.into_iter().filter(|_| added) {
                    ask(orders, |tell| Order::Add(link.unwrap(), tell)).unwrap();
                }
                let error = invitation.admit(b"state", soon()).unwrap_err();
                assert!(matches!(&error, MeshError::Refused { slice: THIRD, .. }), "{error}");
            });
            for slice in vm.0.iter().filter(|_| added) {
                slice.loses(THIRD);
                assert_eq!(slice.lost(), [THIRD], "and nobody else");
                assert!(slice.remove(THIRD));
            }
            vm.0[0].hears(SECOND);
            vm.0[1].hears(SliceId(0));
        }
        vm.grows(THIRD);
        vm.0[2].hears(SECOND);
        vm.0[1].hears(THIRD);
        vm.finish();
    }
}

/// A member that cannot reach the newcomer says so by a frame of the VM; the waits of all others end.
#[test]
fn cancelled_invitation_ends_all_waits() {
    let mut vm = Vm::of(2, CarrierKind::Shm);
    let listener = listener(secret(1));
    let address = listener.address();
    let newcomer = willing(listener);
    let mut invitation = agreed(&mut vm.0[0].membership, THIRD, address).unwrap();
    let cancel = invitation.cancel().unwrap();
    let other = thread::spawn(move || {
        // The second slice does not call, so nobody gets any further.
        thread::sleep(Duration::from_millis(100));
        cancel.tell("slice1 cannot reach it");
    });

    let error = invitation.meet(soon()).unwrap_err();

    other.join().unwrap();
    assert!(error.is_loss(), "{error}");
    let told = newcomer.join().unwrap().unwrap_err().to_string();
    assert_eq!(told, "the bootstrap called it off: slice1 cannot reach it");
    vm.goes_on();
    vm.finish();
}

#[test]
fn member_that_does_not_call_is_named() {
    let mut vm = Vm::of(2, CarrierKind::Tcp);
    let listener = listener(secret(1));
    let address = listener.address();
    let newcomer = thread::spawn(move || {
        let (_, mut mesh) = listener.accept(Some(soon()), &mut |_| {})?;
        mesh.answer(Ok(b"facts"), soon())?;
        mesh.verdict(&|| 0, soon())?;
        mesh.into_transport(moment(), &mut |_| {}).map(drop)
    });
    let mut invitation = agreed(&mut vm.0[0].membership, THIRD, address).unwrap();

    let error = invitation.meet(soon()).unwrap_err();

    assert_eq!(error.to_string(), "slice2 cannot join: slice1 did not connect in time");
    assert!(matches!(newcomer.join().unwrap(), Err(MeshError::Missing { slice: SECOND })));
    vm.goes_on();
}

#[test]
fn summons_is_of_use_to_its_member_only() {
    let mut vm = Vm::of(3, CarrierKind::Tcp);
    let listener = listener(secret(1));
    let address = listener.address();
    let newcomer = willing(listener);
    let (first, rest) = vm.0.split_first_mut().unwrap();
    let invitation = agreed(&mut first.membership, SliceId(3), address).unwrap();
    let summons: Vec<Summons> = invitation.summons().iter().map(|(_, one)| one.clone()).collect();
    // What the second and third slice are told, each to the other: the newcomer takes none of them.
    for (slice, other) in [(0, 1), (1, 0)] {
        let error = rest[slice].membership.meet(&summons[other], soon()).unwrap_err();
        assert!(
            matches!(&error, MeshError::Handshake { source: HandshakeError::ProofRefused, .. }),
            "{error}"
        );
    }
    rest[0].membership.meet(&summons[0], soon()).unwrap();
    invitation.abort("enough");
    newcomer.join().unwrap().unwrap_err();
    vm.goes_on();
}

/// A newcomer that is played by hand, up to the calls of all members. Control connection, and the first connection of
/// each caller.
fn played(listener: &TcpListener, callers: usize) -> (TcpStream, Vec<TcpStream>) {
    let next = || {
        let mut stream = listener.accept().unwrap().0;
        let connection = answer(&mut stream, &secret(1), |_| Ok(()), soon()).unwrap();
        (stream, connection.role)
    };
    let (mut control, role) = next();
    assert_eq!(role, Role::Control);
    assert!(matches!(hears(&mut control), Control::Assign(_)));
    says(&mut control, &Control::Agree(b"facts".to_vec()));
    assert!(matches!(hears(&mut control), Control::Commit(_)));
    let calls: Vec<_> = (0..callers * Class::COUNT).map(|_| next()).collect();
    let first = |(stream, role): (TcpStream, Role)| (role == Role::Frames(0)).then_some(stream);
    let firsts = calls.iter().map(|(stream, role)| (stream.try_clone().unwrap(), *role));
    let firsts = firsts.filter_map(first).collect();
    // The others end here, which is a newcomer's right.
    drop(calls);
    (control, firsts)
}

fn says(stream: &mut TcpStream, what: &impl serde::Serialize) {
    let bytes = postcard::to_stdvec(what).unwrap();
    stream.write_all(&u32::try_from(bytes.len()).unwrap().to_le_bytes()).unwrap();
    stream.write_all(&bytes).unwrap();
}

fn hears(stream: &mut TcpStream) -> Control {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut bytes = vec![0; usize::try_from(u32::from_le_bytes(length)).unwrap()];
    stream.read_exact(&mut bytes).unwrap();
    Control::decode(&bytes).unwrap()
}

#[test]
fn newcomer_that_cannot_use_the_carrier_of_the_vm_is_refused_with_words() {
    let mut vm = Vm::of(2, CarrierKind::Shm);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let newcomer = thread::spawn(move || {
        let (mut control, mut firsts) = played(&listener, 2);
        for _ in ["the offer", "shared"] {
            let no: Result<(), String> = Err("no shared memory here".into());
            firsts.iter_mut().for_each(|first| says(first, &no));
        }
        says(&mut control, &Control::Ready(Some("no shared memory here".into())));
        // The connections stay until all members have heard the reason.
        (hears(&mut control), firsts)
    });
    vm.meets(THIRD, address, soon(), |_, links| {
        for (_, link) in links {
            assert_eq!(
                link.unwrap_err().to_string(),
                "slice2 cannot join a VM whose frames go over shm: slice2 says: no shared memory here"
            );
        }
    });
    assert!(matches!(newcomer.join().unwrap(), (Control::Abort(_), _)));
    vm.goes_on();
    vm.grows(THIRD);
    vm.goes_on();
    vm.finish();
}

/// Nonsense at each step, of a newcomer that has proved itself.
#[test]
fn newcomer_that_talks_nonsense_is_refused() {
    let nonsense = |stream: &mut TcpStream| {
        stream.write_all(&[0xff; 64]).unwrap();
    };
    for (kind, over_control) in
        [(CarrierKind::Tcp, true), (CarrierKind::Shm, true), (CarrierKind::Shm, false)]
    {
        let mut vm = Vm::of(2, kind);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let newcomer = thread::spawn(move || {
            let (mut control, mut firsts) = played(&listener, 2);
            if over_control {
                nonsense(&mut control);
            } else {
                firsts.iter_mut().for_each(nonsense);
            }
        });
        vm.meets(THIRD, address, soon(), |_, links| {
            let (_, own) = &links[0];
            assert!(own.is_err(), "{kind} {over_control}");
        });
        newcomer.join().unwrap();
        vm.goes_on();
        vm.finish();
    }
}

#[test]
fn link_over_another_carrier_is_refused() {
    let mut vm = Vm::of(1, CarrierKind::Tcp);
    let mut other = alone(over(CarrierKind::Shm));
    let listener = listener(secret(1));
    let address = listener.address();
    let newcomer = willing(listener);
    vm.meets(THIRD, address, soon(), |_, links| {
        let (_, link) = links.into_iter().next().unwrap();
        let error = other.transport.add_peer(link.unwrap()).unwrap_err();
        assert!(matches!(error, AddPeerError::OtherCarrier { peer: THIRD }), "{error}");
    });
    newcomer.join().unwrap().unwrap_err();
    assert_eq!(other.transport.peers(), []);
    assert!(other.transport.remove_peer(THIRD).is_none());
    vm.grows(SECOND);
    vm.goes_on();
    vm.finish();
}

/// A lone slice has nobody to find a carrier out with: it takes the first of its list that its own host has.
#[test]
fn lone_slice_takes_a_carrier_that_its_host_has() {
    let config =
        |carriers: &[CarrierKind]| Config { carriers: carriers.to_vec(), ..Config::default() };
    let kind = alone(config(&[CarrierKind::Rdma, CarrierKind::Tcp])).kind;
    let expected = match tessera_transport::rdma::available() {
        Ok(_) => CarrierKind::Rdma,
        Err(_) => CarrierKind::Tcp,
    };
    assert_eq!(kind, expected);
    assert_eq!(alone(config(&[CarrierKind::Shm, CarrierKind::Tcp])).kind, CarrierKind::Shm);
}
