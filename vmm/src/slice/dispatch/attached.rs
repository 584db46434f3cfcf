//! The devices of a slice, once they are there, and what other slices have sent them before.
//!
//! ```text
//!   none: a frame for devices breaks the protocol --attach--> attached
//!     \--expect_early--> none yet: frames are kept, in their order --attach--> the kept ones, then attached
//! ```
//! In a VM that goes on from a checkpoint, a queue may have requests that wait. A slice serves them as soon as its own devices
//! stand, and they may be for the back end of a slice whose devices do not stand yet.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use wire::SliceId;

/// Frames that are kept at most: some of each queue of each other slice.
const EARLY_MAX: usize = 4096;

/// Frames of other slices that came before the devices, in their order; none if there may be none.
type Early = Option<Vec<(SliceId, Vec<u8>)>>;

/// Devices of a kind that takes frames, or their place.
#[derive(Debug)]
pub(crate) struct Attached<D> {
    devices: OnceLock<Arc<D>>,
    early: Mutex<Early>,
}

/// What takes a frame of a slice.
pub(in crate::slice) trait TakesFrames {
    /// Takes it.
    ///
    /// # Errors
    /// How it breaks the protocol.
    fn take(&self, from: SliceId, bytes: &[u8]) -> Result<(), String>;
}

impl<D> Default for Attached<D> {
    fn default() -> Self {
        Self { devices: OnceLock::new(), early: Mutex::new(None) }
    }
}

impl<D> Attached<D> {
    /// The devices, if they are there.
    pub(crate) fn get(&self) -> Option<&Arc<D>> {
        self.devices.get()
    }

    /// Other slices may have something for the devices before they are there.
    pub(crate) fn expect_early(&self) {
        self.early.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default();
    }
}

impl<D: TakesFrames> Attached<D> {
    /// The devices are there, once and for all. They are given what was kept for them.
    ///
    /// # Errors
    /// How something that was kept breaks the protocol, and of which slice it is.
    pub(crate) fn attach(&self, devices: Arc<D>) -> Result<(), (SliceId, String)> {
        let mut early = self.early.lock().unwrap_or_else(PoisonError::into_inner);
        for (from, bytes) in early.take().unwrap_or_default() {
            devices.take(from, &bytes).map_err(|cause| (from, cause))?;
        }
        // Still locked: what comes now is behind what was kept.
        assert!(self.devices.set(devices).is_ok(), "attached once");
        Ok(())
    }

    /// Takes a frame to the devices, or keeps it for them.
    ///
    /// # Errors
    /// How it breaks the protocol.
    pub(super) fn take(&self, from: SliceId, bytes: &[u8]) -> Result<(), String> {
        if let Some(devices) = self.devices.get() {
            return devices.take(from, bytes);
        }
        let mut early = self.early.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(devices) = self.devices.get() {
            return devices.take(from, bytes);
        }
        match &mut *early {
            Some(kept) if kept.len() < EARLY_MAX => kept.push((from, bytes.to_vec())),
            Some(_) => return Err("it sends more than devices can have at their start".into()),
            None => return Err("there are no devices".into()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Seen(Mutex<Vec<(u16, Vec<u8>)>>);

    impl TakesFrames for Seen {
        fn take(&self, from: SliceId, bytes: &[u8]) -> Result<(), String> {
            if bytes.is_empty() {
                return Err("it is empty".into());
            }
            self.0.lock().unwrap().push((from.0, bytes.to_vec()));
            Ok(())
        }
    }

    #[test]
    fn frames_before_the_devices_come_first_and_in_order() {
        let (attached, seen) = (Attached::default(), Arc::new(Seen::default()));
        attached.expect_early();
        attached.take(SliceId(1), &[1]).unwrap();
        attached.take(SliceId(2), &[2]).unwrap();
        attached.take(SliceId(1), &[3]).unwrap();
        assert!(attached.get().is_none());
        attached.attach(Arc::clone(&seen)).unwrap();
        attached.take(SliceId(1), &[4]).unwrap();
        let frames = seen.0.lock().unwrap().clone();
        assert_eq!(frames, [(1, vec![1]), (2, vec![2]), (1, vec![3]), (1, vec![4])]);
    }

    #[test]
    fn frame_that_nobody_expects_is_refused() {
        let attached: Attached<Seen> = Attached::default();
        assert!(attached.take(SliceId(1), &[1]).unwrap_err().contains("no devices"));
        attached.expect_early();
        attached.take(SliceId(3), &[]).unwrap();
        (1..EARLY_MAX).for_each(|_| attached.take(SliceId(1), &[1]).unwrap());
        assert!(attached.take(SliceId(1), &[1]).unwrap_err().contains("more than"));
        let refused = attached.attach(Arc::default()).unwrap_err();
        assert_eq!(refused, (SliceId(3), "it is empty".to_owned()));
    }
}
