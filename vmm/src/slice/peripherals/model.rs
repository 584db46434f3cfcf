//! What every kind of device says of itself. A kind is a module below [`super`] with one type that implements [`Model`];
//! the table in [`super::registry`] has a line for it.
//!
//! ```text
//!   option --parse--> Model (in the VM's description) --open, on its slice--> BackEnd --shape--> every slice
//!                                                                               |
//!                 FrontEnd, on every slice <--front_end: here-------------------+
//!                 (workers of the queues    <--remote: elsewhere----- Exchange
//!                  that are at home there)
//!
//!   option --named, stand_by, on another slice--> RealPart: closed, may be opened later (`parts`)
//! ```

use super::open_error::OpenError;
use super::parts::{RealPart, Switch};
use super::remote::Remote;
use super::saved::FrontEndState;
use devices::Fence;
use devices::back_end::image::snapshot::DiskState;
use devices::back_end::image::{OnFull, Writer};
use devices::delegate::{Exchange, ServeError};
use devices::virtio::{
    Activation, DeviceShape, Doorbell, QueueContext, QueueIndex, QueueSetup, QueueWorker, RingError,
};
use migrate::Invalid;
use std::error::Error;
use std::fmt::Debug;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use wire::{DeviceId, SliceId};

/// Most queues, or pairs, of a device. A vCPU beyond that shares the queue of another.
pub(super) const QUEUES_MAX: usize = 64;

/// How a companion's operator lends things of one kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lending {
    /// What comes before the colon.
    pub(super) kind: &'static str,
    /// Everything that can be said.
    pub(super) forms: &'static [&'static str],
    /// What is wrong with what comes behind, if anything.
    pub(super) check: fn(&str) -> Result<(), String>,
    /// Opens it.
    pub(super) open: fn(&str) -> Result<LentThing, Box<dyn Error + Send + Sync>>,
}

/// What stands behind a name that is lent.
#[derive(Debug)]
pub(super) enum LentThing {
    /// The file of a console.
    File(File),
    /// An image, and the lowest of its own states: what has its name later is it if that is below it.
    Image { file: File, root: File },
    /// Number of an interface: another one of the same name has another.
    Interface(u32),
    /// Made when a VM uses it: standard input and output, a socket.
    Later,
}

/// What to say of a part of an option that is none of these words.
pub(super) fn unknown(part: &str, words: &str) -> String {
    format!("{part:?} is none of {words}")
}

/// Where a device is opened, and for whom.
#[derive(Debug)]
pub(super) struct Opening<'a> {
    /// Its number.
    pub(super) number: u16,
    /// vCPUs of the VM.
    pub(super) vcpus: u32,
    /// To be looked at before anything outside is changed.
    pub(super) fence: &'a Arc<Fence>,
    /// What becomes of writes that find no room.
    pub(super) on_full: OnFull,
    /// Set when the guest's panic goes by.
    pub(super) panicked: &'a Arc<AtomicBool>,
    /// Its real part may move: it can be closed and opened again.
    pub(super) moves: bool,
    /// What the operator has lent for it; none on the bootstrap slice, where the operator asks for it himself.
    pub(super) lent: Option<&'a LentThing>,
    /// Of a VM that is restored: the generation that writes, which is recorded.
    pub(super) writer: Option<Writer>,
    /// What it was at the checkpoint that the VM is restored from.
    pub(super) restored: Option<&'a DiskState>,
    /// The image of a clone is to be made, beside what is lent.
    pub(super) cloned: bool,
}

/// Slices that a device's queues can be at home on.
#[derive(Debug)]
pub(super) struct Places {
    /// The slice with the real device.
    pub(super) owner: SliceId,
    /// For a queue of each vCPU.
    pub(super) vcpus: Vec<SliceId>,
}

impl Places {
    /// For a queue that belongs to no vCPU.
    pub(super) fn boot(&self) -> SliceId {
        self.vcpus.first().copied().unwrap_or(self.owner)
    }
}

/// Whether the real part of a device can be on another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moves {
    /// Processes of its host use it.
    Nowhere,
    /// Where the operator has named it.
    ByName,
    /// There is nothing to move.
    Anywhere,
}

/// A kind of device: what a VM's description says of one.
pub(super) trait Model: Sized {
    /// What the slice with the real device tells the others. Without back ends elsewhere there may be nothing.
    type Shape;

    /// Its rings are always read on the slice with the real device, as its bytes come from a process there.
    const AT_OWNER: bool = false;

    /// The option that asks for one, without dashes.
    const OPTION: &'static str;

    /// Whether its real part can be elsewhere.
    const MOVES: Moves = Moves::Nowhere;

    /// How a companion's operator lends what it needs, if anything.
    const LENDING: Option<Lending> = None;

    /// Reads the parts of its option that are not for every device; there is one at least, perhaps empty.
    ///
    /// # Errors
    /// What is wrong, for who has typed it.
    fn parse(parts: &[&str]) -> Result<Self, String>;

    /// Names under which it may be lent, the one to ask for first.
    fn names(&self) -> Vec<String> {
        Vec::new()
    }

