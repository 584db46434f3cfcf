//! A thread that is made before it is needed: one for a vCPU that comes, which does not run until it has a thread.
//!
//! ```text
//!   prepare --> waits --run--> it has its work and its name, and is no spare any more
//! ```

use std::ffi::CString;
use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

type Work = Box<dyn FnOnce() + Send>;

/// One thread at most. It ends with its machine if it is never needed.
#[derive(Debug, Default)]
pub(super) struct Spare(Mutex<Option<SyncSender<(String, Work)>>>);

impl Spare {
    /// Makes the thread if there is none.
    ///
    /// # Errors
    /// There is no thread for it.
    pub(super) fn prepare(&self) -> io::Result<()> {
        let mut spare = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.is_none() {
            let (sender, work) = sync_channel::<(String, Work)>(1);
            let run = move || {
                let Ok((name, work)) = work.recv() else { return };
                // A thread without its name does its work.
                let name = CString::new(name).ok();
                name.map(|name| rustix::thread::set_name(&name));
                work();
            };
            thread::Builder::new().name("vcpu-spare".to_owned()).spawn(run)?;
            *spare = Some(sender);
        }
        Ok(())
    }

    /// Runs this on the spare thread, or on a new one.
    ///
    /// # Errors
    /// There is no thread for it.
    pub(super) fn run(&self, name: String, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let spare = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        match spare {
            Some(spare) => spare
                .send((name, Box::new(work)))
                .map_err(|_| io::Error::other("the spare thread has ended")),
            None => thread::Builder::new().name(name).spawn(work).map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::sync::mpsc::channel;

    /// Name and number of the thread that a work runs on.
    fn runs_on(spare: &Spare, name: &str) -> (String, rustix::thread::Pid) {
        let (sender, told) = channel();
        let work = move || {
            let name = fs::read_to_string("/proc/thread-self/comm").unwrap();
            sender.send((name.trim().to_owned(), rustix::thread::gettid())).unwrap();
        };
        spare.run(name.to_owned(), work).unwrap();
        told.recv().unwrap()
    }

    #[test]
    fn work_is_done_under_its_name_with_a_spare_thread_and_without() {
        let spare = Spare::default();
        let (name, first) = runs_on(&spare, "vcpu1");
        assert_eq!(name, "vcpu1");
        spare.prepare().unwrap();
        spare.prepare().unwrap();
        let (name, second) = runs_on(&spare, "vcpu2");
        assert_eq!(name, "vcpu2");
        assert_ne!(first, second);
        assert!(spare.0.lock().unwrap().is_none(), "it is used once");
        assert_eq!(runs_on(&spare, "ghost3").0, "ghost3");
    }
}
