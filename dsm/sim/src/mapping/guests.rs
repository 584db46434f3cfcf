//! The vCPUs of all slices, what KVM does for them, and the flat memory.
//!
//! ```text
//!   a step: touch --done--> next step        (KVM may send a worker first, which always asks to write)
//!             |---waits--> woken --> again
//!             \---refused--> the VMM asks the engine --> again
//! ```

use super::contents::Contents;
use super::programs::{DEVICE_WORD, Layout, Step, plan};
use crate::simulator::random::Random;
use dsm::simulate::{FakeKernel, Touch};
use dsm_protocol::Gfn;
use std::collections::{BTreeMap, VecDeque};

/// No thread of this process: a worker of the kernel.
const WORKER: u32 = 0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Runs,
    /// For userfaultfd to wake it.
    Waits,
    /// For the engine's answer: it was refused, or a device is at work.
    Asks,
    /// Until the calendar says so.
    Rests,
    Ends,
}

#[derive(Debug)]
pub(crate) struct Vcpu {
    pub(crate) slice: usize,
    pub(crate) state: State,
    plan: VecDeque<Step>,
    steps_left: u32,
    /// The worker that KVM sent is not done.
    has_worker: bool,
    /// Since when the step in hand is tried, in nanoseconds.
    pub(crate) since: Option<u64>,
}

/// What a vCPU wants of its slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// It was refused a store.
    Refused,
    /// A device is to read or write a word.
    Device(Gfn, Option<u64>),
    /// It rests for so many nanoseconds.
    Rest(u64),
}

/// One kernel, and where its frames are.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) kernel: FakeKernel,
    /// Page of the mapping by frame.
    pub(crate) pages: BTreeMap<u64, usize>,
    /// Its slice has left, and nobody looks at its memory.
    pub(crate) gone: bool,
}

/// All vCPUs.
#[derive(Debug)]
pub(crate) struct Guests {
    pub(crate) vcpus: Vec<Vcpu>,
    pub(crate) hosts: Vec<Host>,
    pub(crate) random: Random,
    pub(crate) now: u64,
    /// A thread of this process.
    process: u32,
    layout: Layout,
    flat: BTreeMap<(Gfn, usize), u64>,
    /// Words that a device is writing: what was there, and what will be.
    writing: BTreeMap<Gfn, (u64, u64)>,
    /// What vCPUs want and nobody has seen to.
    pub(crate) wishes: Vec<(usize, Wish)>,
    pub(crate) failure: Option<String>,
    pub(crate) longest_ns: u64,
    pub(crate) touches: u64,
    /// No vCPU runs.
    pub(crate) stopped: bool,
}

impl Guests {
    pub(crate) fn new(layout: Layout, random: Random) -> Self {
        Self {
            vcpus: Vec::new(),
            hosts: Vec::new(),
            random,
            now: 0,
            process: std::process::id(),
            layout,
            flat: BTreeMap::new(),
            writing: BTreeMap::new(),
            wishes: Vec::new(),
            failure: None,
            longest_ns: 0,
            touches: 0,
            stopped: false,
        }
    }

    /// What memory is at first.
    pub(crate) fn begin_with(&mut self, contents: &Contents) {
        for (frame, words) in &contents.0 {
            self.flat.extend(words.iter().map(|(word, value)| ((Gfn(*frame), *word), *value)));
        }
    }

    pub(crate) fn add_vcpu(&mut self, slice: usize, steps: u32) {
        self.vcpus.push(Vcpu {
            slice,
            state: State::Runs,
            plan: VecDeque::new(),
            steps_left: steps,
            has_worker: false,
            since: None,
        });
    }

    pub(crate) fn fail(&mut self, what: String) {
        self.failure = self.failure.take().or(Some(what));
    }

    /// Somebody runs for a while, as threads do at any time.
    pub(crate) fn run_some(&mut self) {
        if self.stopped {
            return;
        }
        for _ in 0..self.random.below(4) {
            let among = u64::try_from(self.vcpus.len()).expect("few");
            let vcpu = usize::try_from(self.random.below(among)).expect("few");
            for _ in 0..=self.random.below(6) {
                if self.vcpus[vcpu].state != State::Runs || self.failure.is_some() {
                    break;
                }
                self.step(vcpu);
            }
        }
    }

    /// A vCPU that runs does, or tries, its next step.
    pub(crate) fn step(&mut self, vcpu: usize) {
        let Some(step) = self.next(vcpu) else {
            self.vcpus[vcpu].state = State::Ends;
            return;
        };
        let now = self.now;
        self.vcpus[vcpu].since.get_or_insert(now);
        match step {
            Step::Load(gfn, word) => self.access(vcpu, gfn, word, None),
            Step::Store(gfn, word, value) => self.access(vcpu, gfn, word, Some(value)),
            Step::Device(gfn, Some(_)) if self.writing.contains_key(&gfn) => self.done(vcpu),
            Step::Device(gfn, write) => {
                if let Some(new) = write {
                    let old = self.flat.get(&(gfn, DEVICE_WORD)).copied().unwrap_or(0);
                    self.writing.insert(gfn, (old, new));
                }
                self.vcpus[vcpu].state = State::Asks;
                self.wishes.push((vcpu, Wish::Device(gfn, write)));
            }
            Step::Rest(time) => {
                self.vcpus[vcpu].state = State::Rests;
                self.wishes.push((vcpu, Wish::Rest(time)));
            }
        }
    }

