//! What happens when a thread of this process is refused guest memory.
//!
//! The signal is raised by the very load or store that was refused, at a place where the thread holds no
//! lock of the allocator, of a channel or of a device that the engine needs. So the handler may do
//! more than is usual in one: it asks the engine, waits, and returns to try the access again.
#![expect(unsafe_code, reason = "a signal handler")]
// UNSAFETY: the C library's signal calls take raw pointers to plain structures.

use dsm::{GuestRam, Handle};
use std::mem::zeroed;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::{Arc, Once, OnceLock, PoisonError, RwLock};
use std::thread::sleep;
use std::time::Duration;
use wire::Gfn;

/// How long to wait for the engine's answer before asking again; one that is busy takes milliseconds.
const LIMIT: Duration = Duration::from_secs(10);
/// Between two tries: what makes the mapping refuse an access takes about that long.
const PAUSE: Duration = Duration::from_micros(50);

/// One block of guest memory.
#[derive(Debug)]
struct Block {
    host: Range<usize>,
    /// First guest-physical address.
    guest: u64,
}

#[derive(Debug)]
struct Guarded {
    blocks: Vec<Block>,
    handle: Handle,
    /// Keeps the mapping, so that no other memory gets these addresses.
    _ram: Arc<GuestRam>,
}

impl Guarded {
    fn frame(&self, address: usize) -> Option<Gfn> {
        let block = self.blocks.iter().find(|block| block.host.contains(&address))?;
        let offset = u64::try_from(address - block.host.start).ok()?;
        Some(Gfn((block.guest + offset) / 4096))
    }
}

static GUARDED: RwLock<Vec<Guarded>> = RwLock::new(Vec::new());
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// While it lives, threads of this process may use the guest mapping of a slice.
#[derive(Debug)]
pub(crate) struct Guard {
    first: usize,
}

impl Guard {
    /// Guards the mapping of `ram`, whose engine is `handle`.
    pub(crate) fn new(ram: &Arc<GuestRam>, handle: &Handle) -> Self {
        install();
        let block = |(guest, host, bytes): (u64, usize, u64)| Block {
            host: host..host + usize::try_from(bytes).unwrap_or(0),
            guest,
        };
        let blocks: Vec<Block> = ram.slots().into_iter().map(block).collect();
        let first = blocks.first().map_or(0, |block| block.host.start);
        let guarded = Guarded { blocks, handle: handle.clone(), _ram: Arc::clone(ram) };
        GUARDED.write().unwrap_or_else(PoisonError::into_inner).push(guarded);
        Self { first }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut all = GUARDED.write().unwrap_or_else(PoisonError::into_inner);
        all.retain(|guarded| guarded.blocks.first().is_none_or(|b| b.host.start != self.first));
    }
}

fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: a sigaction is plain memory, and all zeroes is a valid one.
        let mut action: libc::sigaction = unsafe { zeroed() };
        action.sa_sigaction = on_refusal as *const () as usize;
        // On the thread's own stack: the one that Rust sets aside for this signal is too small to ask
        // the engine from. A thread that overflows its stack ends the process without a word now.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        // SAFETY: as above.
        let mut before: libc::sigaction = unsafe { zeroed() };
        // SAFETY: both structures live until the call returns; the handler has the right signature.
        unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, &raw mut before) };
        let _ = BEFORE.set(before);
    });
}

/// The page of a refused address, if it is guest memory, and how to get it.
fn guarded(address: usize) -> Option<(Gfn, Handle)> {
    let all = GUARDED.read().unwrap_or_else(PoisonError::into_inner);
    all.iter().find_map(|guarded| Some((guarded.frame(address)?, guarded.handle.clone())))
}

extern "C" fn on_refusal(signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the kernel gives a valid structure.
    let info = unsafe { &*info };
    // SAFETY: it is of a fault, which has an address.
    let address = unsafe { info.si_addr() }.addr();
    if let Some((gfn, handle)) = guarded(address) {
        if handle.wanted(gfn, LIMIT) {
            sleep(PAUSE);
            return;
        }
        // The engine has stopped: the slice is coming to its end, and there is no such page any more.
        loop {
            sleep(LIMIT);
        }
    }
    give_way(signal);
}

/// Not ours: who handled the signal before does so when the access is tried again.
fn give_way(signal: i32) {
    if let Some(before) = BEFORE.get() {
        // SAFETY: the structure was given by the same call.
        unsafe { libc::sigaction(signal, before, null_mut()) };
    } else {
        // SAFETY: the default action needs no handler.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}
