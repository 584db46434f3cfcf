//! A slice joins another that had all memory alone, and one more after it has left. Engines in one process, real
//! userfaultfd, threads of the test in the role of vCPUs.

use crate::leaving::{ENTRIES, FRAMES, HALF, QUIET, ROOT, Told, Troubles, add, sum, watched_parts};
use crate::support::{LIMIT, Mesh, Slice, boxed, forward_to, report_of};
use dsm_protocol::CannotJoin;
use dsm_protocol::saved::{NodeState, check_all};
use needs::Need;
use std::os::fd::BorrowedFd;
use std::slice::from_ref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};
use tessera_dsm::{
    Engine, EngineConfig, GuestRam, HomeRange, HomeTable, JoinError, Memory, NodeConfig, RamError,
    Replicate, Tracing, check_host,
};
use transport::{Class, Config, Event, PageMemory, SendError, Transport, shm, tcp};
use wire::{Epoch, Gfn, SliceId, VcpuId};

/// What all engines of a test are made of.
struct Vm {
    memory: Memory,
    /// Ends of transports that no engine has yet.
    ends: Vec<Option<Box<dyn Transport>>>,
    told: Sender<(u16, String)>,
    troubles: Troubles,
}

/// A transport that reaches a slice which is gone, beside one that is there. Its peers are offered memory one by one.
struct WithoutGone(Box<dyn Transport>);

impl Transport for WithoutGone {
    forward_to!(0);
    fn send(
        &mut self,
        to: SliceId,
        class: Class,
        head: &[u8],
        rest: &[u8],
    ) -> Result<(), SendError> {
        self.0.send(to, class, head, rest)
    }
    fn take_heard(&mut self, sink: &mut dyn FnMut(SliceId, u64)) {
        self.0.take_heard(sink);
    }
    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Event<'_>)) -> usize {
        self.0.poll(budget, sink)
    }
    fn expose(&mut self, memory: &PageMemory) -> bool {
        // False, for the one that is gone.
        self.0.expose(memory);
        true
    }
    fn has_remote_write(&self, peer: SliceId) -> bool {
        self.0.has_remote_write(peer)
    }
    fn remote_write(
        &mut self,
        to: SliceId,
        class: Class,
        head: &[u8],
        at: u64,
        pages: u16,
    ) -> Result<(), SendError> {
        self.0.remote_write(to, class, head, at, pages)
    }
}

fn shm_of_three() -> Mesh {
    boxed(shm::mesh(3, &Config::default()).unwrap())
}

fn tcp_of_three() -> Mesh {
    boxed(tcp::mesh(3, &Config::default()).unwrap())
}

impl Vm {
    fn new(memory: Memory, mesh: fn() -> Mesh) -> Option<Self> {
        if !needs::has(Need::Uffd, check_host()) {
            return None;
        }
        let (told, troubles) = channel();
        Some(Self { memory, ends: mesh().into_iter().map(Some).collect(), told, troubles })
    }

    /// Slice 0 alone, or the newcomer of a form. `None` where the machine cannot run this.
    fn start(&mut self, id: u16, form: Option<&NodeState>) -> Option<Slice> {
        let frames = 0..FRAMES;
        let own = if form.is_none() { from_ref(&frames) } else { &[] };
        let ram = match GuestRam::with_memory(from_ref(&frames), own, self.memory) {
            Err(error @ RamError::HugePages { .. }) => {
                needs::leave_out(&error.to_string());
                return None;
            }
            ram => Arc::new(ram.unwrap()),
        };
        let range = HomeRange { frames, home: SliceId(0) };
        let homes = HomeTable::new(vec![range]).unwrap();
        let slices = form.map_or_else(|| vec![SliceId(0)], |form| form.slices.clone());
        let epoch = form.map_or(Epoch(1), |form| form.epoch);
        let mut node = NodeConfig::new(SliceId(id), slices, homes, epoch);
        node.replicate = Replicate::KernelTables;
        let end = self.ends[usize::from(id)].take().unwrap();
        let transport = if id == 2 { Box::new(WithoutGone(end)) } else { end };
        let config = EngineConfig {
            bystanders: Vec::new(),
            core: None,
            wait_limit: LIMIT,
            node,
            ram: Arc::clone(&ram),
            transport,
            uplink: Box::new(Told(id, Mutex::new(self.told.clone()))),
            trace: Tracing::On,
        };
        let started = match form {
            None => Engine::start(config),
            Some(form) => Engine::join(config, form),
        };
        let (handle, thread) = started.unwrap();
        Some(Slice { guest: ram.slots()[0].1, ram, handle, thread })
    }

