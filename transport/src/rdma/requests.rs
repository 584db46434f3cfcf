//! Requests that are posted together.
#![expect(unsafe_code, reason = "a request is a plain C structure")]
// UNSAFETY: see `request`.

use rdma_mummy_sys as sys;
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr;

/// Requests that are posted together, each with the part of memory it is about. The room is used again.
#[derive(Default)]
pub(super) struct Requests {
    pub(super) list: Vec<sys::ibv_send_wr>,
    parts: Vec<sys::ibv_sge>,
}

impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requests").field("count", &self.list.len()).finish_non_exhaustive()
    }
}

impl Requests {
    pub(super) fn push(&mut self, request: sys::ibv_send_wr, part: sys::ibv_sge) {
        self.list.push(request);
        self.parts.push(part);
    }

    /// Makes a list of the requests; its head.
    pub(super) fn link(&mut self) -> *mut sys::ibv_send_wr {
        let mut next = ptr::null_mut();
        for (request, part) in self.list.iter_mut().zip(&mut self.parts).rev() {
            request.sg_list = ptr::from_mut(part);
            request.next = next;
            next = ptr::from_mut(request);
        }
        next
    }

    pub(super) fn clear(&mut self) {
        self.list.clear();
        self.parts.clear();
    }
}

/// A request that asks for nothing yet.
pub(super) fn request(wr_id: u64) -> sys::ibv_send_wr {
    // SAFETY: a request is a plain C structure for which all bytes zero is a value.
    let mut request: sys::ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
    request.wr_id = wr_id;
    request
}
