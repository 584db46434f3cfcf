//! Puts private chunks of the memory file on huge pages.
//!
//! Memory files get no huge pages by themselves on most hosts (`shmem_enabled` is `never`), but a
//! process may ask for them range by range (`MADV_COLLAPSE`, Linux 6.1). A thread looks for chunks of
//! which nearly all pages are there, and asks. That takes from 20 µs (the file has the huge page and
//! only the mapping is made) to milliseconds (2 MiB are copied), and a vCPU that touches the chunk
//! meanwhile waits; so the thread rests in between.
//!
//! ```text
//!   plain --(nearly full: collapse)--> huge        (the engine makes either watched, at any time)
//! ```
//!
//! A chunk that the engine watches meanwhile is refused by the kernel: it makes no huge mapping where
//! userfaultfd protects pages (`collapse_pte_mapped_thp` in Linux `mm/khugepaged.c`).

use super::places::Place;
use super::ram::GuestRam;
use crate::kernel::HUGE;
use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use std::io::Error;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, Builder, JoinHandle};
use std::time::{Duration, Instant};

/// A chunk with so many of its 512 pages is put on a huge page: at most 1/8 more memory is taken.
const NEARLY_FULL: usize = 448;
/// After a collapse the thread rests this many times as long as that took.
const REST: u32 = 9;
/// Chunks looked at without a pause, and the pause.
const LOOKS: usize = 512;
const PAUSE: Duration = Duration::from_millis(100);
/// Pause after all chunks were looked at.
const IDLE: Duration = Duration::from_millis(500);
/// After a pass the thread rests this many times as long as the pass took. So a host that is slow to say what is there
/// (an emulated one takes 40 ms for 256 MiB) is asked less often.
const LOOKING_SHARE: u32 = 99;
/// Pause once the kernel has refused [`REFUSALS`] full chunks in a row.
const REFUSED: Duration = Duration::from_secs(30);
const REFUSALS: u32 = 8;
/// For the thread to end: the kernel may keep it for as long as something else keeps the mapping.
const END_LIMIT: Duration = Duration::from_secs(1);

/// The thread; ends when this is dropped.
#[derive(Debug)]
pub struct HugePages {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl HugePages {
    /// Starts the thread.
    ///
    /// # Errors
    /// The operating system gives no thread.
    pub fn start(ram: Arc<GuestRam>) -> Result<Self, Error> {
        let (stop, stopped) = bounded::<()>(0);
        let thread = Builder::new().name("huge-pages".into()).spawn(move || {
            let rest = |time| stopped.recv_timeout(time) == Err(RecvTimeoutError::Timeout);
            let mut refusals = 0;
            loop {
                let (start, mut resting) = (Instant::now(), Duration::ZERO);
                let mut pause = |time| {
                    let since = Instant::now();
                    let going_on = rest(time);
                    resting += since.elapsed();
                    going_on
                };
                if !pass(&ram, &mut pause, &mut refusals) {
                    break;
                }
                let looking = start.elapsed().saturating_sub(resting);
                if !rest(IDLE.max(looking * LOOKING_SHARE)) {
                    break;
                }
            }
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        self.stop = None;
        let limit = Instant::now() + END_LIMIT;
        // One that the kernel keeps has the memory as long as it needs it.
        while self
            .thread
            .as_ref()
            .is_some_and(|thread| !thread.is_finished() && Instant::now() < limit)
        {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Looks at all chunks once; false when it is to end.
pub(crate) fn pass(
    ram: &GuestRam,
    rest: &mut dyn FnMut(Duration) -> bool,
    refusals: &mut u32,
) -> bool {
    let chunks = (0..ram.bytes()).step_by(HUGE).filter(|at| ram.place_at(*at) == Place::Plain);
    // A collapse replaces pages, and an adapter would go on with the old ones.
    let chunks = chunks.take_while(|_| !ram.is_pinned());
    for (looked, offset) in (1..).zip(chunks) {
        if is_nearly_full(ram, offset) {
            let start = Instant::now();
            match ram.collapse(offset) {
                Ok(()) => *refusals = 0,
                Err(error) => {
                    *refusals += 1;
                    if *refusals == REFUSALS {
                        tracing::info!("no huge pages for guest memory: {error}");
                    }
                }
            }
            let time = if *refusals < REFUSALS { start.elapsed() * REST } else { REFUSED };
            if !rest(time) {
                return false;
            }
        }
        if looked % LOOKS == 0 && !rest(PAUSE) {
            return false;
        }
    }
    true
}

impl GuestRam {
    /// Puts the chunk of private memory at an offset on a huge page, if nearly all of it is there.
    pub(super) fn gather_private(&self, offset: usize) -> Result<(), Error> {
        if is_nearly_full(self, offset) && self.place_at(offset) == Place::OffFile {
            self.guest.advise(offset, HUGE, libc::MADV_COLLAPSE)?;
        }
        Ok(())
    }
}

fn is_nearly_full(ram: &GuestRam, offset: usize) -> bool {
    let mut pages = [0; HUGE / 4096];
    let known = ram.guest.residency(offset, &mut pages);
    known.is_ok() && pages.iter().filter(|page| **page & 1 != 0).count() >= NEARLY_FULL
}

impl GuestRam {
    /// Puts the chunk at an offset, which is [`Place::Plain`], on a huge page.
    fn collapse(&self, offset: usize) -> Result<(), Error> {
        // Set first, for the engine may share the chunk as soon as its mapping is huge.
        if !self.change_place(offset, Place::Plain, Place::Huge) {
            return Ok(());
        }
        let start = Instant::now();
        let result = self.guest.advise(offset, HUGE, libc::MADV_COLLAPSE);
        if result.is_ok() {
            let time = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.collapse_ns.fetch_add(time, Ordering::Relaxed);
            self.collapsed.fetch_add(1, Ordering::Relaxed);
        } else {
            self.change_place(offset, Place::Huge, Place::Plain);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dsm_protocol::Gfn;
    use std::slice::from_ref;

    #[test]
    fn full_chunks_only_are_collapsed() {
        let ram = GuestRam::new(from_ref(&(512..2048))).unwrap();
        ram.populate(Gfn(512), 512).unwrap();
        for page in 1024..1024 + 100 {
            ram.write(Gfn(page), 0, &[1]);
        }
        ram.write(Gfn(600), 7, &[42]);
        let full: Vec<bool> = [0, 1, 2].map(|chunk| is_nearly_full(&ram, chunk * HUGE)).into();
        assert_eq!(full, [true, false, false]);

        let mut refusals = 0;
        assert!(pass(&ram, &mut |_| true, &mut refusals));

        let mut byte = [0];
        ram.read(Gfn(600), 7, &mut byte);
        assert_eq!(byte, [42]);
        assert_eq!(ram.place_at(HUGE), Place::Plain);
        if refusals > 0 {
            needs::leave_out("this kernel gives memory files no huge pages");
            return;
        }
        assert_eq!(ram.place_at(0), Place::Huge);
        assert_eq!(ram.collapsed.load(Ordering::Relaxed), 1);
        assert_eq!(ram.huge_bytes().unwrap(), 2 << 20);
    }

    #[test]
    fn thread_ends_when_dropped() {
        let ram = Arc::new(GuestRam::new(from_ref(&(0..512))).unwrap());
        drop(HugePages::start(Arc::clone(&ram)).unwrap());
        assert_eq!(Arc::strong_count(&ram), 1);
    }
}
