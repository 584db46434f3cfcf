//! Whether pages that devices use travel while a vCPU far from the disk reads and writes.
//!
//! ```text
//!   fio started ─> start ─ marks anew ─> warm-up ─ counters ─> traffic ─ counters ─> fio still has some to do ─> end
//! ```
//! fio runs by itself with buffers that stay. Nobody talks to the guest meanwhile: how much has passed is seen
//! at the process on the disk's host (`/proc/PID/io`), and the counters come from the control sockets.
//!
//! Every page that a driver names to the disk of the load from the warm-up on counts: rings, descriptor tables,
//! payload. Pages that have only headers and status of requests are told apart: Linux keeps these in its own
//! description of a request, in which any vCPU may look. Pages of the system's disk do not count: what vCPU 0 reads from
//! there, programs for one, is payload first, and then whoever runs the program needs it. Nor do those of the boot: by
//! far most of them the guest uses for something else now, and a VM in which nothing is read or written at all moves
//! some every second. That is looked at first.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lab::Command;
use outcome::{Bar, Outcome, Row};

use super::fio::{Measured, long_line};
use super::plan::{Disks, Mode};
use crate::bench::devices::{Counters, Setup};
use crate::bench::rig::count;

/// What a long load does, in MiB.
#[derive(Clone, Copy, Debug)]
struct Amount {
    /// Before the count, twice: until the program's own pages have come, and once more with the marks anew. Each
    /// MiB is a request: the buffers and all places of the rings are in use again then.
    warm_up: u64,
    counted: u64,
    /// What fio still has to do at the end of the count, at least.
    rest: u64,
}

impl Amount {
    /// With delegated rings.
    fn bypassed(mib: u64) -> Self {
        Self { warm_up: 24, counted: mib, rest: (mib / 8).max(16) }
    }

    /// With coherent rings, which shows that the counter counts. Each of these takes seconds.
    const COHERENT: Self = Self { warm_up: 2, counted: 4, rest: 4 };

    fn all(self) -> u64 {
        2 * self.warm_up + self.counted + self.rest
    }
}

/// How long nothing is done, for comparison.
const IDLE: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(500);
const QUIET: Duration = Duration::from_secs(15);
/// Most time for a MiB.
const MIB_LIMIT: Duration = Duration::from_secs(30);
const LOOK_LIMIT: Duration = Duration::from_secs(60);
const END_LIMIT: u64 = 600;
/// Whenever a program has closed a disk that it may have written, udev looks what is on it: some MiB read by vCPU 0,
/// into memory that it soon uses for something else.
const NO_PROBES: &str = "udevadm settle --timeout=60; udevadm control --stop-exec-queue";
const REPORT: &str = "/run/tessera-long.json";

/// What happened between two looks at the counters.
#[derive(Clone, Debug, PartialEq)]
struct Change {
    seconds: f64,
    /// Of each slice.
    moves: Vec<u64>,
    pages: Vec<u64>,
    /// Of pages with headers and status of requests, and no data.
    frames: Vec<u64>,
    /// Pages of any kind that came or went.
    all: Vec<u64>,
}

impl Change {
    fn between(before: &[Counters], after: &[Counters], time: Duration) -> Self {
        let each = |of: &dyn Fn(&Counters) -> u64| {
            let pairs = before.iter().zip(after);
            pairs.map(|(before, after)| of(after).saturating_sub(of(before))).collect()
        };
        Self {
            seconds: time.as_secs_f64(),
            moves: each(&|slice| slice.memory.device_page_moves),
            pages: after.iter().map(|slice| slice.memory.device_pages).collect(),
            frames: each(&|slice| slice.memory.device_frame_page_moves),
            all: each(&|slice| slice.memory.pages_in + slice.memory.pages_out),
        }
    }

    /// A row for each slice.
    fn rows(&self, name: &str, mib: f64) -> Vec<Row> {
        (0..self.moves.len())
            .map(|slice| Row {
                name: format!("{name}, slice {slice}"),
                figures: vec![
                    ("MiB".to_owned(), mib),
                    ("seconds".to_owned(), self.seconds),
                    ("moves of device pages".to_owned(), count(self.moves[slice])),
                    ("device pages".to_owned(), count(self.pages[slice])),
                    ("moves of headers and status".to_owned(), count(self.frames[slice])),
                    ("moves of all pages".to_owned(), count(self.all[slice])),
                ],
            })
            .collect()
    }

