//! PCI, virtio transport and front ends against a guest that does anything: rings and buffers anywhere
//! in a small memory that changes while the device works, registers written in between, replies and packets
//! at any time.
//!
//! Never a panic; two replicas of the PCI root stay equal; a disk is asked only for what it has, and a
//! read-only one never to change; packets have a header and a bounded length; sockets keep to their bounds.

mod back_ends;
mod script;
mod slice;

use devices::back_end::PacketSink;
use devices::layout;
use script::Script;
use slice::{CID, DEVICES, Slice};
use vm_memory::{Bytes, GuestAddress};

/// Where the upper of the two regions of memory begins.
const HIGH: u64 = 0x1_0000;
const OPERATIONS_MAX: usize = 200;

pub(crate) fn run(input: &[u8]) {
    let (mut script, mut slice) = (Script(input), Slice::new());
    for _ in 0..OPERATIONS_MAX {
        if script.0.is_empty() {
            break;
        }
        match script.byte() % 8 {
            0 => {
                let device = u64::from(script.byte()) % DEVICES;
                slice.activate(device, &mut script);
            }
            1 => {
                let (address, data) = (script.address(), script.bytes(64));
                let _ = slice.memory.write_slice(&data, GuestAddress(address));
            }
            2 => {
                let (address, data) = (script.address(), script.bytes(64));
                slice.changes.lock().unwrap().push((address, data));
            }
            3 => {
                // A descriptor with a buffer that makes sense, or nearly.
                let table = script.address() & !15;
                let mut data = script.address().to_le_bytes().to_vec();
                data.extend(u32::from(script.word()).to_le_bytes());
                data.extend(u16::from(script.byte() % 8).to_le_bytes());
                data.extend(u16::from(script.byte() % 16).to_le_bytes());
                let _ = slice.memory.write_slice(&data, GuestAddress(table));
            }
            4 => slice.serve(),
            5 => {
                let manner = script.byte();
                slice.reply(manner);
                if manner & 128 != 0 {
                    // A header of a packet for sockets, where some descriptor may point.
                    let mut data = [u64::from(CID).to_le_bytes(), 2_u64.to_le_bytes()].concat();
                    for _ in 0..2 {
                        data.extend(u32::from(script.byte() % 4).to_le_bytes());
                    }
                    data.extend(u32::from(script.byte()).to_le_bytes());
                    data.extend([1, 0, script.byte() % 9, 0]);
                    data.extend(u32::from(script.byte() % 4).to_le_bytes());
                    data.extend(u32::from(script.word()).to_le_bytes());
                    data.extend(u32::from(script.byte()).to_le_bytes());
                    let _ = slice.memory.write_slice(&data, GuestAddress(script.address()));
                }
            }
            6 => {
                let (pair, bytes) = (u16::from(script.byte() % 3), usize::from(script.word()));
                slice.net.packet(pair, vec![9; bytes]);
                slice.input.push(&[b'x'; 32][..bytes % 32]);
            }
            _ => {
                let device = u64::from(script.byte()) % (DEVICES + 1);
                let (offset, kind) = (u64::from(script.word()), script.byte() & 1);
                let pci = layout::PCI_WINDOW_START + (device << 16) + offset;
                let ecam = layout::ECAM_START + (device << 15) + (offset & 0xff);
                let address = if kind == 0 { pci } else { ecam };
                let data = script.bytes(9);
                if !data.is_empty() {
                    slice.write(address, &data);
                    slice.roots[0].read(address, &mut [0; 8][..data.len()]);
                }
            }
        }
    }
    slice.serve();
    assert!(slice.roots[0] == slice.roots[1]);
}
