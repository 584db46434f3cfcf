//! States of this slice's disks for a checkpoint, and disks that are opened as they were at one.
//!
//! ```text
//!   all slices at rest --freeze: each disk here: flush, close, freeze, open--> states, kept under one name
//!   restored VM: state in the checkpoint --claim the generation, revert, open--> the disk at that moment
//! ```

use super::parts::{PartError, RealPart, Switch};
use super::{SliceDevices, lock};
use crate::slice::channels::Channels;
use crate::slice::events::SliceEvent;
use crate::slice::one_line;
use devices::back_end::image::Writer;
use devices::back_end::image::snapshot::DiskState;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};
use thiserror::Error;

/// What a VM that is restored knows of its disks.
#[derive(Clone, Debug, Default)]
pub(crate) struct FromCheckpoint {
    /// The VM and its generation, to be recorded beside each image that it writes.
    pub(crate) writer: Option<Writer>,
    /// By the devices' numbers. Others are opened as they are.
    pub(crate) disks: BTreeMap<u16, DiskState>,
    /// Another VM goes on: its images lie beside those that its operators lend.
    pub(crate) cloned: bool,
}

/// A disk of which no state is kept.
#[derive(Debug, Error)]
#[error("keep the state of device {device}, which --no-disk-guarantee does without")]
pub(crate) struct FreezeError {
    /// Its number.
    pub(crate) device: u16,
    /// Why.
    pub(crate) source: PartError,
}

impl SliceDevices {
    /// Keeps the state of each disk that is on this slice under this name, all at a time. All slices are at rest. On an error
    /// all are open, or the slice ends: some may have one image more below them then. With `leaves` the VM is to end: an image of a kind
    /// of which no state can be kept is its own. Unless it is to end, a record beside each image that is written names the `writer` from
    /// now on: whoever restores this VM then fences it. Each has `within` for its flush, and all have until `limit` for everything.
    ///
    /// # Errors
    /// The first disk of which no state is kept.
    pub(crate) fn freeze(
        &self,
        (channels, writer): (&Channels, Writer),
        (name, leaves): (&str, bool),
        (within, limit): (Duration, Duration),
    ) -> Result<BTreeMap<u16, DiskState>, FreezeError> {
        if let Some((moved, _)) = *lock(&self.moving) {
            return Err(FreezeError { device: moved.device, source: PartError::Turn });
        }
        if !leaves {
            self.kept.values().for_each(|part| part.is_written_by(writer));
        }
        let here = self.kept_here(channels);
        let here = here.filter_map(|(device, part)| {
            let switch = self.slots.get(usize::from(device))?.front_end.switch()?;
            Some((device, Arc::clone(part), switch))
        });
        let frozen = freeze_all(here.collect(), (name, leaves), (within, limit));
        if let Err(FreezeError { device, source }) = &frozen
            && source.is_final()
        {
            let text = format!("device {device} was closed for a checkpoint: {}", one_line(source));
            channels.event(SliceEvent::Fatal(text));
        }
        frozen
    }

    /// What is on this slice and has states.
    fn kept_here(&self, channels: &Channels) -> impl Iterator<Item = (u16, &Arc<dyn RealPart>)> {
        let placement = channels.placement.load();
        let owner =
            move |device: u16| placement.devices().get(usize::from(device)).map(|it| it.owner);
        let here = self.kept.iter().map(|(device, part)| (*device, part));
        here.filter(move |(device, _)| owner(*device) == Some(self.local))
    }

    /// States of these checkpoints are not needed any more. The VM is over: whoever has the disks next merges them.
    pub(crate) fn release(&self, channels: &Channels, released: &[String]) {
        self.kept_here(channels).for_each(|(_, part)| part.release(released));
    }

    /// States of these checkpoints are not needed any more. Those of disks on this slice are merged while the guest runs.
    pub(crate) fn tidy(&self, channels: &Channels, released: &[String]) {
        self.kept_here(channels).for_each(|(_, part)| part.tidy(released));
    }
}

type Frozen = (u16, Result<Option<DiskState>, PartError>);

