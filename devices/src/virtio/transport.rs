//! The state of a device behind the common configuration structure (virtio 1.3, 4.1.4.3), pure.
//!
//! ```text
//!   reset --ACKNOWLEDGE, DRIVER--> features --FEATURES_OK--> queues --DRIVER_OK--> active
//!     ^                              (refused when not offered, or VERSION_1 is missing)
//!     +---- status 0: from everywhere; out of `active` with [`Event::Reset`] ----+
//! ```
//! After `FEATURES_OK` features are fixed, after its enabling a queue, after `DRIVER_OK` all of it.
//! Writes that come too late, of the wrong width or to what does not exist are ignored. A queue that is
//! enabled with nonsense (size no power of two or too large, areas misaligned) makes the device need a
//! reset.

mod saved;

pub use saved::{QueueRegistersState, TransportState};

use super::{Activation, F_VERSION_1, QueueIndex, QueueSetup};
use crate::msix::MsixVector;
use virtio_bindings::virtio_config::{
    VIRTIO_CONFIG_S_ACKNOWLEDGE, VIRTIO_CONFIG_S_DRIVER, VIRTIO_CONFIG_S_DRIVER_OK,
    VIRTIO_CONFIG_S_FAILED, VIRTIO_CONFIG_S_FEATURES_OK, VIRTIO_CONFIG_S_NEEDS_RESET,
};

/// Bytes of the structure, up to and with `queue_reset`.
pub(crate) const COMMON_BYTES: usize = 60;
/// No vector (virtio 1.3, 4.1.5.1.2).
const NO_VECTOR: u16 = 0xffff;

const DRIVER_OK: u8 = bit(VIRTIO_CONFIG_S_DRIVER_OK);
const FEATURES_OK: u8 = bit(VIRTIO_CONFIG_S_FEATURES_OK);
const NEEDS_RESET: u8 = bit(VIRTIO_CONFIG_S_NEEDS_RESET);
/// What a driver may set without further conditions.
const SETTABLE: u8 =
    bit(VIRTIO_CONFIG_S_ACKNOWLEDGE | VIRTIO_CONFIG_S_DRIVER | VIRTIO_CONFIG_S_FAILED);

const fn bit(value: u32) -> u8 {
    value.to_le_bytes()[0]
}

/// Offsets of the structure.
mod at {
    pub(super) const DEVICE_FEATURE_SELECT: usize = 0;
    pub(super) const DEVICE_FEATURE: usize = 4;
    pub(super) const DRIVER_FEATURE_SELECT: usize = 8;
    pub(super) const DRIVER_FEATURE: usize = 12;
    pub(super) const CONFIG_VECTOR: usize = 16;
    pub(super) const NUM_QUEUES: usize = 18;
    pub(super) const DEVICE_STATUS: usize = 20;
    pub(super) const CONFIG_GENERATION: usize = 21;
    pub(super) const QUEUE_SELECT: usize = 22;
    pub(super) const QUEUE_SIZE: usize = 24;
    pub(super) const QUEUE_VECTOR: usize = 26;
    pub(super) const QUEUE_ENABLE: usize = 28;
    pub(super) const QUEUE_NOTIFY_OFF: usize = 30;
    pub(super) const QUEUE_DESC: usize = 32;
    pub(super) const QUEUE_DRIVER: usize = 40;
    pub(super) const QUEUE_DEVICE: usize = 48;
    pub(super) const QUEUE_END: usize = 56;
}

/// What a write brings about beyond the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The driver has finished its set-up.
    Activated(Activation),
    /// An activated device was reset.
    Reset,
}

/// Registers of a queue. The three areas are descriptors, driver and device area.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Queue {
    size: u16,
    vector: u16,
    enabled: bool,
    areas: [u64; 3],
}

impl Queue {
    fn new(size_max: u16) -> Self {
        Self { size: size_max, vector: NO_VECTOR, enabled: false, areas: [0; 3] }
    }

    /// Alignment by virtio 1.3, 2.7; size by 2.7 and 4.1.4.3.2.
    fn sound(&self, size_max: u16) -> bool {
        let aligned = self.areas.iter().zip([16, 2, 4]).all(|(area, to)| area.is_multiple_of(to));
        aligned && self.size.is_power_of_two() && self.size <= size_max
    }
}

/// State of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Transport {
    offered: u64,
    accepted: u64,
    device_select: u32,
    driver_select: u32,
    status: u8,
    generation: u8,
    config_vector: u16,
    queue_select: u16,
    queue_size_max: u16,
    vectors: u16,
    queues: Vec<Queue>,
}

