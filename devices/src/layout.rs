//! Where guest RAM lies.
//!
//! ```text
//! 0            640 KiB    892 KiB   896 KiB   1 MiB            3 GiB          4 GiB
//! | RAM (low)  |  hole    |  id     |  ACPI   |  RAM            |  registers   |  RAM ...
//! ```
//!
//! Every slice brings an amount of memory; the amounts are laid one after the other in slice
//! order, each one NUMA node, and an amount that reaches 3 GiB goes on at 4 GiB. RAM also backs
//! the legacy holes below 1 MiB (the generation id and the ACPI tables are in it); the E820 map just does
//! not offer them as free memory.

use thiserror::Error;

/// End of the RAM below the register hole, in bytes.
pub const LOW_RAM_END: u64 = 0xc000_0000;
/// Start of the RAM above the register hole, in bytes.
pub const HIGH_RAM_START: u64 = 0x1_0000_0000;
/// No RAM at or above this address: the ghost stubs live there, and 40 bits are what the smallest
/// supported processor can address.
pub const RAM_LIMIT: u64 = 0xff_0000_0000;
/// First byte of the page of the [generation id](crate::generation). It has the page for itself and is reserved, not ACPI
/// memory, which a guest may use once it has read the tables (both are asked for by Microsoft's specification).
const GENERATION_PAGE: u64 = 0xd_f000;
const GENERATION_PAGE_END: u64 = 0xe_0000;
/// Guest-physical address of the generation id, 16 bytes. Linux looks for ROMs at each 2 KiB here, and would take some ids
/// for one.
pub const GENERATION_ADDRESS: u64 = GENERATION_PAGE + 0x10;
/// First byte of the area of the ACPI tables.
pub const ACPI_START: u64 = 0xe_0000;
/// End of the area of the ACPI tables.
pub const ACPI_END: u64 = 0x10_0000;
/// First byte of the configuration space of PCI (ECAM): one bus of 1 MiB.
pub const ECAM_START: u64 = 0xe000_0000;
/// End of the configuration space of PCI.
pub const ECAM_END: u64 = 0xe010_0000;
/// First byte of the window in which PCI functions may have their registers.
pub const PCI_WINDOW_START: u64 = ECAM_END;
/// End of that window.
pub const PCI_WINDOW_END: u64 = 0xf000_0000;
/// Granule of every amount of memory, in bytes: a large page never straddles two slices.
pub const GRANULE: u64 = 2 << 20;
/// A guest below this total, in bytes, has no room for a kernel.
pub const RAM_MINIMUM: u64 = 32 << 20;

/// End of conventional memory: the last KiB below 640 KiB is the extended BIOS data area.
const LOW_CONVENTIONAL_END: u64 = 0x9_fc00;
const LOW_RESERVED_END: u64 = 0xa_0000;

/// Memory sizes that make no machine.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum LayoutError {
    /// A size is no multiple of 2 MiB.
    #[error("memory of slice {node} is {bytes} bytes, which is no multiple of 2 MiB")]
    Granule {
        /// The slice.
        node: usize,
        /// Its size in bytes.
        bytes: u64,
    },
    /// Too little in all.
    #[error("guest memory is {bytes} bytes in all, less than {RAM_MINIMUM}")]
    TooSmall {
        /// The sum in bytes.
        bytes: u64,
    },
    /// More than the address space of the guest holds.
    #[error("guest memory of all slices does not fit below address {RAM_LIMIT:#x}")]
    TooLarge,
}

/// A range of guest-physical addresses and the node (slice) that brings its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeRange {
    /// First byte.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// NUMA node, equal to the number of the slice.
    pub node: u32,
}

/// A contiguous block of RAM, for one KVM memory slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RamBlock {
    /// First byte.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Kind of an E820 entry (ACPI 6.5, 15.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum E820Kind {
    /// Free memory.
    Ram,
    /// Not for the guest.
    Reserved,
    /// ACPI tables.
    Acpi,
}

impl E820Kind {
    /// The number in the map.
    #[must_use]
    pub fn code(self) -> u32 {
        match self {
            Self::Ram => 1,
            Self::Reserved => 2,
            Self::Acpi => 3,
        }
    }
}

/// One entry of the E820 map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct E820Entry {
    /// First byte.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// What it is.
    pub kind: E820Kind,
}

