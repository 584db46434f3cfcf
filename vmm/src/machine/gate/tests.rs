//! A gate with threads for vCPUs.

use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::thread::{Scope, scope, sleep, spawn};

const LIMIT: Duration = Duration::from_secs(60);
const ONE: VcpuId = VcpuId(1);
const TWO: VcpuId = VcpuId(2);

/// A vCPU that does nothing but take offsets.
struct Taker<F>(F);

impl<F: FnMut(u64)> Participant for Taker<F> {
    type Error = ();

    fn settle(&mut self) -> Result<(), ()> {
        Ok(())
    }

    fn run(&mut self, task: Task) -> Result<(), ()> {
        let Task::SetOffset(offset) = task else { panic!("nobody asked for {task:?}") };
        (self.0)(offset);
        Ok(())
    }
}

fn nothing() -> Taker<impl FnMut(u64)> {
    Taker(|_| panic!("nothing was set"))
}

#[test]
fn vcpus_never_run_with_different_offsets() {
    let (gate, over) = (Gate::default(), AtomicBool::new(false));
    let offsets = [(); 3].map(|()| AtomicU64::new(0));
    let torn = AtomicUsize::new(0);
    scope(|threads| {
        for (id, own) in (0..).map(VcpuId).zip(&offsets) {
            let (gate, over, offsets, torn) = (&gate, &over, &offsets, &torn);
            assert_eq!(gate.join(id), None);
            threads.spawn(move || {
                let mut seen = 0;
                while !over.load(SeqCst) {
                    gate.pass(id, &mut Taker(|offset| own.store(offset, SeqCst))).unwrap();
                    // In the guest: whoever else is there has what this one has, or this one left already.
                    let mine = own.load(SeqCst);
                    torn.fetch_add(usize::from(mine < seen), SeqCst);
                    seen = offsets.iter().map(|other| other.load(SeqCst)).max().unwrap_or(0);
                    torn.fetch_add(
                        usize::from(
                            seen > mine && !gate.is_shut.load(SeqCst) && own.load(SeqCst) < seen,
                        ),
                        SeqCst,
                    );
                }
            });
        }
        for offset in 1..=200 {
            assert!(gate.step(offset, LIMIT, || {}, || {}));
            assert!(offsets.iter().all(|own| own.load(SeqCst) == offset));
        }
        over.store(true, SeqCst);
    });
    assert_eq!(torn.into_inner(), 0);
}

#[test]
fn vcpu_that_does_not_come_keeps_the_others_for_the_limit_only() {
    let gate = Arc::new(Gate::default());
    let passed = Arc::new(AtomicBool::new(false));
    let (own, done) = (Arc::clone(&gate), Arc::clone(&passed));
    // One of the two is in the guest all the time.
    for id in [ONE, TWO] {
        assert_eq!(gate.join(id), None);
    }
    let one = spawn(move || {
        while !done.load(SeqCst) {
            own.pass(ONE, &mut nothing()).unwrap();
            sleep(Duration::from_micros(50));
        }
    });
    assert!(!gate.step(7, Duration::from_millis(20), || {}, || panic!("published")));
    passed.store(true, SeqCst);
    one.join().unwrap();
}

#[test]
fn slice_without_vcpus_steps_at_once() {
    assert!(Gate::default().step(7, Duration::ZERO, || {}, || {}));
}

#[test]
fn vcpu_that_starts_later_has_the_offset_of_the_others() {
    let gate = Gate::default();
    assert!(gate.step(7, Duration::ZERO, || {}, || {}));
    assert_eq!(gate.join(ONE), Some(7));
    gate.leave(ONE);
    assert!(gate.step(8, Duration::ZERO, || {}, || {}), "nobody is left");
}

/// One that starts while the others are brought out must not stand for one that is still in the guest.
#[test]
fn vcpu_that_starts_during_a_step_waits_for_its_end() {
    let (gate, set) = (Gate::default(), AtomicU64::new(0));
    assert_eq!(gate.join(ONE), None);
    scope(|threads| {
        let (gate, set) = (&gate, &set);
        let mut late = None;
        let stepped = gate.step(
            7,
            Duration::from_millis(50),
            || {
                late = Some(threads.spawn(|| {
                    assert_eq!(gate.join(TWO), None);
                    gate.pass(TWO, &mut Taker(|offset| set.store(offset, SeqCst))).unwrap();
                }));
            },
            || panic!("published"),
        );
        assert!(!stepped, "the first is still in the guest");
        late.unwrap().join().unwrap();
    });
    assert_eq!(set.into_inner(), 0);
}

