//! A list of packets in one message: each with its length, a `u32`, before it.

use thiserror::Error;

const LENGTH_BYTES: usize = 4;

/// Why a message is not a list of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PacketsError {
    /// The list ends inside a packet.
    #[error("split packets: the list ends inside packet {0}")]
    Cut(usize),
    /// A packet is empty or larger than one may be.
    #[error("split packets: packet {index} has {bytes} bytes")]
    Length {
        /// Its place in the list.
        index: usize,
        /// Its bytes.
        bytes: usize,
    },
}

/// Bytes that these packets take in a list.
#[must_use]
pub fn packets_bytes(packets: &[Vec<u8>]) -> usize {
    packets.iter().map(|packet| LENGTH_BYTES + packet.len()).sum()
}

/// Writes packets, each below 4 GiB, as a list.
#[must_use]
pub fn join_packets(packets: &[Vec<u8>]) -> Vec<u8> {
    let mut list = Vec::with_capacity(packets_bytes(packets));
    for packet in packets {
        let length = u32::try_from(packet.len()).expect("a packet is far below 4 GiB");
        list.extend_from_slice(&length.to_le_bytes());
        list.extend_from_slice(packet);
    }
    list
}

/// Number of packets in a list, each of at most `most` bytes.
///
/// # Errors
/// A list that is cut, and a packet that is empty or too large.
pub fn count_packets(list: &[u8], most: usize) -> Result<usize, PacketsError> {
    walk(list, most, |_| ())
}

/// Reads a list of packets of at most `most` bytes each.
///
/// # Errors
/// A list that is cut, and a packet that is empty or too large.
pub fn split_packets(list: &[u8], most: usize) -> Result<Vec<Vec<u8>>, PacketsError> {
    let mut packets = Vec::new();
    walk(list, most, |packet| packets.push(packet.to_vec()))?;
    Ok(packets)
}

fn walk(list: &[u8], most: usize, mut each: impl FnMut(&[u8])) -> Result<usize, PacketsError> {
    let mut rest = list;
    let mut index = 0;
    while !rest.is_empty() {
        let (length, tail) = rest.split_first_chunk().ok_or(PacketsError::Cut(index))?;
        let bytes = u32::from_le_bytes(*length) as usize;
        if bytes == 0 || bytes > most {
            return Err(PacketsError::Length { index, bytes });
        }
        let (packet, tail) = tail.split_at_checked(bytes).ok_or(PacketsError::Cut(index))?;
        each(packet);
        rest = tail;
        index += 1;
    }
    Ok(index)
}
