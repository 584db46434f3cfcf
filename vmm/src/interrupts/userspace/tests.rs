//! Interrupts while their targets move.

use super::*;
use crate::tsc::ClockRate;
use migrate::{Change, Placement, PlacementOwner};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::Mutex;
use wire::{Epoch, SliceId};

const SLICES: u16 = 3;
const VCPUS: u32 = 4;

/// Frames that this slice has sent and nobody has taken. Where they go is looked up when they leave.
#[derive(Default)]
struct Outbox(Mutex<VecDeque<(VcpuId, VcpuEvent)>>);

impl RemoteInterrupts for Outbox {
    fn forward(&self, target: VcpuId, event: VcpuEvent) {
        self.0.lock().unwrap().push_back((target, event));
    }
}

/// A slice without KVM: its placement, its interrupts and what it has sent.
struct Slice {
    owner: PlacementOwner,
    router: Router,
    outbox: Arc<Outbox>,
    /// Moves that it has not heard of.
    unheard: VecDeque<Change>,
}

impl Slice {
    fn new(id: SliceId, placement: &Placement) -> Self {
        let owner = PlacementOwner::new(id, placement.clone());
        let cores: Vec<_> = (0..VCPUS).map(|vcpu| Arc::new(VcpuCore::new(VcpuId(vcpu)))).collect();
        let outbox = Arc::new(Outbox::default());
        let clock = Arc::new(GuestTsc::new(1_000_000, ClockRate::REAL));
        let remote = Arc::clone(&outbox) as _;
        let userspace = Userspace::new(&cores, owner.view(), remote, clock, TimerSpacing::Off);
        let router = Arc::into_inner(userspace.router).expect("nobody else has it");
        Self { owner, router, outbox, unheard: VecDeque::new() }
    }

    /// Hears of the next move, if there is one.
    fn hear(&mut self) {
        if let Some(change) = self.unheard.pop_front() {
            let epoch = Epoch(self.owner.view().load().epoch().0 + 1);
            self.owner.advance(&[change], epoch).unwrap();
        }
    }
}

/// Where vCPUs move.
struct InOrder(Arc<Outbox>);

impl RemoteInterrupts for InOrder {
    fn forward(&self, target: VcpuId, event: VcpuEvent) {
        self.0.forward(target, event);
    }
    fn keeps_order(&self) -> bool {
        true
    }
}

/// INIT may still be on its way by the slice where the vCPU was.
#[test]
fn start_of_a_vcpu_that_is_here_goes_the_way_of_what_was_sent_before() {
    let members = vec![SliceId(0)];
    let vcpus = vec![SliceId(0); 4];
    let placement = Placement::new(Epoch(1), members, vcpus, Vec::new(), Vec::new()).unwrap();
    let Slice { mut router, outbox, .. } = Slice::new(SliceId(0), &placement);
    let events = [VcpuEvent::Init, VcpuEvent::Startup(9), VcpuEvent::Startup(9)];
    let arrived = |router: &Router| router.mailboxes[1].collect();
    events.iter().for_each(|event| router.send(VcpuId(1), *event));
    assert!(arrived(&router).is_some() && outbox.0.lock().unwrap().is_empty());

    router.remote = Arc::new(InOrder(Arc::clone(&outbox)));
    events.iter().for_each(|event| router.send(VcpuId(1), *event));
    assert!(arrived(&router).is_none());
    assert!(outbox.0.lock().unwrap().drain(..).eq(events.map(|event| (VcpuId(1), event))));
    router.send(VcpuId(1), VcpuEvent::Fixed(40));
    assert!(arrived(&router).is_some() && outbox.0.lock().unwrap().is_empty());
}

/// Takes the oldest frame of a slice to where that slice has its target now.
fn carry(slices: &[Slice], from: usize) -> bool {
    let frame = slices[from].outbox.0.lock().unwrap().pop_front();
    let Some((target, event)) = frame else { return false };
    let to = slices[from].owner.view().load().slice_of(target).unwrap();
    slices[usize::from(to.0)].router.send(target, event);
    true
}

#[derive(Clone, Debug)]
enum Step {
    Send { from: usize, vcpu: u32 },
    Move { vcpu: u32, to: u16 },
    Hear { slice: usize },
    Carry { from: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let slice = || 0..usize::from(SLICES);
    prop_oneof![
        4 => (slice(), 0..VCPUS).prop_map(|(from, vcpu)| Step::Send { from, vcpu }),
        1 => (0..VCPUS, 0..SLICES).prop_map(|(vcpu, to)| Step::Move { vcpu, to }),
        2 => slice().prop_map(|slice| Step::Hear { slice }),
        3 => slice().prop_map(|from| Step::Carry { from }),
    ]
}

proptest! {
    /// Slices hear of moves at different times, and frames are under way meanwhile.
    #[test]
    fn interrupt_arrives_exactly_once_wherever_its_target_moved(steps in prop::collection::vec(step(), 1..400)) {
        let members: Vec<_> = (0..SLICES).map(SliceId).collect();
        let vcpus = (0..VCPUS).map(|_| SliceId(0)).collect();
        let placement =
            Placement::new(Epoch(1), members.clone(), vcpus, Vec::new(), Vec::new()).unwrap();
        let mut slices: Vec<_> = members.iter().map(|id| Slice::new(*id, &placement)).collect();
        let mut sent = vec![0_u8; usize::try_from(VCPUS).unwrap()];
        for step in steps {
            match step {
                Step::Send { from, vcpu } => {
                    let count = &mut sent[usize::try_from(vcpu).unwrap()];
                    if *count < 200 {
                        // Each has a vector of its own, for two of the same are one interrupt.
                        slices[from].router.send(VcpuId(vcpu), VcpuEvent::Fixed(32 + *count));
                        *count += 1;
                    }
                }
                Step::Move { vcpu, to } => {
                    let change = Change::Vcpu { vcpu: VcpuId(vcpu), to: SliceId(to) };
                    slices.iter_mut().for_each(|slice| slice.unheard.push_back(change.clone()));
                }
                Step::Hear { slice } => slices[slice].hear(),
                Step::Carry { from } => drop(carry(&slices, from)),
            }
        }
        for slice in &mut slices {
            while !slice.unheard.is_empty() {
                slice.hear();
            }
        }
        while (0..slices.len()).any(|from| carry(&slices, from)) {}

        let mut arrived = vec![0; usize::try_from(VCPUS).unwrap()];
        for slice in &slices {
            for (mailbox, arrived) in slice.router.mailboxes.iter().zip(&mut arrived) {
                let fixed = mailbox.collect().map(|mail| mail.fixed).unwrap_or_default();
                *arrived += fixed.iter().map(|word| word.count_ones()).sum::<u32>();
            }
        }
        let sent: Vec<_> = sent.into_iter().map(u32::from).collect();
        prop_assert_eq!(arrived, sent);
    }
}
