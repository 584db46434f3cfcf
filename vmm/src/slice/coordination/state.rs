//! What the next coordinator must know, in a saved form.

use crate::slice::peripherals::OrderState;
use crate::slice::spec::DEVICES_MAX;
use devices::saved::ChipsetState;
use migrate::plan::{Capacity, Offer};
use migrate::{Invalid, SavedState};
use serde::{Deserialize, Serialize};
use wire::control::COORDINATOR_STATE_BYTES_MAX;
use wire::{SLICES_MAX, SliceId};

/// Slices that a VM can have lost, and the text about each.
const LOST_MAX: usize = 64;
const CAUSE_BYTES_MAX: usize = 256;
/// Slices that offer something, and the text about each.
const OFFERS_MAX: usize = SLICES_MAX as usize;
const LACKS_BYTES_MAX: usize = 128;
/// Longer than anything runs; times are added to.
const MILLISECONDS_MAX: u64 = 1 << 42;

/// A slice that was lost while the VM went on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LostState {
    /// Its number.
    pub(super) slice: u16,
    /// One line for a person.
    pub(super) cause: String,
}

/// What a slice offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OfferState {
    pub(super) slice: u16,
    /// vCPUs that may run there.
    pub(super) vcpus: u32,
    /// Bytes of memory that it may be home of.
    pub(super) bytes: u64,
    /// What its processors lack for vCPUs, for a person; empty if nothing.
    pub(super) lacks: String,
    /// Devices whose real part may go there.
    pub(super) reaches: Vec<u16>,
}

/// What a slice has because it coordinates. All other slices have the same of everything else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CoordinatorState {
    /// The platform devices.
    pub(super) chipset: ChipsetState,
    /// How far the devices on PCI have come.
    pub(super) order: OrderState,
    /// Moves of vCPUs begun so far.
    pub(super) moves: u64,
    /// The number of the last checkpoint.
    pub(super) checkpoints: u64,
    /// Since the guest was started, in milliseconds.
    pub(super) elapsed_ms: u64,
    /// Until the VM is to end, in milliseconds, if a limit was set.
    pub(super) left_ms: Option<u64>,
    /// The guest's time to shut down, in milliseconds.
    pub(super) stop_limit_ms: u64,
    /// A panic of the guest has gone by.
    pub(super) panicked: bool,
    /// Slices that were lost so far.
    pub(super) lost: Vec<LostState>,
    /// What slices offer, those that have joined included.
    pub(super) offers: Vec<OfferState>,
}

impl SavedState for CoordinatorState {
    const NAME: &'static str = "coordinator";
    const VERSION: u16 = 3;
    const MAX_BYTES: usize = ChipsetState::MAX_BYTES
        + OrderState::MAX_BYTES
        + LOST_MAX * (CAUSE_BYTES_MAX + 24)
        + OFFERS_MAX * (LACKS_BYTES_MAX + 3 * DEVICES_MAX + 64)
        + 224;

    fn check(&self) -> Result<(), Invalid> {
        self.chipset.check()?;
        self.order.check()?;
        let unless = Invalid::unless;
        unless(self.moves < 1 << 56, "moves", "more than can have been begun")?;
        unless(self.checkpoints < 1 << 56, "checkpoints", "later than any clock says")?;
        let times = [self.elapsed_ms, self.left_ms.unwrap_or(0), self.stop_limit_ms];
        unless(times.iter().all(|time| *time <= MILLISECONDS_MAX), "elapsed_ms", "too long")?;
        unless(self.lost.len() <= LOST_MAX, "lost", "more slices than a VM can have")?;
        let short = |lost: &LostState| lost.cause.len() <= CAUSE_BYTES_MAX;
        unless(self.lost.iter().all(short), "lost", "a text that is too long")?;
        unless(self.offers.len() <= OFFERS_MAX, "offers", "more slices than a VM can have")?;
        let few = |offer: &OfferState| offer.reaches.len() <= DEVICES_MAX;
        unless(self.offers.iter().all(few), "offers", "more devices than a VM can have")?;
        let short = |offer: &OfferState| offer.lacks.len() <= LACKS_BYTES_MAX;
        unless(self.offers.iter().all(short), "offers", "a text that is too long")
    }
}

const _: () = assert!(CoordinatorState::MAX_BYTES + 128 <= COORDINATOR_STATE_BYTES_MAX);

/// Milliseconds in the range of a form.
pub(super) fn milliseconds(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).min(MILLISECONDS_MAX)
}

/// As much of a text as a form has room for.
pub(super) fn shortened(cause: &str) -> String {
    cause[..cause.floor_char_boundary(CAUSE_BYTES_MAX)].to_owned()
}

/// What all slices offer.
pub(super) fn offer_states(capacity: &Capacity) -> Vec<OfferState> {
    let offer = |(slice, offer): (&SliceId, &Offer)| {
        let lacks = offer.lacks.join(", ");
        let lacks = lacks[..lacks.floor_char_boundary(LACKS_BYTES_MAX)].to_owned();
        let reaches = offer.reaches.iter().copied().take(DEVICES_MAX).collect();
        OfferState { slice: slice.0, vcpus: offer.vcpus, bytes: offer.bytes, lacks, reaches }
    };
    capacity.offers.iter().take(OFFERS_MAX).map(offer).collect()
}

/// The other way.
pub(super) fn take_offers(states: &[OfferState], capacity: &mut Capacity) {
    for state in states {
        let offer = capacity.offers.entry(SliceId(state.slice)).or_default();
        (offer.vcpus, offer.bytes) = (state.vcpus, state.bytes);
        offer.reaches = state.reaches.iter().copied().collect();
        offer.lacks = Some(state.lacks.clone()).filter(|it| !it.is_empty()).into_iter().collect();
    }
}