    fn next(&mut self, vcpu: usize) -> Option<Step> {
        let Self { vcpus, layout, random, flat, .. } = self;
        let at = &mut vcpus[vcpu];
        while at.plan.is_empty() && at.steps_left > 0 {
            at.steps_left -= 1;
            if at.steps_left > 0 {
                plan(layout, random, &mut at.plan);
            } else {
                // In the end it looks at what there is.
                let words = flat.keys().filter(|(_, word)| *word != DEVICE_WORD);
                at.plan.extend(words.map(|(gfn, word)| Step::Load(*gfn, *word)));
            }
        }
        at.plan.front().copied()
    }

    /// The step in hand is over.
    pub(crate) fn done(&mut self, vcpu: usize) {
        let at = &mut self.vcpus[vcpu];
        at.plan.pop_front();
        at.state = State::Runs;
        at.has_worker = false;
        let since = at.since.take().unwrap_or(self.now);
        self.longest_ns = self.longest_ns.max(self.now - since);
    }

    fn access(&mut self, vcpu: usize, gfn: Gfn, word: usize, write: Option<u64>) {
        let slice = self.vcpus[vcpu].slice;
        let page = self.hosts[slice].pages[&gfn.0];
        let kernel = self.hosts[slice].kernel.clone();
        let absent = |kernel: &FakeKernel| {
            let (load, store) = kernel.access(page);
            !if write.is_some() { store } else { load }
        };
        self.touches += 1;
        let sent = !self.vcpus[vcpu].has_worker && absent(&kernel) && self.random.one_in(3);
        if sent || self.vcpus[vcpu].has_worker {
            self.vcpus[vcpu].has_worker = true;
            if kernel.touch(vcpu, WORKER, page, true) == Touch::Waits {
                self.vcpus[vcpu].state = State::Waits;
                return;
            }
            self.vcpus[vcpu].has_worker = false;
        }
        match kernel.touch(vcpu, self.process, page, write.is_some()) {
            Touch::Waits => self.vcpus[vcpu].state = State::Waits,
            Touch::Refused => {
                self.vcpus[vcpu].state = State::Asks;
                self.wishes.push((vcpu, Wish::Refused));
            }
            Touch::Done => {
                match write {
                    Some(value) => {
                        kernel.store(page, word, value);
                        self.flat.insert((gfn, word), value);
                    }
                    None => self.check_load(slice, gfn, word, kernel.load(page, word)),
                }
                self.check_alone(slice, gfn, write.is_some());
                self.done(vcpu);
            }
        }
    }

    fn check_load(&mut self, slice: usize, gfn: Gfn, word: usize, load: u64) {
        let last = self.flat.get(&(gfn, word)).copied().unwrap_or(0);
        if load != last {
            self.fail(format!(
                "slice{slice} loads {load:#x} of {gfn} word {word}, stored last was {last:#x}"
            ));
        }
    }

    /// Nobody else can load a page that somebody stores to, nor store to one that somebody loads.
    fn check_alone(&mut self, slice: usize, gfn: Gfn, write: bool) {
        let others = self.hosts.iter().enumerate();
        for (other, host) in others.filter(|(other, host)| *other != slice && !host.gone) {
            let (load, store) = host.kernel.access(host.pages[&gfn.0]);
            if store || load && write {
                let does = if write { "stores to" } else { "loads" };
                let may = if store { "store to it" } else { "load it" };
                let what = format!("slice{slice} {does} {gfn} while slice{other} may {may}");
                self.failure = self.failure.take().or(Some(what));
            }
        }
    }

    /// A device's word was written, or read.
    pub(crate) fn device_done(&mut self, vcpu: usize, gfn: Gfn, write: Option<u64>, load: u64) {
        let last = self.flat.get(&(gfn, DEVICE_WORD)).copied().unwrap_or(0);
        if let Some(value) = write {
            self.writing.remove(&gfn);
            self.flat.insert((gfn, DEVICE_WORD), value);
        } else if load != last && self.writing.get(&gfn).is_none_or(|(_, new)| *new != load) {
            self.fail(format!("a device loads {load:#x} of {gfn}, stored last was {last:#x}"));
        }
        self.done(vcpu);
    }

    /// vCPUs may run again, on new kernels: whoever waited for a page touches it again.
    pub(crate) fn start_again(&mut self) {
        self.stopped = false;
        for vcpu in &mut self.vcpus {
            vcpu.has_worker = false;
            if vcpu.state == State::Waits {
                vcpu.state = State::Runs;
            }
        }
    }

    /// vCPUs of a slice are woken.
    pub(crate) fn wake(&mut self, slice: usize) -> Vec<usize> {
        let woken = self.hosts[slice].kernel.take_woken();
        for vcpu in &woken {
            self.vcpus[*vcpu].state = State::Runs;
        }
        woken
    }

    /// What a vCPU is at that has not ended.
    pub(crate) fn waiting(&self, vcpu: usize) -> Option<(String, Option<Gfn>)> {
        let Vcpu { slice, state, plan, has_worker, .. } = &self.vcpus[vcpu];
        let gfn = match plan.front()? {
            Step::Load(gfn, _) | Step::Store(gfn, ..) | Step::Device(gfn, _) => Some(*gfn),
            Step::Rest(_) => None,
        };
        let by = if *has_worker { " by a worker" } else { "" };
        Some((format!("vCPU {vcpu} of slice{slice} {state:?}{by} at {:?}", plan[0]), gfn))
    }
}
