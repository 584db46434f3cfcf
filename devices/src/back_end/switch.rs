//! A disk whose real part may go to another host: front ends keep it, and what is behind it changes.
//!
//! ```text
//!   open --close--> closed: requests are kept --open--> open: they are made, in their order
//! ```
//! It remembers where was written last. Whoever opens the same image elsewhere must find that there ([`sample`](super::sample)).

use super::sample::Place;
use super::{Disk, DiskDone, DiskReply, DiskRequest, DiskShape, SECTOR_BYTES};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Writes that are remembered.
const WRITES_MAX: usize = 32;

enum Behind {
    Open(Arc<dyn Disk>),
    /// What has been asked meanwhile; front ends bound it.
    Closed(Vec<(DiskRequest, DiskDone)>),
}

struct State {
    behind: Behind,
    may_wait: bool,
}

/// A disk that may be behind another one at another time, of one shape.
pub struct SwitchDisk {
    shape: DiskShape,
    state: Mutex<State>,
    /// Oldest first.
    written: Mutex<VecDeque<Place>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SwitchDisk {
    /// What front ends see from now on as a disk of this shape.
    #[must_use]
    pub fn new(shape: DiskShape, disk: Arc<dyn Disk>) -> Self {
        Self::over(shape, Behind::Open(disk))
    }

    /// The same before there is a disk: requests are kept until one is put behind it.
    #[must_use]
    pub fn closed(shape: DiskShape) -> Self {
        Self::over(shape, Behind::Closed(Vec::new()))
    }

    fn over(shape: DiskShape, behind: Behind) -> Self {
        let state = State { behind, may_wait: true };
        Self { shape, state: Mutex::new(state), written: Mutex::default() }
    }

    /// Takes away what is behind; requests are kept from now on. None: that was done before.
    pub fn close(&self) -> Option<Arc<dyn Disk>> {
        let mut state = lock(&self.state);
        match std::mem::replace(&mut state.behind, Behind::Closed(Vec::new())) {
            Behind::Open(disk) => Some(disk),
            closed @ Behind::Closed(_) => {
                state.behind = closed;
                None
            }
        }
    }

    /// Puts a disk behind it, and makes the requests that were kept.
    pub fn open(&self, disk: Arc<dyn Disk>) {
        let again = Arc::clone(&disk);
        let kept = {
            let mut state = lock(&self.state);
            disk.may_wait(state.may_wait);
            match std::mem::replace(&mut state.behind, Behind::Open(disk)) {
                Behind::Open(_) => Vec::new(),
                Behind::Closed(kept) => kept,
            }
        };
        again.submit_all(kept);
    }

    /// What is behind it now, if anything is.
    #[must_use]
    pub fn behind(&self) -> Option<Arc<dyn Disk>> {
        match &lock(&self.state).behind {
            Behind::Open(disk) => Some(Arc::clone(disk)),
            Behind::Closed(_) => None,
        }
    }

    /// Where was written through here last, and what is there has not been given back since.
    #[must_use]
    pub fn written(&self) -> Vec<Place> {
        lock(&self.written).iter().copied().collect()
    }

    fn remember(&self, request: &DiskRequest) {
        match request {
            DiskRequest::Write { sector, data } if self.shape.refusal(request).is_none() => {
                let mut written = lock(&self.written);
                if written.len() == WRITES_MAX {
                    written.pop_front();
                }
                written.push_back(Place::new(*sector, data.len() as u64 / SECTOR_BYTES));
            }
            DiskRequest::Discard { sector, sectors } => {
                lock(&self.written).retain(|place| !place.touches(*sector, *sectors));
            }
            _ => {}
        }
    }
}

impl Disk for SwitchDisk {
    fn shape(&self) -> DiskShape {
        self.shape.clone()
    }

    fn submit(&self, request: DiskRequest, done: DiskDone) {
        self.submit_all(vec![(request, done)]);
    }

    fn submit_all(&self, requests: Vec<(DiskRequest, DiskDone)>) {
        requests.iter().for_each(|(request, _)| self.remember(request));
        let disk = match &mut lock(&self.state).behind {
            Behind::Open(disk) => Arc::clone(disk),
            Behind::Closed(kept) => return kept.extend(requests),
        };
        disk.submit_all(requests);
    }

    fn may_wait(&self, may: bool) {
        let mut state = lock(&self.state);
        state.may_wait = may;
        if let Behind::Open(disk) = &state.behind {
            disk.may_wait(may);
        }
    }
}

/// It is never opened again: who waits is told.
impl Drop for SwitchDisk {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Behind::Closed(kept) = &mut state.behind {
            kept.drain(..).for_each(|(_, done)| done(DiskReply::Failed));
        }
    }
}

impl fmt::Debug for SwitchDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SwitchDisk").field("shape", &self.shape).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::back_end::MemoryDisk;
    use std::sync::mpsc::channel;

    fn disk() -> Arc<dyn Disk> {
        Arc::new(MemoryDisk::new(64))
    }

    fn write(sector: u64, byte: u8) -> DiskRequest {
        DiskRequest::Write { sector, data: vec![byte; 512] }
    }

    #[test]
    fn requests_to_a_closed_disk_are_made_once_in_their_order_when_it_opens() {
        let switch = SwitchDisk::new(disk().shape(), disk());
        let first = switch.close().unwrap();
        assert!(switch.close().is_none() && switch.behind().is_none());
        let (told, answers) = channel();
        for byte in 1..=3 {
            let told = told.clone();
            switch.submit(write(5, byte), Box::new(move |reply| told.send(reply).unwrap()));
        }
        assert!(answers.try_recv().is_err(), "nothing is answered before");
        let second = disk();
        switch.open(Arc::clone(&second));
        drop(told);
        assert_eq!(answers.iter().collect::<Vec<_>>(), vec![DiskReply::Done(Vec::new()); 3]);
        let read = |disk: &Arc<dyn Disk>| {
            let (told, answer) = channel();
            let read = DiskRequest::Read { sector: 5, bytes: 512 };
            disk.submit(read, Box::new(move |reply| told.send(reply).unwrap()));
            answer.recv().unwrap()
        };
        assert_eq!(read(&second), DiskReply::Done(vec![3; 512]));
        assert_eq!(read(&first), DiskReply::Done(vec![0; 512]));
    }

    #[test]
    fn who_waits_for_a_disk_that_never_opens_is_told() {
        let switch = SwitchDisk::new(disk().shape(), disk());
        switch.close();
        let (told, answer) = channel();
        switch.submit(DiskRequest::Flush, Box::new(move |reply| told.send(reply).unwrap()));
        drop(switch);
        assert_eq!(answer.recv(), Ok(DiskReply::Failed));
    }

    #[test]
    fn last_writes_are_remembered_until_they_are_given_back() {
        let switch = SwitchDisk::new(disk().shape(), disk());
        for sector in 0..40 {
            switch.submit(write(sector, 1), Box::new(|_| {}));
        }
        // It is refused: nothing is there.
        switch.submit(write(64, 1), Box::new(|_| {}));
        assert_eq!(switch.written().first(), Some(&Place::new(8, 1)));
        assert_eq!(switch.written().len(), WRITES_MAX);
        switch.submit(DiskRequest::Discard { sector: 10, sectors: 20 }, Box::new(|_| {}));
        let left: Vec<_> = (8..10).chain(30..40).map(|sector| Place::new(sector, 1)).collect();
        assert_eq!(switch.written(), left);
    }
}