impl Transport {
    /// A device at rest with these queues and so many interrupt vectors.
    pub(crate) fn new(offered: u64, queues: u16, queue_size_max: u16, vectors: u16) -> Self {
        Self {
            offered,
            accepted: 0,
            device_select: 0,
            driver_select: 0,
            status: 0,
            generation: 0,
            config_vector: NO_VECTOR,
            queue_select: 0,
            queue_size_max,
            vectors,
            queues: (0..queues).map(|_| Queue::new(queue_size_max)).collect(),
        }
    }

    fn reset(&mut self) {
        let queues = u16::try_from(self.queues.len()).unwrap_or(u16::MAX);
        let fresh = Self::new(self.offered, queues, self.queue_size_max, self.vectors);
        // The generation goes on: a driver that reads across a reset must see a change.
        *self = Self { generation: self.generation, ..fresh };
    }

    /// True from `DRIVER_OK` to reset.
    fn active(&self) -> bool {
        self.status & DRIVER_OK != 0
    }

    /// What is raised for a change of configuration or status; `None` before `DRIVER_OK`, when nobody
    /// listens.
    pub(crate) fn config_vector(&self) -> Option<MsixVector> {
        let vector = some_vector(self.config_vector);
        vector.filter(|_| self.active())
    }

    /// The device cannot go on (virtio 1.3, 2.1.2). True when that is news. A worker may say so while the driver resets the device: what has
    /// been reset needs no reset, and Linux waits for ever for a status of 0.
    pub(crate) fn set_needs_reset(&mut self) -> bool {
        if !self.active() {
            return false;
        }
        let news = self.status & NEEDS_RESET == 0;
        self.status |= NEEDS_RESET;
        news
    }

