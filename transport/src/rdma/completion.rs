//! What completions say.
#![expect(unsafe_code, reason = "fields of a C structure, and the library's texts")]
// UNSAFETY: unions of numbers are read, and constant C strings.

use super::pool::SLOT_BYTES;
use rdma_mummy_sys as sys;
use std::ffi::CStr;

/// An identifier of a work request: what it is, its class and its slot.
pub(super) const RECEIVE: u64 = 1 << 32;
pub(super) const NOTE: u64 = 1 << 33;
pub(super) const PLACE: u64 = 1 << 34;
pub(super) const NUDGE: u64 = 1 << 35;

/// What became of a posted message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// Ours was received.
    Sent { class: usize, slot: u16 },
    /// A note of ours was received.
    NoteSent { class: usize },
    /// A nudge of ours arrived.
    Nudged { class: usize },
    /// One came.
    Received { class: usize, slot: u16, length: usize, credits: u32 },
    /// A page of ours was written; only failures are asked for.
    Written,
    /// The queue pair of this class failed.
    Failed { class: usize, cause: String },
}

/// The identifier of a request of a class, for a slot.
pub(super) fn identifier(class: usize, slot: u16) -> u64 {
    u64::try_from(class).expect("a class is below 3") << 16 | u64::from(slot)
}

/// What a completion says.
pub(super) fn meaning(one: &sys::ibv_wc) -> Done {
    let class = usize::try_from(one.wr_id >> 16 & 3).expect("two bits");
    let slot = u16::try_from(one.wr_id & 0xffff).expect("sixteen bits");
    if one.status != sys::ibv_wc_status::IBV_WC_SUCCESS {
        return Done::Failed { class, cause: status(one.status) };
    }
    if one.wr_id & NOTE != 0 {
        return Done::NoteSent { class };
    }
    if one.wr_id & NUDGE != 0 {
        return Done::Nudged { class };
    }
    if one.wr_id & PLACE != 0 {
        return Done::Written;
    }
    if one.wr_id & RECEIVE == 0 {
        return Done::Sent { class, slot };
    }
    // Without immediate data it was not sent by this protocol; it brings no credit then.
    let with = one.wc_flags & sys::ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
    // SAFETY: both fields of the union are 32-bit numbers.
    let credits = unsafe { one.imm_data_invalidated_rkey_union.imm_data };
    let credits = if with { u32::from_be(credits) } else { 0 };
    let length = usize::try_from(one.byte_len).unwrap_or(usize::MAX).min(SLOT_BYTES[class]);
    Done::Received { class, slot, length, credits }
}

/// The library's words for a status.
fn status(status: sys::ibv_wc_status::Type) -> String {
    // SAFETY: the call only looks the number up; any number has a text.
    let text = unsafe { sys::ibv_wc_status_str(status) };
    if text.is_null() {
        return format!("status {status}");
    }
    // SAFETY: the library returns constant C strings.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