    /// A slice joins slice 0, which is alone.
    fn join(&mut self, there: &Slice, id: u16) -> Option<Slice> {
        there.handle.rest(LIMIT).unwrap();
        let form = there.handle.may_join_with(SliceId(id), LIMIT).unwrap();
        let newcomer = self.start(id, Some(&form))?;
        assert_eq!(there.handle.join_with(SliceId(id), LIMIT), Ok(form));
        there.handle.go_on();
        Some(newcomer)
    }

    /// What slice 0 was told.
    fn troubles(&self) -> Vec<String> {
        self.troubles.try_iter().filter(|(slice, _)| *slice == 0).map(|(_, what)| what).collect()
    }
}

/// Both add to all pages, for a while, from what the words of the first are already.
fn add_both(one: &Slice, other: &Slice, meanwhile: impl FnOnce()) -> [u64; 2] {
    let over = AtomicBool::new(false);
    scope(|threads| {
        let over = &over;
        let adders = [(one, 1), (other, 2)]
            .map(|(slice, word)| threads.spawn(move || add(slice, word, over)));
        sleep(Duration::from_millis(100));
        meanwhile();
        over.store(true, Ordering::SeqCst);
        adders.map(|adder| adder.join().unwrap())
    })
}

fn sums(slice: &Slice) -> [u64; 2] {
    [1, 2].map(|word| sum(slice, word, 0..FRAMES))
}

/// All at rest, with nothing on its way.
fn cut(slices: [&Slice; 2]) -> Vec<NodeState> {
    slices.iter().for_each(|slice| slice.handle.rest(LIMIT).unwrap());
    let end = Instant::now() + LIMIT;
    loop {
        let states = slices.iter().map(|slice| slice.handle.save(LIMIT).unwrap());
        let states: Vec<NodeState> = states.collect();
        match check_all(&states) {
            Ok(()) => return states,
            Err(disagreement) => assert!(Instant::now() < end, "{disagreement}"),
        }
    }
}

/// Both slices walk the table and change it, and each sees what the other has changed.
fn use_table(slices: [&Slice; 2], index: usize) {
    for (vcpu, slice) in (0..).zip(slices) {
        slice.handle.set_root(VcpuId(vcpu), Gfn(ROOT));
    }
    let table = |at: usize| [0, 1].map(|more| slices[at].word(ROOT, index + more));
    let [first, second] = table(1);
    let _ = first.load(Ordering::SeqCst);
    table(0)[0].store(ENTRIES[0], Ordering::SeqCst);
    second.store(ENTRIES[1], Ordering::SeqCst);
}