/// A vCPU that counts what it is asked.
#[derive(Default)]
struct Counting {
    settled: AtomicUsize,
    saved: AtomicUsize,
    entered: AtomicUsize,
    offset: AtomicUsize,
}

impl Participant for &Counting {
    type Error = ();

    fn settle(&mut self) -> Result<(), ()> {
        self.settled.fetch_add(1, SeqCst);
        Ok(())
    }

    fn run(&mut self, task: Task) -> Result<(), ()> {
        match task {
            Task::Save => {
                self.saved.fetch_add(1, SeqCst);
            }
            Task::SetOffset(offset) => {
                self.offset.store(usize::try_from(offset).unwrap(), SeqCst);
            }
        }
        Ok(())
    }
}

/// A thread for each vCPU, which passes the gate over and over until it is over.
fn enter_again_and_again<'s>(
    threads: &'s Scope<'s, '_>,
    (gate, over): (&'s Gate, &'s AtomicBool),
    vcpus: &'s [Counting],
) {
    for (id, mut vcpu) in (0..).map(VcpuId).zip(vcpus) {
        assert_eq!(gate.join(id), None);
        threads.spawn(move || {
            while !over.load(SeqCst) {
                gate.pass(id, &mut vcpu).unwrap();
                vcpu.entered.fetch_add(1, SeqCst);
            }
        });
    }
}

#[test]
fn vcpus_at_rest_settle_first_save_as_often_as_asked_and_do_not_enter() {
    let (gate, over) = (Gate::default(), AtomicBool::new(false));
    let vcpus = [(); 3].map(|()| Counting::default());
    let count = |counter: fn(&Counting) -> &AtomicUsize| {
        vcpus.iter().map(|vcpu| counter(vcpu).load(SeqCst)).collect::<Vec<_>>()
    };
    scope(|threads| {
        enter_again_and_again(threads, (&gate, &over), &vcpus);
        for round in 1..=100 {
            gate.rest(LIMIT, || {}).unwrap();
            assert_eq!(count(|vcpu| &vcpu.settled), [round; 3]);
            let entered = count(|vcpu| &vcpu.entered);
            gate.save();
            gate.save();
            assert_eq!(count(|vcpu| &vcpu.saved), [round * 2; 3]);
            let offset = u64::try_from(round).unwrap();
            assert!(gate.step(offset, Duration::ZERO, || panic!("rung"), || {}));
            assert_eq!(count(|vcpu| &vcpu.offset), [round; 3]);
            assert_eq!(gate.rest(Duration::ZERO, || {}), Err(Refused::Busy));
            assert_eq!(count(|vcpu| &vcpu.entered), entered);
            gate.open_up();
        }
        over.store(true, SeqCst);
    });
}

#[test]
fn vcpu_that_does_not_come_to_rest_is_named() {
    let gate = Gate::default();
    assert_eq!(gate.join(ONE), None);
    assert_eq!(gate.join(TWO), None);
    scope(|threads| {
        let gate = &gate;
        let come = move || {
            threads.spawn(|| gate.pass(ONE, &mut nothing()).unwrap());
        };
        let refused = gate.rest(Duration::from_millis(300), come).unwrap_err();
        assert!(matches!(&refused, Refused::Missing(ids) if ids.contains(&TWO)), "{refused:?}");
    });
    gate.leave(TWO);
    gate.leave(ONE);
    gate.rest(Duration::ZERO, || {}).unwrap();
}

#[test]
fn machine_that_stops_frees_those_at_rest_and_rests_no_more() {
    let gate = Gate::default();
    assert_eq!(gate.join(ONE), None);
    scope(|threads| {
        let come = || drop(threads.spawn(|| gate.pass(ONE, &mut nothing()).unwrap()));
        gate.rest(LIMIT, come).unwrap();
        gate.end();
    });
    gate.save();
    assert_eq!(gate.rest(LIMIT, || {}), Err(Refused::Over));
    assert!(!gate.step(1, LIMIT, || {}, || {}));
}

