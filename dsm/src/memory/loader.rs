//! The threads that load memory.
//!
//! ```text
//!   "load-faults"  hears of touches of what is absent, has it loaded first; looks whether the source still answers
//!   "load-all"     loads what somebody waits for, else what comes first in memory
//!   "load-first"   loads only what somebody waits for: that a thread is at work elsewhere holds nobody up
//! ```
//! They end when all is here, when something does not come, or when [`Loader`] is dropped.

use super::absent::Lazy;
use super::loading::Loaded;
use super::ram::GuestRam;
use super::source::{LoadError, Source};
use std::io::Error;
use std::ops::Range;
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};
use vmm_sys_util::poll::PollContext;

/// A source that takes so long for one piece does not come back.
const READ_LIMIT: Duration = Duration::from_secs(60);
/// Between two looks at that.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Between two words on how it stands.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// How long what takes at most.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The engine and the VMM wait so long for a piece; then all fails.
    pub limit: Duration,
    /// Between two pieces that nobody waits for.
    pub pause: Duration,
    /// What threads do first that load only what somebody waits for, so that they run before the guest: vCPUs that share a core with them
    /// would hold up the engine, which waits only for so long.
    pub prefer: fn(),
}

/// Memory that is being loaded. When this is dropped, nobody goes on with it.
#[derive(Debug)]
pub struct Loader(Arc<GuestRam>);

impl Loader {
    /// From now on these frames have the contents that a source has of them: what a guest touches comes first, the rest in order.
    /// Nobody uses the memory yet. vCPUs wait for a minute at most; then all fails.
    ///
    /// # Errors
    /// Parts of chunks cannot be read, the kernel refuses to watch memory, or there is no thread.
    pub fn start(
        ram: &Arc<GuestRam>,
        frames: &[Range<u64>],
        source: Arc<dyn Source>,
        Pace { limit, pause, prefer }: Pace,
    ) -> Result<Self, LoadError> {
        ram.begin_loading(frames, source, (limit, None))?;
        let loader = Self(Arc::clone(ram));
        let Loaded { pieces, .. } = ram.loaded();
        tracing::info!("{pieces} pieces of memory are to come from the checkpoint");
        loader.spawn("load-faults", move |ram, lazy| {
            prefer();
            serve_faults(ram, lazy);
        })?;
        for (name, all) in [("load-all", true), ("load-first", false)] {
            // Before it runs, or the first who needs something would load it.
            loader.reads(true);
            let started = loader.spawn(name, move |ram, lazy| {
                if !all {
                    prefer();
                }
                read_on(ram, lazy, (all, pause));
                lazy.loading.reads(false);
            });
            started.inspect_err(|_| loader.reads(false))?;
        }
        Ok(loader)
    }

    fn spawn(
        &self,
        name: &str,
        run: impl FnOnce(&GuestRam, &Lazy) + Send + 'static,
    ) -> Result<(), LoadError> {
        let ram = Arc::clone(&self.0);
        let run = move || {
            if let Some(lazy) = ram.lazy.get() {
                run(&ram, lazy);
            }
        };
        let thread = Builder::new().name(name.into()).spawn(run);
        thread.map(drop).map_err(LoadError::Start)
    }

    fn reads(&self, on: bool) {
        if let Some(lazy) = self.0.lazy.get() {
            lazy.loading.reads(on);
        }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        // They are not waited for: one may stand in a file system that hangs.
        if let Some(lazy) = self.0.lazy.get() {
            lazy.loading.stop();
        }
    }
}

/// Hears of touches of what is absent, until all is here.
fn serve_faults(ram: &GuestRam, lazy: &Lazy) {
    if let Err(error) = answer_faults(ram, lazy) {
        lazy.loading.fail(LoadError::Fill(error));
    }
}

fn answer_faults(ram: &GuestRam, lazy: &Lazy) -> Result<(), Error> {
    let poll = PollContext::<()>::new()?;
    poll.add(&lazy.uffd, ())?;
    let (begun, mut told) = (Instant::now(), Instant::now());
    while !lazy.loading.is_over() {
        poll.wait_timeout(LOOK_EVERY)?;
        ram.take_load_faults(lazy)?;
        lazy.look_for_silence(READ_LIMIT);
        if told.elapsed() >= TELL_EVERY {
            told = Instant::now();
            tell(lazy.loading.counts(), begun);
        }
    }
    tell(lazy.loading.counts(), begun);
    Ok(())
}

fn tell(Loaded { pieces, left, on_demand, longest_wait }: Loaded, begun: Instant) {
    let (here, seconds) = (pieces - left, begun.elapsed().as_secs_f64());
    let waited = longest_wait.as_secs_f64() * 1e3;
    tracing::info!(
        "{here} of {pieces} pieces of memory have come from the checkpoint in {seconds:.1} s, {on_demand} because they were needed; the memory \
         engine waited for {waited:.1} ms at most"
    );
}

/// Loads one piece after another, with a pause behind each if it loads all.
fn read_on(ram: &GuestRam, lazy: &Lazy, (all, pause): (bool, Duration)) {
    while let Some(piece) = lazy.loading.next(all) {
        ram.load(lazy, &piece);
        if all && !pause.is_zero() {
            lazy.loading.wait_for_all(pause);
        }
    }
}

#[cfg(test)]
mod tests;
