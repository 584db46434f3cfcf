//! What went through an exchange.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one exchange, written by many threads.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: AtomicU64,)*
        }

        /// The counters at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// All of them now; each is exact, together they may be of different moments.
            #[must_use]
            pub fn counts(&self) -> Counts {
                Counts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Frames sent.
    frames_sent,
    /// Their bytes, with heads.
    bytes_sent,
    /// Frames received.
    frames_received,
    /// Their bytes, with heads.
    bytes_received,
    /// Requests of disks sent to other slices.
    disk_requests,
    /// Requests of disks of this slice that came from others.
    disk_served,
    /// Batches of packets sent to the slice with the network.
    batches,
    /// Batches of packets that came from others.
    batches_served,
    /// Packets for guests received from the slice with the network.
    packets_in,
    /// Packets for guests sent to other slices.
    packets_in_served,
    /// Requests refused here because too much was under way.
    refused,
    /// Packets dropped: nobody allowed them, or too much was under way.
    dropped,
}

/// Adds to a counter.
pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}