/// Freezes these, each in a thread: a flush takes as long as its storage does. Keeping the state of a disk and opening it wait for the
/// storage too, and nothing in the kernel bounds that. So the thread of a disk that has not answered at the limit is left, and the slice
/// is to end: the guest must not stand still for ever, and nobody can tell what has become of the disk.
fn freeze_all(
    parts: Vec<(u16, Arc<dyn RealPart>, Switch)>,
    (name, leaves): (&str, bool),
    (within, limit): (Duration, Duration),
) -> Result<BTreeMap<u16, DiskState>, FreezeError> {
    let (frozen, answers) = channel();
    let mut silent: Vec<u16> = Vec::new();
    for (device, part, switch) in parts {
        let (name, to) = (name.to_owned(), frozen.clone());
        let freeze =
            move || tell(&to, (device, part.freeze(&switch, (name.as_str(), leaves), within)));
        match Builder::new().name("freeze".into()).spawn(freeze) {
            Ok(_) => silent.push(device),
            Err(error) => tell(&frozen, (device, Err(PartError::Thread(error)))),
        }
    }
    drop(frozen);
    let deadline = Instant::now() + limit;
    let mut results = Vec::new();
    while let Ok((device, result)) =
        answers.recv_timeout(deadline.saturating_duration_since(Instant::now()))
    {
        silent.retain(|one| *one != device);
        results.push((device, result));
    }
    results.extend(silent.into_iter().map(|device| (device, Err(PartError::Hangs(limit)))));
    states(results)
}

fn tell(to: &Sender<Frozen>, frozen: Frozen) {
    // Nobody waits any more for a disk that was taken for shut.
    let _ = to.send(frozen);
}

/// All states, or the worst of what went wrong: that one is not open any more is worse than that another has no state.
fn states(results: Vec<Frozen>) -> Result<BTreeMap<u16, DiskState>, FreezeError> {
    let is_final = |(_, result): &Frozen| result.as_ref().is_err_and(PartError::is_final);
    let (worst, others): (Vec<_>, Vec<_>) = results.into_iter().partition(is_final);
    let mut states = BTreeMap::new();
    for (device, result) in worst.into_iter().chain(others) {
        if let Some(state) = result.map_err(|source| FreezeError { device, source })? {
            states.insert(device, state);
        }
    }
    Ok(states)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slice::peripherals::parts::ClosedPart;
    use crate::slice::peripherals::remote::Remote;
    use std::thread;

    /// It has no state, or is shut, or cannot.
    #[derive(Debug)]
    struct Part(fn() -> Result<Option<DiskState>, PartError>);

    impl RealPart for Part {
        fn sample(&self) -> Result<String, PartError> {
            Err(PartError::Turn)
        }
        fn check(&self) -> Result<(), PartError> {
            Err(PartError::Turn)
        }
        fn close(&self, _: &Switch, _: Duration) -> Result<ClosedPart, PartError> {
            Err(PartError::Turn)
        }
        fn open(&self, _: &ClosedPart, _: Duration) -> Result<(), PartError> {
            Err(PartError::Turn)
        }
        fn let_go(&self) {}
        fn reopen(&self, _: &Switch) -> Result<(), PartError> {
            Err(PartError::Turn)
        }
        fn take_over(&self, _: &Switch, _: &Remote<'_>) -> Result<(), PartError> {
            Err(PartError::Turn)
        }
        fn freeze(
            &self,
            _: &Switch,
            _: (&str, bool),
            _: Duration,
        ) -> Result<Option<DiskState>, PartError> {
            (self.0)()
        }
    }

    #[test]
    fn disk_that_is_shut_is_told_before_one_that_is_as_it_was() {
        let part =
            |number, freeze| (number, Arc::new(Part(freeze)) as Arc<dyn RealPart>, Switch::Nothing);
        let fine = || part(0, || Ok(None));
        let long = Duration::from_secs(100);
        let freeze = |parts| freeze_all(parts, ("cp", false), (long, long));
        assert_eq!(freeze(vec![fine()]).unwrap(), BTreeMap::new());
        let not = || part(1, || Err(PartError::NotDurable));
        assert_eq!(freeze(vec![fine(), not()]).unwrap_err().device, 1);
        let shut = part(2, || Err(PartError::Shut("gone".into())));
        assert_eq!(freeze(vec![fine(), not(), shut]).unwrap_err().device, 2);
    }

    #[test]
    fn disk_whose_storage_never_answers_holds_nobody() {
        let hangs = Part(|| {
            loop {
                thread::park();
            }
        });
        let limits = (Duration::from_secs(100), Duration::from_millis(50));
        let parts = vec![(1, Arc::new(hangs) as Arc<dyn RealPart>, Switch::Nothing)];
        let FreezeError { device, source } = freeze_all(parts, ("cp", false), limits).unwrap_err();
        assert_eq!(device, 1);
        assert!(matches!(source, PartError::Hangs(_)) && source.is_final(), "{source}");
    }
}
