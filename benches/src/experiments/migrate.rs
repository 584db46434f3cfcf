//! What a vCPU sees of its move to another slice: it looks at its counter without end, and notes the gaps. It moves there
//! and back under load, and before and after that does not move, for comparison. The floor is what no hand-over goes below:
//! the state is read and set, and one round trip.
//!
//! ```text
//!   guest:  |--- stays ---|move|-|move|--|move| ... |move|--- stays ---|power button: it tells its gaps, and what was wrong
//!   judged: |win|win|win| | the largest gap of each |    |win|win|win| |
//! ```
//! The windows in which it stays are as long as a move.

mod floor;

use super::{Setting, cycles_per_ns};
use crate::carrier::Carrier;
use crate::real_vm::{Companion, LIMIT};
use crate::samples::Samples;
use crate::story::{Gap, Story, windows};
use crate::telling_vm::{Shape, Told, Vm};
use anyhow::{Context, Result, ensure};
use microguest::job::now;
use outcome::{Bar, Outcome, Row};
use std::thread::sleep;
use std::time::Duration;
use transport::CarrierKind;
use vmm::control::{Answer, MoveVcpuRequest, Request};
use vmm::interrupts::InterruptBackEnd;
use vmm::machine::{HandoverTimes, Spent};
use vmm::slice::{Interrupts, Memory, RunReport, SliceSpec};

/// The interruption may last so many times the floor; what is aimed at is less.
const BOUND: f64 = 1.5;
const GOAL: f64 = 1.2;
/// Memory that each slice is home of. The guest knows where the second part begins.
const SLICE_BYTES: u64 = 16 << 20;
/// The vCPU that moves.
const MOVER: u32 = 1;
/// A vCPU stays so long between two moves at least, and up to as much longer again.
const STAY: Duration = Duration::from_millis(2);
/// How often the state is read and set, and round trips are measured.
const FLOOR_TIMES: usize = 400;
const TRIP_TIMES: usize = 50;

/// What joins the slices, and how interrupts reach vCPUs.
#[derive(Clone, Copy, Debug)]
struct Setup {
    carrier: Carrier,
    interrupts: Interrupts,
}

const SETUPS: [Setup; 3] = [
    Setup { carrier: Carrier::Shm, interrupts: Interrupts::Ghost },
    Setup { carrier: Carrier::Tcp, interrupts: Interrupts::Ghost },
    Setup { carrier: Carrier::Shm, interrupts: Interrupts::Userspace },
];

impl Setup {
    fn kind(self) -> CarrierKind {
        match self.carrier {
            Carrier::Shm => CarrierKind::Shm,
            Carrier::Tcp => CarrierKind::Tcp,
            Carrier::Rdma => CarrierKind::Rdma,
        }
    }

    fn back_end(self) -> InterruptBackEnd {
        match self.interrupts {
            Interrupts::Userspace => InterruptBackEnd::Userspace,
            Interrupts::Auto | Interrupts::Ghost => InterruptBackEnd::Ghost,
        }
    }

    fn shape(self) -> Shape {
        Shape {
            slices: vec![SliceSpec { vcpus: 1, spare_vcpus: 0, memory: SLICE_BYTES }; 2],
            interrupts: self.interrupts,
            carrier: self.kind(),
            telling: LIMIT,
        }
    }

    fn name(self) -> String {
        let apic = match self.interrupts {
            Interrupts::Userspace => "userspace",
            Interrupts::Auto | Interrupts::Ghost => "ghost",
        };
        format!("{}, {apic}", self.carrier.name())
    }
}

/// How much is done.
#[derive(Clone, Copy, Debug)]
struct Plan {
    moves: usize,
    /// How long the vCPU stays before and after its moves.
    control: Duration,
}

