//! The zero page (Linux boot protocol, `struct boot_params`).

use super::{BootConfig, CMDLINE, Payload};
use devices::layout::E820Entry;
use linux_loader::loader::bootparam::{boot_e820_entry, boot_params, setup_header};
use vm_memory::ByteValued;

/// A boot loader without a number of its own.
const LOADER_UNDEFINED: u8 = 0xff;
/// `loadflags`: the heap end is valid. There is no real-mode code that would use a heap.
const CAN_USE_HEAP: u8 = 0x80;

/// Builds the page from the kernel's own header.
pub(super) fn zero_page(
    config: &BootConfig<'_>,
    header: setup_header,
    initrd: Option<&Payload>,
) -> Vec<u8> {
    // Addresses are below 4 GiB by construction; the "ext" fields take what is above 32 bits of a
    // length.
    let low = |value: u64| u32::try_from(value & u64::from(u32::MAX)).unwrap_or(0);
    let mut params = boot_params { hdr: header, ..boot_params::default() };
    params.hdr.type_of_loader = LOADER_UNDEFINED;
    params.hdr.loadflags &= !CAN_USE_HEAP;
    params.hdr.cmd_line_ptr = low(CMDLINE);
    params.hdr.setup_data = 0;
    if let Some(initrd) = initrd {
        let len = u64::try_from(initrd.bytes.len()).unwrap_or(0);
        params.hdr.ramdisk_image = low(initrd.gpa);
        params.hdr.ramdisk_size = low(len);
        params.ext_ramdisk_size = low(len >> 32);
    }
    params.acpi_rsdp_addr = config.acpi.rsdp_address;
    let map = config.layout.e820();
    params.e820_entries = u8::try_from(map.len()).unwrap_or(u8::MAX);
    for (slot, entry) in params.e820_table.iter_mut().zip(map) {
        let E820Entry { start, len, kind } = entry;
        *slot = boot_e820_entry { addr: start, size: len, r#type: kind.code() };
    }
    params.as_slice().to_vec()
}