    /// The device's own configuration has changed.
    pub(crate) fn next_generation(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    /// The whole structure as bytes.
    pub(crate) fn read(&self) -> [u8; COMMON_BYTES] {
        let mut bytes = [0; COMMON_BYTES];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(at::DEVICE_FEATURE_SELECT, &self.device_select.to_le_bytes());
        put(at::DEVICE_FEATURE, &half(self.offered, self.device_select).to_le_bytes());
        put(at::DRIVER_FEATURE_SELECT, &self.driver_select.to_le_bytes());
        put(at::DRIVER_FEATURE, &half(self.accepted, self.driver_select).to_le_bytes());
        put(at::CONFIG_VECTOR, &self.config_vector.to_le_bytes());
        let queues = u16::try_from(self.queues.len()).unwrap_or(u16::MAX);
        put(at::NUM_QUEUES, &queues.to_le_bytes());
        put(at::DEVICE_STATUS, &[self.status]);
        put(at::CONFIG_GENERATION, &[self.generation]);
        put(at::QUEUE_SELECT, &self.queue_select.to_le_bytes());
        // A queue that does not exist has size 0 (4.1.4.3.1).
        if let Some(queue) = self.queues.get(usize::from(self.queue_select)) {
            put(at::QUEUE_SIZE, &queue.size.to_le_bytes());
            put(at::QUEUE_VECTOR, &queue.vector.to_le_bytes());
            put(at::QUEUE_ENABLE, &u16::from(queue.enabled).to_le_bytes());
            put(at::QUEUE_NOTIFY_OFF, &self.queue_select.to_le_bytes());
            for (number, area) in queue.areas.iter().enumerate() {
                put(at::QUEUE_DESC + 8 * number, &area.to_le_bytes());
            }
        }
        bytes
    }

    /// Writes a register in its own width; 64-bit ones also half by half (4.1.3.1).
    pub(crate) fn write(&mut self, offset: usize, data: &[u8]) -> Option<Event> {
        match (offset, data) {
            (at::DEVICE_FEATURE_SELECT, &[a, b, c, d]) => {
                self.device_select = u32::from_le_bytes([a, b, c, d]);
            }
            (at::DRIVER_FEATURE_SELECT, &[a, b, c, d]) => {
                self.driver_select = u32::from_le_bytes([a, b, c, d]);
            }
            (at::DRIVER_FEATURE, &[a, b, c, d]) => self.accept(u32::from_le_bytes([a, b, c, d])),
            (at::CONFIG_VECTOR, &[a, b]) => {
                self.config_vector = self.existing_vector(u16::from_le_bytes([a, b]));
            }
            (at::DEVICE_STATUS, &[value]) => return self.write_status(value),
            (at::QUEUE_SELECT, &[a, b]) => self.queue_select = u16::from_le_bytes([a, b]),
            (at::QUEUE_SIZE..at::QUEUE_END, _) => self.write_queue(offset, data),
            _ => {}
        }
        None
    }

    fn accept(&mut self, bits: u32) {
        let shift = match self.driver_select {
            0 => 0,
            1 => 32,
            _ => return,
        };
        if self.status & FEATURES_OK == 0 {
            let kept = self.accepted & !(u64::from(u32::MAX) << shift);
            self.accepted = kept | u64::from(bits) << shift;
        }
    }

    fn write_status(&mut self, value: u8) -> Option<Event> {
        if value == 0 {
            let was_active = self.active();
            self.reset();
            return was_active.then_some(Event::Reset);
        }
        self.status |= value & SETTABLE;
        if value & FEATURES_OK != 0 && agreed(self.accepted, self.offered) {
            self.status |= FEATURES_OK;
        }
        let may_start = self.status & (FEATURES_OK | NEEDS_RESET | DRIVER_OK) == FEATURES_OK;
        if value & DRIVER_OK == 0 || !may_start {
            return None;
        }
        self.status |= DRIVER_OK;
        self.activation().map(Event::Activated)
    }

    /// Features and queues while the device is active.
    pub(crate) fn activation(&self) -> Option<Activation> {
        let enabled = (0..).zip(&self.queues).filter(|(_, queue)| queue.enabled);
        let queues = enabled.map(|(index, queue)| (QueueIndex(index), setup(queue))).collect();
        self.active().then_some(Activation { features: self.accepted, queues })
    }

    fn write_queue(&mut self, offset: usize, data: &[u8]) {
        let (active, size_max) = (self.active(), self.queue_size_max);
        let vectors = self.vectors;
        let Some(queue) = self.queues.get_mut(usize::from(self.queue_select)) else { return };
        if active || queue.enabled {
            return;
        }
        match (offset, data) {
            (at::QUEUE_SIZE, &[a, b]) => queue.size = u16::from_le_bytes([a, b]),
            (at::QUEUE_VECTOR, &[a, b]) => {
                let vector = u16::from_le_bytes([a, b]);
                queue.vector = if vector < vectors { vector } else { NO_VECTOR };
            }
            (at::QUEUE_ENABLE, [1, 0]) => {
                if queue.sound(size_max) {
                    queue.enabled = true;
                } else {
                    self.status |= NEEDS_RESET;
                }
            }
            (at::QUEUE_DESC.., _) => write_area(&mut queue.areas, offset, data),
            _ => {}
        }
    }

    /// A vector that does not exist reads back as none (4.1.5.1.2.1).
    fn existing_vector(&self, vector: u16) -> u16 {
        if vector < self.vectors { vector } else { NO_VECTOR }
    }
}

/// Whether a driver may use a device with these features.
fn agreed(accepted: u64, offered: u64) -> bool {
    accepted & !offered == 0 && accepted & F_VERSION_1 != 0
}

/// Writes an area's address, or a half of it.
fn write_area(areas: &mut [u64; 3], offset: usize, data: &[u8]) {
    const { assert!(at::QUEUE_DRIVER == at::QUEUE_DESC + 8 && at::QUEUE_DEVICE == at::QUEUE_DRIVER + 8) };
    let Some(area) = areas.get_mut((offset - at::QUEUE_DESC) / 8) else { return };
    let within = offset % 8;
    if !matches!((within, data.len()), (0, 8) | (0 | 4, 4)) {
        return;
    }
    let mut bytes = area.to_le_bytes();
    bytes[within..within + data.len()].copy_from_slice(data);
    *area = u64::from_le_bytes(bytes);
}

fn setup(queue: &Queue) -> QueueSetup {
    let [descriptors, driver_area, device_area] = queue.areas;
    let vector = some_vector(queue.vector);
    QueueSetup { size: queue.size, descriptors, driver_area, device_area, vector }
}

fn some_vector(vector: u16) -> Option<MsixVector> {
    (vector != NO_VECTOR).then_some(MsixVector(vector))
}

/// 32 bits of a set of features; there are none beyond 64.
fn half(features: u64, select: u32) -> u32 {
    let half = match select {
        0 => features & u64::from(u32::MAX),
        1 => features >> 32,
        _ => 0,
    };
    u32::try_from(half).unwrap_or(0)
}

#[cfg(test)]
mod tests;