/// Runs the experiment.
///
/// # Errors
/// This machine has no KVM or userfaultfd, or the guest failed.
pub fn run(setting: Setting<'_>) -> Result<Outcome> {
    let plan = if setting.quick {
        Plan { moves: 100, control: Duration::from_millis(500) }
    } else {
        Plan { moves: 1000, control: Duration::from_secs(3) }
    };
    // All of them while there is one thread.
    let companions =
        SETUPS.iter().map(|_| Companion::fork(Memory::Memfd, None)).collect::<Result<Vec<_>>>()?;
    let guest = setting.image.with_file_name("mover");
    ensure!(guest.exists(), "no guest {}: it is built with the microguest", guest.display());
    let mut outcome = Outcome::new("migrate");
    outcome.shown = "p50 us".into();
    outcome.conditions.notes = vec![
        format!(
            "{} moves of one vCPU of two, {} to {} ms apart; the other one works; they interrupt each other and write one page",
            plan.moves,
            STAY.as_millis(),
            2 * STAY.as_millis()
        ),
        "floor: the state read and set, of a machine of its own, and a round trip, asleep".into(),
    ];
    for (setup, companion) in SETUPS.into_iter().zip(companions) {
        let vm = Vm::start(&guest, setup.shape(), Some(companion))
            .with_context(|| format!("start a VM ({})", setup.name()))?;
        let times = move_about(&vm, plan).with_context(|| setup.name())?;
        let told = vm.end().with_context(|| setup.name())?;
        judge(setup, &times, &told, &mut outcome)?;
    }
    Ok(outcome)
}

/// When what was done, by this host's counter.
#[derive(Debug)]
struct Times {
    controls: [(u64, u64); 2],
    moves: Vec<(u64, u64)>,
}

fn move_about(vm: &Vm, plan: Plan) -> Result<Times> {
    let control = || {
        let begin = now();
        sleep(plan.control);
        (begin, now())
    };
    let before = control();
    let mut seed = 7u32;
    let mut moves = Vec::with_capacity(plan.moves);
    for slice in [0, 1].into_iter().cycle().take(plan.moves) {
        let request = Request::MoveVcpu(MoveVcpuRequest { vcpu: MOVER, slice });
        let (answer, times) = vm.ask(&request).context("move a vCPU")?;
        ensure!(matches!(answer, Answer::Done(_)), "a move is answered by {answer:?}");
        moves.push(times);
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        sleep(STAY + STAY * (seed >> 24) / 256);
    }
    Ok(Times { controls: [before, control()], moves })
}

/// The largest gaps of all windows, in nanoseconds.
struct Found {
    /// Of moves that met the vCPU looking at its counter.
    moves: Samples,
    /// Of all moves, with what the vCPU waits for besides.
    all: Samples,
    /// Of windows without a move.
    control: Samples,
    control_all: Samples,
    /// Moves that met it elsewhere.
    elsewhere: usize,
    /// From the request to its answer.
    took: Samples,
}

fn find(times: &Times, told: &Told, story: &Story, floor_ns: f64) -> Result<Found> {
    let ahead = story.ahead(&told.arrived)?;
    let guest = |(begin, end): (u64, u64)| (begin.wrapping_add(ahead), end.wrapping_add(ahead));
    let ns = |ticks: u64| float(ticks) / cycles_per_ns();
    let largest = |window, pure: bool| {
        let of = |gap: &Gap| gap.is_pure || !pure;
        story.largest(window, of).map_or(0.0, ns)
    };
    let moves: Vec<f64> = times.moves.iter().map(|time| largest(guest(*time), true)).collect();
    let all = times.moves.iter().map(|time| largest(guest(*time), false)).collect();
    let took = Samples::new(times.moves.iter().map(|(begin, end)| ns(end - begin)).collect());
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some ms in ticks")]
    let length = (took.percentile(50) * cycles_per_ns()) as u64;
    let (mut control, mut control_all) = (Vec::new(), Vec::new());
    for time in times.controls {
        for window in windows(guest(time), length)? {
            control.push(largest(window, true));
            control_all.push(largest(window, false));
        }
    }
    // No move is shorter than reading and setting the state.
    let (seen, missed): (Vec<f64>, Vec<f64>) = moves.into_iter().partition(|gap| *gap >= floor_ns);
    Ok(Found {
        moves: Samples::new(seen),
        all: Samples::new(all),
        control: Samples::new(control),
        control_all: Samples::new(control_all),
        elsewhere: missed.len(),
        took,
    })
}

