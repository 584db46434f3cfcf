//! The vCPUs' programs, a step at a time.

use super::report::Failure;
use super::workload::{self, DATA, LEAVES, LOCK, MIDDLE, ROOT, Step};
use super::world::{Event, World};
use dsm_protocol::entry::DIRTY;
use dsm_protocol::{Access, Gfn, Input};
use std::collections::VecDeque;

/// An operation that takes longer counts as stuck. Virtual time.
const STUCK_NS: u64 = 5_000_000_000;
/// True when a load gave the last store. Dirty bits of leaves may be set for the kernel.
fn agree(frame: u64, index: u16, load: u64, last: u64) -> bool {
    let leaf = (MIDDLE + 1..DATA).contains(&frame) && LEAVES.contains(&index);
    load == last || (leaf && load == last | DIRTY)
}

impl World {
    /// A vCPU takes its next step.
    pub(super) fn run(&mut self, vcpu: usize) -> Result<(), Failure> {
        if self.vcpus[vcpu].plan.is_empty() && !self.replan(vcpu) {
            return Ok(());
        }
        let at = &mut self.vcpus[vcpu];
        if !std::mem::replace(&mut at.busy, true) {
            at.since = self.now;
        } else if self.now - at.since > STUCK_NS {
            let what = format!("stuck: {}", self.waiting());
            return self.fail(&what);
        }
        let slice = at.slice;
        let step = *at.plan.front().expect("just planned");
        let token = u64::try_from(vcpu).expect("few vCPUs");
        match step {
            Step::Release => self.step(slice, Input::Release { tokens: token..token + 1 }, None),
            Step::Pin(frame, write) => {
                let want = if write { Access::Write } else { Access::Read };
                self.step(slice, Input::Pin { gfn: Gfn(frame), want, token }, None)
            }
            Step::Prefetch(frame, pages, write) => {
                let want = if write { Access::Write } else { Access::Read };
                self.done(vcpu);
                self.step(slice, Input::Prefetch { gfn: Gfn(frame), pages, want }, None)?;
                // The first of them may be here, to be read.
                let upgrade = Input::UpgradeAhead { gfn: Gfn(frame) };
                if write { self.step(slice, upgrade, None) } else { Ok(()) }
            }
            Step::Unpin(frame) => {
                self.done(vcpu);
                self.step(slice, Input::Unpin { gfn: Gfn(frame) }, None)
            }
            Step::Section => {
                let mut section = VecDeque::new();
                self.kernel.section(slice, &mut self.random, &mut section);
                for step in section.into_iter().rev() {
                    self.vcpus[vcpu].plan.insert(1, step);
                }
                self.done(vcpu);
                Ok(())
            }
            Step::Free(frame) => {
                if self.living().any(|slice| slice.node.is_replica(Gfn(frame))) {
                    return self.fail("a free page is a replica");
                }
                self.done(vcpu);
                Ok(())
            }
            _ => self.touch(vcpu, slice, step),
        }
    }

    /// Plans the next operation; the last one is a release. False at the end of the program.
    fn replan(&mut self, vcpu: usize) -> bool {
        let at = &mut self.vcpus[vcpu];
        while at.plan.is_empty() && at.steps_left > 0 {
            at.steps_left -= 1;
            if at.steps_left == 0 {
                at.plan.push_back(Step::Release);
            } else {
                let (random, plan) = (&mut self.random, &mut at.plan);
                workload::plan(self.workload, at.slice, self.frames, &self.kernel, random, plan);
            }
        }
        !at.plan.is_empty()
    }

    /// A step that loads or stores.
    fn touch(&mut self, vcpu: usize, slice: u16, step: Step) -> Result<(), Failure> {
        let (gfn, want) = match step {
            Step::Read(frame, _) => (frame, Access::Read),
            Step::Write(frame, ..) | Step::Race(frame, ..) => (frame, Access::Write),
            Step::Walk(index) => (self.walk(slice, index), Access::Write),
            _ => (LOCK, Access::Write),
        };
        let store = &mut self.slices[usize::from(slice)].store;
        if store.access(Gfn(gfn)) < want {
            self.vcpus[vcpu].waits_for = Some(Gfn(gfn));
            return self.step(slice, Input::Fault { gfn: Gfn(gfn), want }, None);
        }
        let flat = &self.flat;
        let last_store = |index| flat.get(&(gfn, index)).copied().unwrap_or(0);
        match step {
            Step::Read(_, index)
                if !agree(gfn, index, store.load(Gfn(gfn), index), last_store(index)) =>
            {
                return self.fail("a load does not give the last store");
            }
            Step::Write(_, index, value) => self.put(slice, gfn, index, value),
            Step::Race(_, index, value) => store.store(Gfn(gfn), index, value),
            Step::Lock if store.load(Gfn(LOCK), 0) != 0 => {
                let later = self.now + 5_000 + self.random.below(20_000);
                self.at(later, Event::Run(vcpu));
                return Ok(());
            }
            Step::Lock => self.put(slice, LOCK, 0, 1),
            Step::Unlock => self.put(slice, LOCK, 0, 0),
            _ => {}
        }
        self.check_alone(gfn, want)?;
        self.done(vcpu);
        Ok(())
    }

    /// Where a hardware walk faults, or the last table that it comes to.
    fn walk(&self, slice: u16, index: u16) -> u64 {
        let store = &self.slices[usize::from(slice)].store;
        let missing = |table: &u64| store.access(Gfn(*table)) < Access::Write;
        let last = store.load(Gfn(MIDDLE), index) >> 12;
        let mut path = [ROOT, MIDDLE, last].into_iter().filter(|table| *table != 0);
        path.find(missing).unwrap_or(ROOT)
    }

    fn put(&mut self, slice: u16, gfn: u64, index: u16, value: u64) {
        self.slices[usize::from(slice)].store.store(Gfn(gfn), index, value);
        self.flat.insert((gfn, index), value);
    }
}