#[test]
fn uffd_slices_join_one_that_is_alone_and_share_all_memory() {
    let meshes = [shm_of_three as fn() -> Mesh, tcp_of_three];
    let cases = [(Memory::Memfd, 0), (Memory::Memfd, 1), (Memory::Anonymous, 0)];
    for (memory, mesh) in cases {
        let Some(mut vm) = Vm::new(memory, meshes[mesh]) else { return };
        let Some(stays) = vm.start(0, None) else { return };
        let over = AtomicBool::new(true);
        let alone = add(&stays, 1, &over);
        stays.handle.set_root(VcpuId(0), Gfn(ROOT));

        let Some(second) = vm.join(&stays, 1) else { return };
        assert_eq!(sum(&second, 1, 0..FRAMES), alone, "{memory}");
        use_table([&stays, &second], 301);
        // Homes go to the newcomer while both use them.
        let to_second = || {
            stays.handle.move_home(HALF..FRAMES, SliceId(1), Epoch(2), LIMIT).unwrap();
        };
        let added = add_both(&stays, &second, to_second);
        let added = [alone + added[0], added[1]];
        assert_eq!((sums(&stays), sums(&second)), (added, added), "{memory}");
        let states = cut([&stays, &second]);
        assert!(states[1].replicas.iter().any(|replica| replica.page == Gfn(ROOT)), "{memory}");
        assert_eq!(
            states[1].directory.iter().map(|at| at.frames.pages()).sum::<u64>(),
            FRAMES - HALF
        );
        [&stays, &second].into_iter().for_each(|slice| slice.handle.go_on());

        // It leaves, and nothing is watched, until one more joins.
        stays.handle.move_home(HALF..FRAMES, SliceId(0), Epoch(3), LIMIT).unwrap();
        stays.handle.pull_home(0..FRAMES, SliceId(1), LIMIT).unwrap();
        cut([&stays, &second]);
        stays.handle.part_with(SliceId(1), LIMIT).unwrap();
        assert_eq!(watched_parts(&stays), 0, "{memory}");
        stays.handle.go_on();
        second.handle.stop();
        second.thread.join().unwrap();
        let more = add(&stays, 1, &over);

        let Some(third) = vm.join(&stays, 2) else { return };
        use_table([&stays, &third], 303);
        let again = add_both(&stays, &third, || ());
        let added = [added[0] + more + again[0], added[1] + again[1]];
        assert_eq!((sums(&stays), sums(&third)), (added, added), "{memory}");
        assert!(watched_parts(&stays) > 0, "{memory}");
        for slice in [&stays, &third] {
            for (index, entry) in (301..305).zip(ENTRIES.into_iter().cycle()) {
                let there = slice.word(ROOT, index).load(Ordering::SeqCst);
                assert_eq!(there, entry, "{memory}, entry {index}");
            }
            assert!(report_of(slice).replica_pages > 0, "{memory}");
        }
        let told = vm.troubles();
        assert!(told.is_empty(), "{told:?}");
        for slice in [stays, third] {
            slice.handle.stop();
            slice.thread.join().unwrap();
        }
    }
}

#[test]
fn uffd_slice_that_cannot_join_changes_nothing() {
    let Some(mut vm) = Vm::new(Memory::Memfd, shm_of_three) else { return };
    let Some(there) = vm.start(0, None) else { return };
    let ask = |slice| {
        let may = there.handle.may_join_with(SliceId(slice), LIMIT);
        assert_eq!(there.handle.join_with(SliceId(slice), LIMIT), may);
        may.map(drop)
    };
    assert_eq!(ask(1), Err(JoinError::Runs));
    there.handle.rest(LIMIT).unwrap();
    assert_eq!(ask(0), Err(JoinError::Refused(CannotJoin::Member(SliceId(0)))));
    assert_eq!(ask(64), Err(JoinError::Refused(CannotJoin::TooHigh(SliceId(64)))));
    assert_eq!(there.handle.save(LIMIT).unwrap().slices, [SliceId(0)]);
    there.handle.go_on();

    // A slice that was to join is lost; another one joins.
    drop(vm.ends[1].take());
    let told = vm.troubles.recv_timeout(LIMIT).unwrap();
    assert!(told.1.contains("slice1 is lost"), "{told:?}");
    let Some(newcomer) = vm.join(&there, 2) else { return };
    newcomer.word(7, 1).store(1, Ordering::SeqCst);
    assert_eq!(there.word(7, 1).fetch_add(1, Ordering::SeqCst), 1);
    sleep(QUIET);
    assert_eq!(newcomer.word(7, 1).load(Ordering::SeqCst), 2);
    assert!(vm.troubles().is_empty());
    for slice in [there, newcomer] {
        slice.handle.stop();
        slice.thread.join().unwrap();
    }
}