fn judge(setup: Setup, times: &Times, told: &Told, outcome: &mut Outcome) -> Result<()> {
    let name = setup.name();
    let [get, set] = floor::get_and_set(setup.back_end(), FLOOR_TIMES)?;
    let trip = floor::round_trip(setup.carrier, TRIP_TIMES)?;
    let parts = [("get", &get), ("set", &set), ("one round trip", &trip)];
    let story = Story::read(&told.text)?;
    let found = find(times, told, &story, get.percentile(50) + set.percentile(50))?;
    for (what, samples) in [
        ("interruption by a move", &found.moves),
        ("the same, no move", &found.control),
        ("with accesses, a move", &found.all),
        ("with accesses, no move", &found.control_all),
        ("request to answer", &found.took),
    ]
    .into_iter()
    .chain(parts.iter().map(|(what, samples)| (*what, *samples)))
    {
        outcome.rows.push(row(format!("{name}: {what}"), samples));
    }
    let floor: f64 = parts.iter().map(|(_, samples)| samples.percentile(50)).sum();
    steps(&name, &told.report, &mut outcome.rows);
    let ratio = found.moves.percentile(50) / floor;
    let goal = if ratio <= GOAL { "reached" } else { "not reached" };
    outcome.conditions.notes.push(format!(
        "{name}: floor {:.0} us, goal of {GOAL} {goal}; {} moves met the vCPU in an access, not in its loop; vectors of {} bits",
        floor / 1000.0,
        found.elsewhere,
        128 << story.done("level of vectors"),
    ));
    let done: Vec<_> = story.done.iter().map(|(what, count)| format!("{count} {what}")).collect();
    outcome.conditions.notes.push(format!("{name}: {}", done.join(", ")));
    let mut bar = |what: &str, found, bound, at_most| {
        outcome.bars.push(Bar { what: format!("{name}: {what}"), found, bound, at_most });
    };
    bar("interruption / floor, medians", ratio, BOUND, true);
    for (what, count) in &story.wrong {
        bar(what, float(*count), 0.0, true);
    }
    // What looks at nothing finds nothing.
    for what in ["timers", "interrupts to vCPU 0", "interrupts to vCPU 1"] {
        bar(what, float(story.done(what)), float(u64::try_from(times.moves.len())?) / 4.0, false);
    }
    Ok(())
}

fn row(name: String, samples: &Samples) -> Row {
    let summary = samples.summary();
    let us = |what: &str, time: f64| (what.to_owned(), time / 1000.0);
    let count = ("count".to_owned(), float(u64::try_from(summary.count).unwrap_or(u64::MAX)));
    let figures = vec![us("p50 us", summary.p50), us("p99 us", summary.p99), count];
    Row { name, figures }
}

/// Means of the steps. Those of the source are by the slice that the vCPU leaves.
fn steps(name: &str, report: &RunReport, rows: &mut Vec<Row>) {
    type Step = (&'static str, bool, fn(&HandoverTimes) -> Spent);
    const STEPS: [Step; 12] = [
        ("stop ordered to out of the guest", true, |times| times.leave),
        ("last exit finished", true, |times| times.settle),
        ("state read", true, |times| times.save),
        ("pending set aside", true, |times| times.hold),
        ("collected by the worker", true, |times| times.collect),
        ("encoded", true, |times| times.encode),
        ("sent to flip heard, source", true, |times| times.away),
        ("decoded", false, |times| times.decode),
        ("ghost ended", false, |times| times.end_ghost),
        ("state set", false, |times| times.restore),
        ("installed to flip heard, target", false, |times| times.flip),
        ("flip heard to runs", false, |times| times.run),
    ];
    for (what, of_source, step) in STEPS {
        let mean = |slice: usize| {
            let times = report.slices.get(slice).map(|slice| step(&slice.handovers));
            times.map_or(0.0, |Spent { count, ns }| float(ns) / float(count.max(1)) / 1000.0)
        };
        let [first, second] = if of_source { [mean(0), mean(1)] } else { [mean(1), mean(0)] };
        let figures =
            vec![("mean us, 0 to 1".to_owned(), first), ("mean us, 1 to 0".to_owned(), second)];
        rows.push(Row { name: format!("{name}: {what}"), figures });
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn float(number: u64) -> f64 {
    number as f64
}
