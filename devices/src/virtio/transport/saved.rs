//! The saved form of a device's common configuration.

use super::{
    DRIVER_OK, FEATURES_OK, NEEDS_RESET, NO_VECTOR, Queue, SETTABLE, Transport, agreed, some_vector,
};
use crate::virtio::QUEUE_SIZE_MAX;
use crate::virtio::QUEUES_MAX;
use migrate::{Invalid, Saved, SavedState};
use serde::{Deserialize, Serialize};

/// Registers of virtio 1.3, 4.1.4.3.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransportState {
    /// Feature bits offered; those of the device that takes the state over must be the same.
    pub offered: u64,
    /// Feature bits that the driver has written.
    pub accepted: u64,
    /// `device_feature_select`.
    pub device_feature_select: u32,
    /// `driver_feature_select`.
    pub driver_feature_select: u32,
    /// `device_status` (2.1).
    pub status: u8,
    /// `config_generation`.
    pub generation: u8,
    /// `config_msix_vector`; none when the driver has none.
    pub config_vector: Option<u16>,
    /// `queue_select`.
    pub queue_select: u16,
    /// The queues in order.
    pub queues: Vec<QueueRegistersState>,
}

/// Registers of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueRegistersState {
    /// `queue_size` in entries.
    pub size: u16,
    /// `queue_msix_vector`; none when the driver has none.
    pub vector: Option<u16>,
    /// `queue_enable`.
    pub enabled: bool,
    /// `queue_desc`, a guest-physical address.
    pub descriptors: u64,
    /// `queue_driver`, a guest-physical address.
    pub driver_area: u64,
    /// `queue_device`, a guest-physical address.
    pub device_area: u64,
}

impl SavedState for TransportState {
    const NAME: &'static str = "virtio transport";
    const VERSION: u16 = 1;
    const MAX_BYTES: usize = 104 * QUEUES_MAX + 224;

    fn check(&self) -> Result<(), Invalid> {
        let known = self.status & !(SETTABLE | FEATURES_OK | DRIVER_OK | NEEDS_RESET) == 0;
        Invalid::unless(known, "status", "bits that do not exist")?;
        let (fixed, active) = (self.status & FEATURES_OK != 0, self.status & DRIVER_OK != 0);
        Invalid::unless(fixed || !active, "status", "active without features")?;
        let sound = !fixed || agreed(self.accepted, self.offered);
        Invalid::unless(sound, "accepted", "features that cannot be agreed on")?;
        let vectors = usize::from(self.config_vector.unwrap_or(0)) <= QUEUES_MAX;
        Invalid::unless(vectors, "config_vector", "beyond any table")?;
        let count = self.queues.len() <= QUEUES_MAX;
        Invalid::unless(count, "queues", "more than a device has")?;
        let sound = |saved: &QueueRegistersState| {
            let vector = usize::from(saved.vector.unwrap_or(0)) <= QUEUES_MAX;
            vector && (!saved.enabled || queue(saved).sound(QUEUE_SIZE_MAX))
        };
        let why = "a vector beyond any table, or enabled with size or areas that cannot be";
        Invalid::unless(self.queues.iter().all(sound), "queues", why)
    }
}

impl Saved for Transport {
    type State = TransportState;

    fn save(&self) -> TransportState {
        let queues = self.queues.iter().map(|queue| {
            let [descriptors, driver_area, device_area] = queue.areas;
            QueueRegistersState {
                size: queue.size,
                vector: some_vector(queue.vector).map(|vector| vector.0),
                enabled: queue.enabled,
                descriptors,
                driver_area,
                device_area,
            }
        });
        TransportState {
            offered: self.offered,
            accepted: self.accepted,
            device_feature_select: self.device_select,
            driver_feature_select: self.driver_select,
            status: self.status,
            generation: self.generation,
            config_vector: some_vector(self.config_vector).map(|vector| vector.0),
            queue_select: self.queue_select,
            queues: queues.collect(),
        }
    }

    fn restore(&mut self, state: TransportState) -> Result<(), Invalid> {
        state.check()?;
        let offered = state.offered == self.offered;
        Invalid::unless(offered, "offered", "not the features of this device")?;
        let same = state.queues.len() == self.queues.len();
        Invalid::unless(same, "queues", "not as many as this device has")?;
        let fits = |vector: Option<u16>| vector.is_none_or(|vector| vector < self.vectors);
        Invalid::unless(fits(state.config_vector), "config_vector", "does not exist")?;
        let queues: Vec<Queue> = state.queues.iter().map(queue).collect();
        let fit = state.queues.iter().all(|queue| fits(queue.vector))
            && queues.iter().all(|queue| !queue.enabled || queue.sound(self.queue_size_max));
        Invalid::unless(fit, "queues", "a vector that does not exist, or too large")?;
        *self = Self {
            accepted: state.accepted,
            device_select: state.device_feature_select,
            driver_select: state.driver_feature_select,
            status: state.status,
            generation: state.generation,
            config_vector: state.config_vector.unwrap_or(NO_VECTOR),
            queue_select: state.queue_select,
            queues,
            ..*self
        };
        Ok(())
    }
}

fn queue(saved: &QueueRegistersState) -> Queue {
    Queue {
        size: saved.size,
        vector: saved.vector.unwrap_or(NO_VECTOR),
        enabled: saved.enabled,
        areas: [saved.descriptors, saved.driver_area, saved.device_area],
    }
}
