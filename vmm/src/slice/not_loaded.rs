//! Why a guest could not be loaded.

use super::SliceError;
use super::events::{Events, SliceEvent};
use dsm::CopyError;

/// The memory engine stops when a slice is lost, or it cannot go on, and says so before it stops.
pub(super) fn not_loaded(events: &Events, error: CopyError) -> SliceError {
    let told = events.try_iter().find_map(|event| match event {
        SliceEvent::Lost(slice, cause) => Some(SliceError::LostLoading { slice, cause }),
        SliceEvent::Fatal(cause) => Some(SliceError::FailedLoading { cause }),
        _ => None,
    });
    told.unwrap_or(SliceError::Load(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slice::{STATUS_FAILED, STATUS_LOST, STATUS_REFUSED, events};
    use wire::SliceId;

    #[test]
    fn cause_of_an_end_while_the_guest_is_loaded_is_told() {
        let (sender, told) = events::channel();
        let not_loaded = || {
            let error = not_loaded(&told, CopyError::NoAnswer);
            (error.status(), error.to_string())
        };
        assert_eq!(not_loaded(), (STATUS_REFUSED, "load the guest".to_owned()));
        sender.send(SliceEvent::Fatal("it stood still".to_owned()));
        sender.send(SliceEvent::Lost(SliceId(1), "silent".to_owned()));
        let (status, text) = not_loaded();
        assert_eq!(status, STATUS_FAILED);
        assert!(text.contains("it stood still"), "{text}");
        sender.send(SliceEvent::Lost(SliceId(1), "silent".to_owned()));
        let (status, text) = not_loaded();
        assert_eq!(status, STATUS_LOST);
        assert!(text.contains("silent"), "{text}");
    }
}
