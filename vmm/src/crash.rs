//! A panic of any thread ends the process, from outside exactly as `SIGKILL` does.
//!
//! Nothing is unwound, dropped or flushed, and no peer is told: a thread that unwound would release what others
//! still need (the userfaultfd over guest memory, before all), and what is known after a panic is not to be
//! trusted with a disk. The peers find this slice lost by its closed connections, or by its lease.

use crate::named::slice;
use checkpoint::{Point, Points};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpid, kill_process};
use std::fs;
use std::panic::{PanicHookInfo, set_hook};
use std::path::PathBuf;
use std::process::abort;
use std::sync::OnceLock;
use std::thread;
use wire::SliceId;

/// How long the line may wait for a reader of standard error that has stopped.
const LINE_LIMIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Bytes of the line; a pipe that takes any takes so many at once (`PIPE_BUF`).
const LINE_BYTES: usize = 4096;

/// How a line becomes what is written, if not as it is.
static FORM: OnceLock<fn(&str) -> String> = OnceLock::new();
static PLANNED: OnceLock<String> = OnceLock::new();
static PLANNED_POINT: OnceLock<Point> = OnceLock::new();
static PLANNED_HANG: OnceLock<PathBuf> = OnceLock::new();

/// Kinds of memory that a core has (core(5)): the first page of each file that is a program, and no memory.
const CORE_FILTER: &str = "0x10";

/// From now on a panic ends the process, after one line that names slice and thread. What ends it otherwise (an allocation that fails, a
/// stack that overflows) writes a core without memory: guest memory would hold the connections open for as long as it takes to write.
pub fn end_on_panic() {
    // A kernel without it writes no cores.
    let _ = fs::write("/proc/self/coredump_filter", CORE_FILTER);
    set_hook(Box::new(|info| end(info)));
}

/// From now on lines have this form. It is called after a panic: it must not wait for anything.
pub fn write_lines_as(form: fn(&str) -> String) {
    // Only the first form counts.
    let _ = FORM.set(form);
}

/// Has the thread of this name panic where it next looks ([`point`]): for tests of what follows.
pub fn plan_panic(thread: String) {
    // Only the first plan counts.
    let _ = PLANNED.set(thread);
}

/// Has the memory engine stand still for ever once there is this file: for tests of what follows.
pub fn plan_hang(file: PathBuf) {
    // Only the first plan counts.
    let _ = PLANNED_HANG.set(file);
}

/// Has this process be killed when a checkpoint that it writes has come so far: for tests of what is left then.
pub fn plan_kill(point: Point) {
    // Only the first plan counts.
    let _ = PLANNED_POINT.set(point);
}

/// Kills this process where that was planned.
#[derive(Debug)]
pub(crate) struct PlannedKill;

impl Points for PlannedKill {
    fn reach(&self, point: Point) {
        if PLANNED_POINT.get() == Some(&point) {
            say(format!("killed at {}, as --test-kill asks for", point.name()));
            kill();
        }
    }
}

/// Stands still if that was planned: the memory engine's thread.
pub(crate) fn hang() {
    while PLANNED_HANG.get().is_some_and(|file| file.exists()) {
        thread::park();
    }
}

/// Panics if that was planned for this thread.
pub(crate) fn point() {
    let Some(planned) = PLANNED.get() else { return };
    assert!(thread::current().name() != Some(planned), "as --test-panic asks for");
}

fn end(info: &PanicHookInfo<'_>) -> ! {
    say(line(slice(), thread::current().name(), info));
    kill()
}

fn kill() -> ! {
    // It cannot fail but for the first process of a container, which nothing from inside may kill so.
    let _ = kill_process(getpid(), Signal::KILL);
    abort()
}

fn line(slice: Option<SliceId>, thread: Option<&str>, info: &PanicHookInfo<'_>) -> String {
    let slice = slice.map_or_else(|| "no slice yet".into(), |slice| slice.to_string());
    let thread = thread.unwrap_or("without a name");
    let place = info.location().map(|at| format!(" at {at}")).unwrap_or_default();
    let cause = info.payload_as_str().unwrap_or("no cause given").replace(['\n', '\r'], " ");
    format!("{slice}: thread {thread} panicked{place}: {cause}")
}

/// What is written of a line: all that fits.
fn written(mut line: String, form: Option<fn(&str) -> String>) -> String {
    loop {
        let whole = form.map_or_else(|| format!("tessera: {line}\n"), |form| form(&line));
        if whole.len() <= LINE_BYTES || line.is_empty() {
            return whole;
        }
        // Signs of a form, such as those before a quotation mark, take more room than what is too much.
        line.truncate(
            line.floor_char_boundary(line.len() - (whole.len() - LINE_BYTES).min(line.len())),
        );
    }
}

/// Writes to standard error past its lock, which another thread may hold for ever.
fn say(line: String) {
    let line = written(line, FORM.get().copied());
    let stderr = rustix::stdio::stderr();
    let ready = poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&LINE_LIMIT));
    if ready == Ok(1) {
        // Nobody is left to be told that this failed.
        let _ = rustix::io::write(stderr, line.as_bytes());
    }
}