    /// With delegated rings no page with rings or payload may move, at any slice.
    fn bars(&self, mib: f64) -> Vec<Bar> {
        let bar = |(slice, moves): (usize, &u64)| Bar {
            what: format!(
                "slice {slice}: moves of pages with rings or payload, in {mib:.0} MiB of bypassed traffic"
            ),
            found: count(*moves),
            bound: 0.0,
            at_most: true,
        };
        self.moves.iter().enumerate().map(bar).collect()
    }
}

/// Looks at the idle VM, then at bypassed traffic of so many MiB, then at a little with coherent rings.
pub(crate) fn measure(
    setup: &Setup<'_>,
    disks: &Disks,
    mib: u64,
    outcome: &mut Outcome,
) -> Result<()> {
    setup.guest.ssh(NO_PROBES).context("have udev leave the disks alone")?;
    setup.rig.say("looking at an idle VM");
    let (before, start) = (Counters::of(setup)?, Instant::now());
    thread::sleep(IDLE);
    let after = Counters::of(setup)?;
    outcome.rows.extend(Change::between(&before, &after, start.elapsed()).rows("idle", 0.0));

    let (change, passed) = traffic(setup, disks, Mode::Bypass, Amount::bypassed(mib))?;
    outcome.rows.extend(change.rows("bypassed traffic", passed));
    outcome.bars.extend(change.bars(passed));
    match traffic(setup, disks, Mode::Coherent, Amount::COHERENT) {
        Ok((change, passed)) => outcome.rows.extend(change.rows("coherent traffic", passed)),
        Err(error) => {
            setup.rig.check()?;
            outcome.conditions.notes.push(format!("coherent traffic: {error:#}"));
        }
    }
    Ok(())
}

/// What changed in the middle of a long load from the remote vCPU, and how many MiB that was.
fn traffic(setup: &Setup<'_>, disks: &Disks, mode: Mode, amount: Amount) -> Result<(Change, f64)> {
    let mib = amount.all();
    let process = Counters::of(setup)?.first().context("no slice has counters")?.process;
    let from = passed(setup, process)?;
    let line = long_line(disks.of(mode), mode.cpu(), mib, REPORT);
    setup.guest.ssh(&line).with_context(|| format!("start a long load with {mode} rings"))?;
    reach(setup, process, from, amount.warm_up, mode)?;
    Counters::forgetting(setup, disks.device(mode))
        .context("set the marks of device pages anew")?;
    let anew = passed(setup, process)?;
    reach(setup, process, anew, amount.warm_up, mode)?;
    let start = Instant::now();
    // The counters span the traffic that is counted, and a little more on either side.
    let before = Counters::of(setup)?;
    let counted = passed(setup, process)?;
    reach(setup, process, counted, amount.counted, mode)?;
    let last = passed(setup, process)?;
    let after = Counters::of(setup)?;
    let change = Change::between(&before, &after, start.elapsed());
    let all = passed(setup, process)? - from;
    ensure!(
        all < mib << 20,
        "the load had ended ({all} bytes) before its end was looked at; a host is too slow for this"
    );
    end(setup, mode)?;
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    Ok((change, (last - counted) as f64 / f64::from(1 << 20)))
}

/// Bytes that the process on the disk's host has read and written so far (proc_pid_io(5)).
fn passed(setup: &Setup<'_>, process: u32) -> Result<u64> {
    let words = ["cat".to_owned(), format!("/proc/{process}/io")];
    let said = setup.host(1)?.output(&Command::new(words), LOOK_LIMIT)?;
    bytes(&said).with_context(|| format!("no counts of bytes: {said}"))
}

fn bytes(said: &str) -> Option<u64> {
    let of = |name: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(name));
        line?.trim().parse::<u64>().ok()
    };
    Some(of("read_bytes:")? + of("write_bytes:")?)
}