/// Guest RAM by node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLayout {
    ranges: Vec<NodeRange>,
    nodes: u32,
    total: u64,
}

impl MemoryLayout {
    /// Lays out the memory of slices 0, 1, ... given in bytes. A slice may bring none.
    ///
    /// # Errors
    ///
    /// A size that is no multiple of 2 MiB, a sum below [`RAM_MINIMUM`] or beyond [`RAM_LIMIT`].
    pub fn new(bytes_per_node: &[u64]) -> Result<Self, LayoutError> {
        let nodes = u32::try_from(bytes_per_node.len()).map_err(|_| LayoutError::TooLarge)?;
        let mut ranges = Vec::new();
        let (mut next, mut total) = (0_u64, 0_u64);
        for (node, (&bytes, number)) in bytes_per_node.iter().zip(0..nodes).enumerate() {
            if !bytes.is_multiple_of(GRANULE) {
                return Err(LayoutError::Granule { node, bytes });
            }
            if bytes > RAM_LIMIT - total {
                return Err(LayoutError::TooLarge);
            }
            total += bytes;
            let low = bytes.min(LOW_RAM_END.saturating_sub(next));
            for part in [low, bytes - low] {
                if part > 0 {
                    ranges.push(NodeRange { start: next, len: part, node: number });
                    next += part;
                }
                if next == LOW_RAM_END {
                    next = HIGH_RAM_START;
                }
            }
        }
        if next > RAM_LIMIT {
            return Err(LayoutError::TooLarge);
        }
        if total < RAM_MINIMUM {
            return Err(LayoutError::TooSmall { bytes: total });
        }
        Ok(Self { ranges, nodes, total })
    }

    /// All ranges in ascending order; a node that reaches over the hole has two.
    #[must_use]
    pub fn ranges(&self) -> &[NodeRange] {
        &self.ranges
    }

    /// Number of nodes, also those without memory.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// All RAM in bytes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// RAM without regard to nodes: one block, or two with the hole between them.
    #[must_use]
    pub fn blocks(&self) -> Vec<RamBlock> {
        let low = self.total.min(LOW_RAM_END);
        let mut blocks = vec![RamBlock { start: 0, len: low }];
        if self.total > low {
            blocks.push(RamBlock { start: HIGH_RAM_START, len: self.total - low });
        }
        blocks
    }

    /// The node whose slice brings this byte; `None` outside RAM.
    #[must_use]
    pub fn node_of(&self, gpa: u64) -> Option<u32> {
        let after = self.ranges.partition_point(|range| range.start <= gpa);
        let range = self.ranges.get(after.checked_sub(1)?)?;
        (gpa - range.start < range.len).then_some(range.node)
    }

    /// Offset of this byte in a file that holds the RAM without the hole; `None` outside RAM.
    #[must_use]
    pub fn offset_of(&self, gpa: u64) -> Option<u64> {
        let offset = match gpa {
            ..LOW_RAM_END => gpa,
            HIGH_RAM_START.. => gpa - HIGH_RAM_START + LOW_RAM_END,
            _ => return None,
        };
        (offset < self.total).then_some(offset)
    }