/// The rest may end at any moment of a step: the step is whole, and all go on.
#[test]
fn rest_that_ends_during_a_step_lets_all_go_on_with_the_offset() {
    let (gate, over) = (Gate::default(), AtomicBool::new(false));
    let vcpus = [(); 2].map(|()| Counting::default());
    scope(|threads| {
        enter_again_and_again(threads, (&gate, &over), &vcpus);
        let gate = &gate;
        for offset in 1..=200_usize {
            gate.rest(LIMIT, || {}).unwrap();
            let step = u64::try_from(offset).unwrap();
            let stepping = threads.spawn(move || gate.step(step, LIMIT, || {}, || {}));
            gate.save();
            gate.open_up();
            assert!(stepping.join().unwrap());
            assert!(vcpus.iter().all(|vcpu| vcpu.offset.load(SeqCst) == offset));
        }
        over.store(true, SeqCst);
    });
}

/// One that joins a machine at rest is at rest as well, and is saved with the others.
#[test]
fn vcpu_that_starts_at_rest_waits_with_the_others() {
    let (gate, vcpu) = (Gate::default(), Counting::default());
    gate.rest(LIMIT, || {}).unwrap();
    assert_eq!(gate.join(ONE), None);
    scope(|threads| {
        threads.spawn(|| gate.pass(ONE, &mut &vcpu).unwrap());
        while vcpu.saved.load(SeqCst) == 0 {
            gate.save();
        }
        gate.open_up();
    });
    assert_eq!(vcpu.settled.into_inner(), 1);
}

/// It has joined with the old offset, and nobody gives it the new one before it is there.
#[test]
fn step_at_rest_waits_for_a_vcpu_that_has_joined_and_is_not_there() {
    let (gate, vcpu) = (Gate::default(), Counting::default());
    gate.rest(LIMIT, || {}).unwrap();
    assert_eq!(gate.join(ONE), None);
    assert!(!gate.step(7, Duration::from_millis(20), || {}, || panic!("published")));
    scope(|threads| {
        threads.spawn(|| gate.pass(ONE, &mut &vcpu).unwrap());
        assert!(gate.step(7, LIMIT, || {}, || {}));
        gate.open_up();
    });
    assert_eq!(vcpu.offset.into_inner(), 7);
}

#[test]
fn work_aside_is_done_while_nobody_is_in_the_guest_and_changes_nothing() {
    let (gate, over) = (Gate::default(), AtomicBool::new(false));
    let (inside, clashes) = (AtomicU64::new(0), AtomicU64::new(0));
    scope(|threads| {
        for id in [ONE, TWO] {
            assert_eq!(gate.join(id), None);
            let (gate, over, inside) = (&gate, &over, &inside);
            threads.spawn(move || {
                while !over.load(SeqCst) {
                    gate.pass(id, &mut nothing()).unwrap();
                    inside.fetch_add(1, SeqCst);
                    inside.fetch_sub(1, SeqCst);
                }
                gate.leave(id);
            });
        }
        for _ in 0..200 {
            let work = || clashes.fetch_add(inside.load(SeqCst), SeqCst);
            gate.aside(LIMIT, || {}, work).unwrap();
        }
        over.store(true, SeqCst);
    });
    assert_eq!(clashes.into_inner(), 0);
    assert_eq!(gate.join(ONE), None);
    let late = gate.aside(Duration::ZERO, || {}, || panic!("a vCPU is missing"));
    assert_eq!(late, Err::<(), _>(Refused::Missing(vec![ONE])));
    gate.end();
    assert_eq!(gate.aside(LIMIT, || {}, || panic!("it is over")), Err::<(), _>(Refused::Over));
}

#[test]
fn others_run_while_one_is_waited_for_several_times() {
    let gate = Gate::default();
    let (over, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    for id in [ONE, TWO] {
        assert_eq!(gate.join(id), None);
    }
    scope(|threads| {
        threads.spawn(|| {
            while !over.load(SeqCst) {
                gate.pass(ONE, &mut nothing()).unwrap();
                rounds.fetch_add(1, SeqCst);
            }
        });
        threads.spawn(|| {
            let until = |holds: &dyn Fn() -> bool| {
                while !holds() {
                    thread::yield_now();
                }
            };
            // It is with a slow device until the other one has been in the guest between two tries.
            until(&|| gate.is_shut.load(SeqCst));
            let before = rounds.load(SeqCst);
            until(&|| !gate.is_shut.load(SeqCst));
            until(&|| rounds.load(SeqCst) > before);
            while !over.load(SeqCst) {
                gate.pass(TWO, &mut nothing()).unwrap();
            }
        });
        assert_eq!(gate.aside(LIMIT, || {}, || 7), Ok(7));
        over.store(true, SeqCst);
    });
}