/// Waits until so many MiB have passed since `from`.
fn reach(setup: &Setup<'_>, process: u32, from: u64, mib: u64, mode: Mode) -> Result<()> {
    let most = MIB_LIMIT * u32::try_from(mib)?;
    let until = Instant::now() + most;
    loop {
        let now = passed(setup, process)?.saturating_sub(from) >> 20;
        if now >= mib {
            return Ok(());
        }
        setup.rig.check()?;
        setup.rig.progress.say_if_quiet(QUIET, || format!("{mode} traffic: {now} of {mib} MiB"));
        if Instant::now() > until {
            bail!(
                "{now} of {mib} MiB within {most:?}; a host's file system that is not asked directly \
                 (O_DIRECT) does not count: is the image on a tmpfs?"
            );
        }
        thread::sleep(POLL);
    }
}

/// Waits for the end of the load and looks at its report.
fn end(setup: &Setup<'_>, mode: Mode) -> Result<()> {
    let line = format!(
        "for i in $(seq {END_LIMIT}); do pgrep -x fio >/dev/null || break; sleep 1; done; cat {REPORT}"
    );
    let said = setup.guest.ssh_within(&line, Duration::from_secs(END_LIMIT + 300))?;
    let found = Measured::read(&said)?;
    setup.rig.say(&format!(
        "{mode} traffic: {} MiB in all, {:.2} MB/s by the guest's clock",
        found.bytes >> 20,
        found.bandwidth / 1e6
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn counters(moves: u64, pages_in: u64) -> Counters {
        let memory = json!({"device_pages": 9, "device_page_moves": moves,
            "device_frame_page_moves": 0, "pages_in": pages_in,
            "pages_out": 1, "more": {}});
        serde_json::from_value(json!({"slice": 0, "process": 7, "memory": memory})).unwrap()
    }

    #[test]
    fn change_is_what_came_to_each_slice_since() {
        let before = [counters(5, 10), counters(0, 3)];
        let after = [counters(5, 12), counters(2, 3)];
        let change = Change::between(&before, &after, Duration::from_secs(2));

        assert_eq!((&change.moves[..], &change.all[..]), (&[0, 2][..], &[2, 0][..]));
        let rows = change.rows("x", 1.0);
        assert_eq!(rows[1].figures[2], ("moves of device pages".to_owned(), 2.0));
    }

    #[test]
    fn one_move_of_a_page_with_rings_or_payload_misses_the_bar_of_its_slice() {
        let frames = |moves| {
            let mut slice = counters(moves, 10);
            slice.memory.device_frame_page_moves = 100;
            slice
        };
        let before = [counters(5, 10), counters(7, 10)];
        // Headers and status may travel, and so may all other pages.
        let after = [frames(5), frames(8)];
        let bars = Change::between(&before, &after, Duration::from_secs(1)).bars(64.0);

        assert_eq!(bars.iter().map(Bar::holds).collect::<Vec<_>>(), [true, false]);
        assert!(bars[1].what.starts_with("slice 1: ") && bars[1].found == 1.0);
        let many = Change::between(&[counters(0, 0)], &[counters(u64::MAX, 0)], Duration::ZERO);
        assert!(!many.bars(1.0)[0].holds());
    }

    #[test]
    fn counters_that_went_back_are_no_moves() {
        let change = Change::between(&[counters(5, 9)], &[counters(3, 2)], Duration::ZERO);

        assert_eq!((change.moves, change.all), (vec![0], vec![0]));
    }

    #[test]
    fn long_load_goes_on_after_what_is_counted() {
        for mib in [1, 64, 1024] {
            let amount = Amount::bypassed(mib);
            assert!(amount.all() >= 2 * amount.warm_up + mib + 16);
            assert!(amount.rest * 8 >= mib);
        }
    }

    #[test]
    fn bytes_of_a_process_are_reads_and_writes_of_storage() {
        let said = "rchar: 1\nwchar: 2\nsyscr: 3\nread_bytes: 4096\nwrite_bytes: 8192\n\
                    cancelled_write_bytes: 5\n";

        assert_eq!(bytes(said), Some(12288));
        assert_eq!(bytes("rchar: 1\n"), None);
    }
}
