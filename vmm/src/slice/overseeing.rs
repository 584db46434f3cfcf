//! What is done to the VM as a whole, and requests for its end. Of the coordinator.

use super::channels::Channels;
use super::events::SliceEvent;
use super::operations::Operation;
use super::refusing::Explains;
use crate::control::{Activity, OverseesVm, Reason, Refusal};
use std::sync::{Arc, Weak};
use thiserror::Error;

/// Why the guest was not asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
enum OverseeError {
    /// There is nobody to ask.
    #[error("the VM is over, or another slice coordinates it now")]
    Over,
    /// It would not notice.
    #[error("the VM is paused: resume it first")]
    Paused,
    /// Its operating system has not set the button up.
    #[error("the guest does not listen to its power button (yet): it is booting, or has no ACPI")]
    Deaf,
}

impl Explains for OverseeError {
    fn reason(&self) -> Reason {
        match self {
            Self::Over => Reason::Over,
            Self::Paused => Reason::Paused,
            Self::Deaf => Reason::GuestRefused,
        }
    }
}

/// Oversees a VM. It does not keep it alive.
#[derive(Debug)]
pub(super) struct Overseer(pub(super) Weak<Channels>);

impl Overseer {
    fn channels(&self) -> Result<Arc<Channels>, OverseeError> {
        let channels = self.0.upgrade().filter(|channels| !channels.cut.is_over());
        channels.ok_or(OverseeError::Over)
    }

    fn press(&self) -> Result<(), OverseeError> {
        let channels = self.channels()?;
        if channels.operations.current() == Some(Operation::Cut) {
            return Err(OverseeError::Paused);
        }
        let chipset = channels.chipset.load();
        let heard = chipset.as_ref().ok_or(OverseeError::Over)?.press_power_button();
        if heard { Ok(()) } else { Err(OverseeError::Deaf) }
    }

    fn end(&self, force: bool) -> Result<(), OverseeError> {
        let channels = self.channels()?;
        if force {
            // The same as two signals: the second one does not wait for the guest.
            channels.event(SliceEvent::Stop);
            channels.event(SliceEvent::Stop);
        } else {
            // Asked again it would end the VM at once if it came as a signal does.
            channels.event(SliceEvent::WantStop(channels.local()));
        }
        Ok(())
    }
}

impl OverseesVm for Overseer {
    fn activity(&self) -> Option<Activity> {
        self.0.upgrade()?.operations.current().map(Activity::from)
    }

    fn power_button(&self) -> Result<(), Refusal> {
        self.press().map_err(|error| error.refusal())
    }

    fn stop(&self, force: bool) -> Result<(), Refusal> {
        self.end(force).map_err(|error| error.refusal())
    }
}
