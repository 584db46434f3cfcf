//! What the main thread of a slice must know.
//!
//! ```text
//!   ends, losses, signals --> urgent (taken first) --+
//!   reports and questions --> ordinary --------------+--> main thread
//! ```
//! Both queues are bounded and nobody waits for room in them: senders are vCPU threads and the memory engine. What peers
//! may send at any time goes into the ordinary queue and is dropped when that is full, so it never keeps the end of the
//! VM, or the loss of a slice, from being heard. The urgent queue can only be full when an end is in it already.

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, at, bounded, never, select};
use std::time::Instant;
use wire::SliceId;
use wire::control::EndCause;

/// What may wait in each queue.
const EVENTS_MAX: usize = 256;
/// Signals that may wait: the second one counts already.
const STOPS_MAX: usize = 16;

/// Something that the main thread must know.
#[derive(Debug)]
pub(crate) enum SliceEvent {
    /// The guest, or a slice, wants the VM to end.
    WantEnd(SliceId, EndCause),
    /// The coordinator says that the VM is over.
    End(SliceId, EndCause),
    /// Another slice has heard that the VM is over.
    EndSeen(SliceId),
    /// A slice is gone.
    Lost(SliceId, String),
    /// A slice is gone without which the VM goes on: its devices fail.
    LostDevices(SliceId, String),
    /// This slice has nothing of the VM any more, and the others do without it.
    Dismissed,
    /// This slice cannot go on.
    Fatal(String),
    /// A later life of the VM has a disk of this slice.
    Overtaken(String),
    /// This slice coordinates from now on, or does no longer.
    Coordinates,
    /// This process is asked to stop.
    Stop,
    /// Another slice was asked to stop, and asks for an orderly end.
    WantStop(SliceId),
    /// The coordinator wants the report.
    AskReport,
    /// Another slice's report.
    Report(SliceId, Vec<u8>),
    /// The coordinator wants to know what vCPUs have done.
    AskLoad,
}

impl SliceEvent {
    fn is_urgent(&self) -> bool {
        match self {
            Self::WantEnd(..)
            | Self::End(..)
            | Self::Lost(..)
            | Self::LostDevices(..)
            | Self::Dismissed
            | Self::Fatal(_)
            | Self::Overtaken(_)
            | Self::Coordinates
            | Self::Stop => true,
            Self::EndSeen(_)
            | Self::WantStop(_)
            | Self::AskReport
            | Self::Report(..)
            | Self::AskLoad => false,
        }
    }
}

/// Tells the main thread. Clones tell the same one.
#[derive(Clone, Debug)]
pub(crate) struct EventSender {
    urgent: Sender<SliceEvent>,
    ordinary: Sender<SliceEvent>,
}

impl EventSender {
    /// Never waits. If the main thread is gone, nobody needs to know.
    pub(crate) fn send(&self, event: SliceEvent) {
        let queue = if event.is_urgent() { &self.urgent } else { &self.ordinary };
        if !matches!(event, SliceEvent::Stop) || queue.len() < STOPS_MAX {
            let _ = queue.try_send(event);
        }
    }
}

/// The main thread's end.
#[derive(Debug)]
pub(crate) struct Events {
    urgent: Receiver<SliceEvent>,
    ordinary: Receiver<SliceEvent>,
}

impl Events {
    /// The next event, the urgent ones first; without a deadline whenever one comes.
    ///
    /// # Errors
    /// The deadline has passed, or nobody is left who could tell anything.
    pub(crate) fn recv(&self, deadline: Option<Instant>) -> Result<SliceEvent, RecvTimeoutError> {
        if let Ok(event) = self.urgent.try_recv() {
            return Ok(event);
        }
        let late = deadline.map_or_else(never, at);
        select! {
            recv(self.urgent) -> event => event.map_err(|_| RecvTimeoutError::Disconnected),
            recv(self.ordinary) -> event => event.map_err(|_| RecvTimeoutError::Disconnected),
            recv(late) -> _ => Err(RecvTimeoutError::Timeout),
        }
    }

    /// What is there now, the urgent ones first.
    pub(crate) fn try_iter(&self) -> impl Iterator<Item = SliceEvent> + '_ {
        self.urgent.try_iter().chain(self.ordinary.try_iter())
    }
}

/// The two ends of a slice's events.
pub(crate) fn channel() -> (EventSender, Events) {
    let ((urgent, urgent_told), (ordinary, told)) = (bounded(EVENTS_MAX), bounded(EVENTS_MAX));
    (EventSender { urgent, ordinary }, Events { urgent: urgent_told, ordinary: told })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_is_heard_behind_a_flood_and_before_it() {
        let (sender, events) = channel();
        (0..1000).for_each(|_| sender.send(SliceEvent::Report(SliceId(2), Vec::new())));
        sender.send(SliceEvent::Lost(SliceId(1), "silent".into()));

        assert!(matches!(events.recv(None), Ok(SliceEvent::Lost(SliceId(1), _))));
        assert_eq!(events.try_iter().count(), EVENTS_MAX);
    }

    #[test]
    fn signals_leave_room_for_an_end() {
        let (sender, events) = channel();
        (0..1000).for_each(|_| sender.send(SliceEvent::Stop));
        sender.send(SliceEvent::Fatal("it cannot go on".into()));

        assert_eq!(events.urgent.len(), STOPS_MAX + 1);
        assert!(matches!(events.try_iter().last(), Some(SliceEvent::Fatal(_))));
    }

    #[test]
    fn wait_ends_at_its_deadline_or_with_the_last_sender() {
        let (sender, events) = channel();
        assert_eq!(events.recv(Some(Instant::now())).unwrap_err(), RecvTimeoutError::Timeout);
        drop(sender);
        assert_eq!(events.recv(None).unwrap_err(), RecvTimeoutError::Disconnected);
    }
}