    /// The map that the guest sees: conventional memory, the BIOS data area, the generation id, the ACPI tables,
    /// and everything from 1 MiB up.
    #[must_use]
    pub fn e820(&self) -> Vec<E820Entry> {
        let entry = |start, end: u64, kind| E820Entry { start, len: end - start, kind };
        let mut map = vec![
            entry(0, LOW_CONVENTIONAL_END, E820Kind::Ram),
            entry(LOW_CONVENTIONAL_END, LOW_RESERVED_END, E820Kind::Reserved),
            entry(GENERATION_PAGE, GENERATION_PAGE_END, E820Kind::Reserved),
            entry(ACPI_START, ACPI_END, E820Kind::Acpi),
        ];
        for block in self.blocks() {
            let start = block.start.max(ACPI_END);
            map.push(entry(start, block.start + block.len, E820Kind::Ram));
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn layout_two_small_slices_is_contiguous() {
        let layout = MemoryLayout::new(&[256 * MIB, 128 * MIB]).unwrap();
        assert_eq!(
            layout.ranges(),
            [
                NodeRange { start: 0, len: 256 * MIB, node: 0 },
                NodeRange { start: 256 * MIB, len: 128 * MIB, node: 1 },
            ]
        );
        assert_eq!(layout.blocks(), [RamBlock { start: 0, len: 384 * MIB }]);
        assert_eq!(layout.node_of(256 * MIB), Some(1));
        assert_eq!(layout.node_of(384 * MIB), None);
    }

    #[test]
    fn layout_slice_over_hole_is_split() {
        let layout = MemoryLayout::new(&[2048 * MIB, 2048 * MIB, 0, 512 * MIB]).unwrap();
        assert_eq!(layout.nodes(), 4);
        assert_eq!(layout.ranges().len(), 4);
        assert_eq!(
            layout.ranges()[2],
            NodeRange { start: HIGH_RAM_START, len: 1024 * MIB, node: 1 }
        );
        assert_eq!(layout.node_of(LOW_RAM_END), None);
        assert_eq!(layout.offset_of(HIGH_RAM_START), Some(LOW_RAM_END));
    }

    #[test]
    fn layout_slice_ending_at_hole_leaves_next_above() {
        let layout = MemoryLayout::new(&[LOW_RAM_END, 2 * MIB]).unwrap();
        assert_eq!(layout.ranges()[1], NodeRange { start: HIGH_RAM_START, len: 2 * MIB, node: 1 });
    }

    #[test]
    fn layout_bad_sizes_are_refused() {
        assert_eq!(
            MemoryLayout::new(&[64 * MIB, 4096]),
            Err(LayoutError::Granule { node: 1, bytes: 4096 })
        );
        assert_eq!(MemoryLayout::new(&[2 * MIB]), Err(LayoutError::TooSmall { bytes: 2 * MIB }));
        assert_eq!(MemoryLayout::new(&[]), Err(LayoutError::TooSmall { bytes: 0 }));
        assert_eq!(MemoryLayout::new(&[1 << 50]), Err(LayoutError::TooLarge));
        assert_eq!(
            MemoryLayout::new(&[!(GRANULE - 1), !(GRANULE - 1)]),
            Err(LayoutError::TooLarge)
        );
        assert_eq!(MemoryLayout::new(&[RAM_LIMIT - GRANULE]), Err(LayoutError::TooLarge));
    }

    #[test]
    fn e820_of_small_guest_is_as_documented() {
        let map = MemoryLayout::new(&[256 * MIB]).unwrap().e820();
        let kinds: Vec<u32> = map.iter().map(|entry| entry.kind.code()).collect();
        assert_eq!(kinds, [1, 2, 2, 3, 1]);
        assert_eq!(map[4], E820Entry { start: MIB, len: 255 * MIB, kind: E820Kind::Ram });
    }

    #[test]
    fn generation_id_is_aligned_and_alone_in_reserved_memory() {
        let map = MemoryLayout::new(&[256 * MIB]).unwrap().e820();
        let page = map
            .iter()
            .find(|entry| (entry.start..entry.start + entry.len).contains(&GENERATION_ADDRESS));
        assert_eq!(page.map(|entry| entry.kind), Some(E820Kind::Reserved));
        assert_eq!(GENERATION_ADDRESS % 8, 0);
        let frame = GENERATION_ADDRESS & !0xfff;
        let others = map.iter().filter(|entry| entry.start < frame + 4096);
        assert_eq!(others.filter(|entry| entry.start + entry.len > frame).count(), 1);
    }

    proptest! {
        #[test]
        fn layout_any_sizes_cover_all_ram_once(sizes in prop::collection::vec(0_u64..2000, 1..9)) {
            let sizes: Vec<u64> = sizes.into_iter().map(|size| size * GRANULE).collect();
            if let Ok(layout) = MemoryLayout::new(&sizes) {
                prop_assert_eq!(layout.total(), sizes.iter().sum::<u64>());
                let mut offset = 0;
                for range in layout.ranges() {
                    prop_assert_eq!(layout.offset_of(range.start), Some(offset));
                    prop_assert_eq!(layout.node_of(range.start + range.len - 1), Some(range.node));
                    offset += range.len;
                }
                prop_assert_eq!(offset, layout.total());
                for (node, size) in (0_u32..).zip(&sizes) {
                    let brought = layout.ranges().iter().filter(|range| range.node == node);
                    prop_assert_eq!(brought.map(|range| range.len).sum::<u64>(), *size);
                }
            }
        }
    }
}