    /// Opens the real device, and says what the other slices are told.
    fn open(&self, opening: &Opening<'_>) -> Result<(Self::Shape, Arc<dyn BackEnd>), OpenError>;

    /// The same device under the name that it has on another host. None if its real part cannot move.
    fn named(&self, name: &str) -> Option<Self> {
        let _ = name;
        None
    }

    /// Looks at the real device, which may be opened here later, and says what it is.
    ///
    /// # Errors
    /// It could not be opened.
    fn stand_by(
        &self,
        opening: &Opening<'_>,
    ) -> Result<(Self::Shape, Arc<dyn RealPart>), OpenError> {
        let _ = opening;
        Err(OpenError::of("a device that cannot move")("it has no other place"))
    }

    /// Whether a real device of this shape can take the place of one of the shape `of`, which the guest knows.
    ///
    /// # Errors
    /// In what it differs.
    fn carries_on(shape: &Self::Shape, of: &Self::Shape) -> Result<(), String> {
        let _ = (shape, of);
        Err("its real part cannot move".into())
    }

    /// Whether it is what was asked for. A companion's word is checked before it is shown to the guest.
    fn fits(&self, shape: &Self::Shape) -> bool;

    /// The home of each queue, by number.
    fn homes(shape: &Self::Shape, places: &Places) -> Vec<SliceId>;

    /// The device with so many queues, as drivers see it.
    fn seen(shape: &Self::Shape, queues: u16) -> DeviceShape;

    /// The front end of a device of another slice.
    fn remote(shape: &Self::Shape, at: &Remote<'_>) -> Arc<dyn FrontEnd>;
}

/// A real device of this host, open. Dropping it closes it.
pub(super) trait BackEnd: Debug + Send + Sync {
    /// The front end on this slice. From now on the device serves front ends of other slices as well.
    fn front_end(
        &self,
        exchange: &Exchange,
        device: DeviceId,
        queues: u16,
    ) -> Result<Arc<dyn FrontEnd>, ServeError>;

    /// What of it can move.
    fn part(&self) -> Option<Arc<dyn RealPart>> {
        None
    }

    /// What of it has a state that a checkpoint must keep.
    fn kept(&self) -> Option<Arc<dyn RealPart>> {
        self.part()
    }

    /// The VM begins.
    fn start(&self) -> Result<(), OpenError> {
        Ok(())
    }

    /// The guest of a VM that is restored is about to go on, and all slices have what they need. Before this nothing outside
    /// is changed.
    ///
    /// # Errors
    /// It cannot be what it was at the checkpoint.
    fn go_on(&self) -> Result<(), OpenError> {
        Ok(())
    }

    /// The VM is over: what is under way to people and programs gets there.
    fn finish(&self) {}
}

/// A queue that its driver has set up, and that is at home here.
#[derive(Debug)]
pub(super) struct Starting<'a> {
    pub(super) context: &'a QueueContext,
    pub(super) queue: QueueIndex,
    pub(super) setup: &'a QueueSetup,
    pub(super) bell: &'a Doorbell,
    /// Features and all queues of its device.
    pub(super) activation: &'a Activation,
}

/// What a front end makes of a queue.
pub(super) type Worker = Result<Option<Box<dyn QueueWorker>>, RingError>;

/// A device on one slice, wherever the real one is.
pub(super) trait FrontEnd: Debug + Send + Sync {
    /// The doorbell of a queue that is here, if it is not one of its own. `before` has those of the queues before.
    fn bell(&self, queue: usize, before: &[Option<Doorbell>]) -> Option<Doorbell> {
        let _ = (queue, before);
        None
    }

    /// A driver has brought the device up. Everywhere the reset before this is in effect.
    fn start(&self, features: u64) {
        let _ = features;
    }

    /// The worker of a queue; none for a queue that another's worker serves too, or nobody needs.
    ///
    /// # Errors
    /// The queue cannot be: the driver has broken the device.
    fn worker(&self, queue: &Starting<'_>) -> Worker;

    /// The way to the real part, which can be changed. None if that stays where it is.
    fn switch(&self) -> Option<Switch> {
        None
    }

    /// The device is to be reset: nothing keeps its workers from stopping.
    fn stop(&self) {}

    /// The queues that one worker serves together with this one, and this one.
    fn together(&self, queue: u16) -> Range<u16> {
        queue..queue.saturating_add(1)
    }

    /// The worker of this queue has stopped, and another slice serves it from now on. What that must know beyond the state
    /// of the worker.
    fn hand_over(&self, queue: QueueIndex, features: u64) -> FrontEndState {
        let _ = (queue, features);
        FrontEndState::Nothing
    }

    /// This queue is served here from now on; its worker is made next.
    ///
    /// # Errors
    /// That is not what goes with this queue.
    fn take_over(
        &self,
        queue: QueueIndex,
        features: u64,
        state: FrontEndState,
    ) -> Result<(), Invalid> {
        let _ = (queue, features);
        let nothing = state == FrontEndState::Nothing;
        Invalid::unless(nothing, "front_end", "nothing goes with this queue")
    }

    /// The device goes on in a VM that is restored: [`Self::start`] was called, these queues are here, and their workers are made
    /// next. The state is what was saved where it was known.
    ///
    /// # Errors
    /// It is not of such a device.
    fn restore(
        &self,
        queues: &[QueueIndex],
        features: u64,
        state: FrontEndState,
    ) -> Result<(), Invalid> {
        let _ = (queues, features);
        let nothing = state == FrontEndState::Nothing;
        Invalid::unless(nothing, "front_end", "of another kind of device")
    }

    /// What it knows that neither the driver's registers nor its queues show. Its workers are at rest.
    fn save(&self) -> FrontEndState {
        FrontEndState::Nothing
    }
}
