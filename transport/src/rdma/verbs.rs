//! The queue pairs to a peer, and the calls that move messages.
//!
//! Devices, queue pairs and keys are made by `sideway`. It neither asks for completion events nor
//! posts without allocating, so those calls are made on its objects through the bare verbs.
#![expect(
    unsafe_code,
    reason = "verbs take raw pointers to memory that an adapter reads and writes"
)]
// UNSAFETY: the adapter works on slots while no reference to them exists. `Link` owns the pool, the
// queue pairs and the completion queue; a slot is only copied from or to while it is not posted,
// which `carrier` keeps track of by `lane`.

use super::completion::{Done, NOTE, NUDGE, PLACE, RECEIVE, identifier, meaning};
use super::device::{Port, causes};
use super::error::{RdmaError, not_pinned};
use super::exposed::{ExposedMemory, RemoteMemory};
use super::lane::SPARE;
use super::pool::{Pool, SLOT_BYTES, SLOTS, received};
use super::remote_write;
use super::requests::{Requests, request};
use crate::memory::PageMemory;
use crate::traits::Class;
use rdma_mummy_sys as sys;
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::{
    BasicCompletionQueue, CompletionChannel, CompletionQueue, GenericCompletionQueue,
};
use sideway::ibverbs::memory_region::MemoryRegion;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{BasicQueuePair, QueuePair};
use std::io::{self, IoSlice};
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// Messages up to this size are copied into the request itself.
const INLINE_BYTES: u32 = 128;
/// Completions taken by one call.
const BATCH: usize = 32;
/// Bytes of a page.
const PAGE_BYTES: u32 = 4096;
/// Requests to send that can be outstanding.
fn requests(class: usize) -> u32 {
    let pages = if remote_write::CLASSES[class] { remote_write::PAGES_MAX } else { 0 };
    // And one nudge.
    u32::from(SLOTS[class] + SPARE + pages + 1)
}

/// Completions that can be outstanding: the completion queue never overflows. Pages complete only when
/// they fail.
pub(super) fn completions() -> u32 {
    (0..SLOTS.len()).map(|class| u32::from(received(class)) + requests(class)).sum()
}

/// The queue pairs to one peer and everything they need. Fields are dropped in this order: the
/// adapter must be done before the memory goes.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) pairs: [BasicQueuePair; Class::COUNT],
    region: Arc<MemoryRegion>,
    pool: Pool,
    exposed: Option<ExposedMemory>,
    /// Where the peer wants our pages.
    target: Option<RemoteMemory>,
    requests: Requests,
    cq: Arc<BasicCompletionQueue>,
    channel: Arc<CompletionChannel>,
    pub(super) port: Port,
}

// SAFETY: the pool belongs to this value alone and is not tied to a thread; verbs may be called from
// any thread (`ibv_post_send(3)` and the others are thread-safe).
unsafe impl Send for Link {}

impl Link {
    /// Makes pool, queues and queue pairs on `port`, with so many places in the completion queue;
    /// nothing is posted yet.
    pub(super) fn create(
        port: Port,
        places: u32,
        memory: Option<&PageMemory>,
    ) -> Result<Self, RdmaError> {
        let place = port.to_string();
        let step = |step, error: &dyn std::error::Error| RdmaError::Step {
            step,
            place: place.clone(),
            cause: causes(error),
        };
        let domain = port.context.alloc_pd().map_err(|e| step("make a protection domain", &e))?;
        let pool = Pool::map().map_err(|e| step("map memory", &e))?;
        let region = register(&domain, &pool, &place)?;
        let exposed =
            memory.map(|memory| ExposedMemory::register(&domain, memory, &place)).transpose()?;
        let channel = CompletionChannel::new(&port.context)
            .map_err(|e| step("make a completion channel", &e))?;
        channel.set_nonblocking(true).map_err(|e| step("prepare a completion channel", &e))?;
        let cq = port
            .context
            .create_cq_builder()
            .setup_cqe(places)
            .setup_comp_channel(&channel, 0)
            .build()
            .map_err(|e| step("make a completion queue", &e))?;
        let queue_pair = |class: usize| {
            let queue = GenericCompletionQueue::from(Arc::clone(&cq));
            domain
                .create_qp_builder()
                .setup_send_cq(queue.clone())
                .setup_recv_cq(queue)
                .setup_max_send_wr(requests(class))
                .setup_max_recv_wr(u32::from(received(class)))
                .setup_max_send_sge(1)
                .setup_max_recv_sge(1)
                .setup_max_inline_data(INLINE_BYTES)
                .build()
                .map_err(|e| step("make a queue pair", &e))
        };
        let pairs = [queue_pair(0)?, queue_pair(1)?, queue_pair(2)?, queue_pair(3)?];
        set_nonblocking(async_fd(&port)).map_err(|e| step("watch the device", &e))?;
        let (target, requests) = (None, Requests::default());
        Ok(Self { pairs, region, pool, exposed, target, requests, cq, channel, port })
    }

    /// What the peer needs to write pages into our memory, if it may.
    pub(super) fn exposed(&self) -> Option<RemoteMemory> {
        self.exposed.as_ref().map(ExposedMemory::exposed)
    }

    /// From now on pages may be written there.
    pub(super) fn aim(&mut self, target: RemoteMemory) {
        self.target = Some(target);
    }

    /// Bytes of memory from and into which pages can be written; zero if one end exposes none.
    pub(super) fn remote_write_bytes(&self) -> u64 {
        match (self.exposed(), self.target) {
            (Some(own), Some(theirs)) => own.bytes.min(theirs.bytes),
            _ => 0,
        }
    }

    /// Readable after `arm` once a completion came.
    pub(super) fn channel_fd(&self) -> RawFd {
        self.channel.as_raw_fd()
    }

    /// Readable when the device reports an event.
    pub(super) fn async_fd(&self) -> RawFd {
        async_fd(&self.port)
    }

    /// Posts a slot to receive into.
    pub(super) fn post_receive(&mut self, class: usize, slot: u16) -> io::Result<()> {
        let mut part = self.part(class, usize::from(slot), SLOT_BYTES[class]);
        let mut request = sys::ibv_recv_wr {
            wr_id: RECEIVE | identifier(class, slot),
            next: ptr::null_mut(),
            sg_list: &raw mut part,
            num_sge: 1,
        };
        let mut bad = ptr::null_mut();
        // SAFETY: `&mut self` lends the queue pair.
        let pair = unsafe { self.pairs[class].qp() };
        // SAFETY: the request and its part outlive the call, which copies them; the slot lies in
        // the registered pool, which outlives the queue pair.
        posted(unsafe { sys::ibv_post_recv(pair.as_ptr(), &raw mut request, &raw mut bad) })
    }

    /// Copies as much of `parts`, after `skip` bytes, as fits into a free slot to send from. Returns
    /// how much that is.
    pub(super) fn fill(
        &mut self,
        class: usize,
        slot: u16,
        parts: &[IoSlice<'_>],
        skip: usize,
    ) -> usize {
        let slot = usize::from(received(class)) + usize::from(slot);
        let (mut skip, mut filled) = (skip, 0);
        for part in parts {
            let from = &part[skip.min(part.len())..];
            skip -= skip.min(part.len());
            let count = from.len().min(SLOT_BYTES[class] - filled);
            let to = self.pool.at(class, slot, filled, count);
            // SAFETY: `to` has `count` bytes of its slot behind it, which is not posted and so used by
            // nobody else; the source is a slice of other memory.
            unsafe { to.copy_from_nonoverlapping(NonNull::from(from).cast(), count) };
            filled += count;
        }
        filled
    }

    /// Sends the first `length` bytes of a filled slot, with credits, after pages at these offsets, which
    /// go from our memory into the peer's.
    pub(super) fn post_send(
        &mut self,
        class: usize,
        slot: u16,
        length: usize,
        credits: u16,
        pages: impl Iterator<Item = u64>,
    ) -> io::Result<()> {
        for offset in pages {
            self.add_page(class, offset)?;
        }
        let at = usize::from(received(class)) + usize::from(slot);
        let part = self.part(class, at, length);
        self.post(class, identifier(class, slot), Some(part), credits)
    }

    /// Sends credits alone.
    pub(super) fn post_note(&mut self, class: usize, credits: u16) -> io::Result<()> {
        self.post(class, NOTE | identifier(class, 0), None, credits)
    }

    /// Writes nothing to nowhere: takes no slot and needs no key (InfiniBand specification, C9-88), but the
    /// packet tells the other adapter what it misses.
    pub(super) fn post_nudge(&mut self, class: usize) -> io::Result<()> {
        let mut nudge = request(NUDGE | identifier(class, 0));
        nudge.opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE;
        nudge.send_flags = sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
        self.requests.push(nudge, sys::ibv_sge { addr: 0, length: 0, lkey: 0 });
        self.post_requests(class)
    }

    /// Adds the write of a page to the requests that the next message takes along.
    fn add_page(&mut self, class: usize, offset: u64) -> io::Result<()> {
        let (Some(own), Some(theirs)) = (&self.exposed, self.target) else {
            return Err(io::Error::other("a page without memory to write it into"));
        };
        let RemoteMemory { address, bytes, .. } = own.exposed();
        let length = u64::from(PAGE_BYTES);
        if offset.checked_add(length).is_none_or(|end| end > bytes.min(theirs.bytes)) {
            return Err(io::Error::other("a page outside the memory that is exposed"));
        }
        let lkey = own.local_key();
        let part = sys::ibv_sge { addr: address + offset, length: PAGE_BYTES, lkey };
        let mut request = request(PLACE | identifier(class, 0));
        request.num_sge = 1;
        request.opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE;
        request.wr.rdma = sys::rdma_t { remote_addr: theirs.address + offset, rkey: theirs.key };
        self.requests.push(request, part);
        Ok(())
    }

    /// Posts what was added, and then a message with credits: one call for all.
    fn post(
        &mut self,
        class: usize,
        wr_id: u64,
        part: Option<sys::ibv_sge>,
        credits: u16,
    ) -> io::Result<()> {
        let length = part.as_ref().map_or(0, |part| part.length);
        let mut flags =
            sys::ibv_send_flags::IBV_SEND_SIGNALED.0 | sys::ibv_send_flags::IBV_SEND_SOLICITED.0;
        if length <= INLINE_BYTES {
            flags |= sys::ibv_send_flags::IBV_SEND_INLINE.0;
        }
        let mut message = request(wr_id);
        message.num_sge = i32::from(part.is_some());
        message.opcode = sys::ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
        message.send_flags = flags;
        message.imm_data_invalidated_rkey_union.imm_data = u32::from(credits).to_be();
        let part = part.unwrap_or(sys::ibv_sge { addr: 0, length: 0, lkey: 0 });
        self.requests.push(message, part);
        self.post_requests(class)
    }

    /// Posts all requests.
    fn post_requests(&mut self, class: usize) -> io::Result<()> {
        let first = self.requests.link();
        let mut bad = ptr::null_mut();
        // SAFETY: `&mut self` lends the queue pair.
        let pair = unsafe { self.pairs[class].qp() };
        // SAFETY: the requests form a list that ends; they and their parts outlive the call, which copies
        // them. A slot lies in the registered pool, a page in registered memory: both outlive the queue
        // pair. A slot is not touched until its completion came.
        let result = posted(unsafe { sys::ibv_post_send(pair.as_ptr(), first, &raw mut bad) });
        self.requests.clear();
        result
    }

    /// Tries to write a slot's bytes to memory of the peer.
    #[cfg(test)]
    pub(super) fn post_write(&mut self, class: usize, address: u64, key: u32) -> io::Result<()> {
        let mut write = request(NOTE | identifier(class, 0));
        write.num_sge = 1;
        write.opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE;
        write.send_flags = sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
        write.wr.rdma = sys::rdma_t { remote_addr: address, rkey: key };
        let part = self.part(class, usize::from(received(class)), 64);
        self.requests.push(write, part);
        self.post_requests(class)
    }

    /// Where the pool is, and its key: what a peer would need to write to it.
    #[cfg(test)]
    pub(super) fn whereabouts(&self) -> (u64, u32) {
        (self.part(0, 0, 0).addr, self.region.rkey())
    }

    /// A part of the pool as the adapter is told it.
    fn part(&self, class: usize, slot: usize, length: usize) -> sys::ibv_sge {
        let addr = self.pool.at(class, slot, 0, length).addr().get();
        sys::ibv_sge {
            addr: u64::try_from(addr).expect("an address has 64 bits"),
            length: u32::try_from(length).expect("a slot is small"),
            lkey: self.region.lkey(),
        }
    }

    /// Copies bytes of a received slot out; the slot is not posted.
    pub(super) fn copy_out(&mut self, class: usize, slot: u16, from: usize, into: &mut [u8]) {
        let count = into.len();
        let start = self.pool.at(class, usize::from(slot), from, count);
        // SAFETY: `start` has `count` bytes of its slot behind it; the adapter is done with it, because
        // its completion came and it was not posted since.
        unsafe { start.copy_to_nonoverlapping(NonNull::from(into).cast(), count) };
    }

    /// Takes completions out of the queue. True when there may be more.
    pub(super) fn poll(&mut self, done: &mut Vec<Done>) -> io::Result<bool> {
        let mut batch = [const { MaybeUninit::<sys::ibv_wc>::uninit() }; BATCH];
        let most = i32::try_from(BATCH).expect("a small constant");
        // SAFETY: `&mut self` lends the completion queue, and makes this the only poll of it.
        let queue = unsafe { self.cq.cq() };
        // SAFETY: the array has room for as many completions as are asked for.
        let count = unsafe { sys::ibv_poll_cq(queue.as_ptr(), most, batch.as_mut_ptr().cast()) };
        let count = usize::try_from(count)
            .map_err(|_| io::Error::other("the completion queue cannot be read"))?;
        for one in &batch[..count.min(BATCH)] {
            // SAFETY: the call said that it wrote so many.
            done.push(meaning(unsafe { one.assume_init_ref() }));
        }
        Ok(count == BATCH)
    }

    /// Has the channel become readable at the next completion of a received message, or, with
    /// `all`, at the next of any.
    pub(super) fn arm(&mut self, all: bool) -> io::Result<()> {
        // SAFETY: `&mut self` lends the completion queue.
        let queue = unsafe { self.cq.cq() };
        // SAFETY: the queue lives and has a channel.
        posted(unsafe { sys::ibv_req_notify_cq(queue.as_ptr(), i32::from(!all)) })
    }

    /// Takes an event out of the channel, if there is one. Should there be another, it stays readable.
    pub(super) fn take_event(&mut self) -> bool {
        let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
        let channel = &self.channel;
        // SAFETY: `&mut self` lends the channel.
        let channel = unsafe { channel.comp_channel() };
        // SAFETY: both results are written to live variables; the channel does not block.
        let result =
            unsafe { sys::ibv_get_cq_event(channel.as_ptr(), &raw mut queue, &raw mut context) };
        if result != 0 {
            return false;
        }
        // SAFETY: `&mut self` lends the completion queue.
        let queue = unsafe { self.cq.cq() };
        // SAFETY: the channel serves this queue alone, so the event was its.
        unsafe { sys::ibv_ack_cq_events(queue.as_ptr(), 1) };
        true
    }

    /// The next thing the device has to say: its name, and whether it ends the connection.
    pub(super) fn device_event(&mut self) -> Option<(String, bool)> {
        let mut event = MaybeUninit::<sys::ibv_async_event>::zeroed();
        // SAFETY: `self.port` keeps the context alive.
        let context = unsafe { self.port.context.context() };
        // SAFETY: the event is written to live memory; the descriptor does not block.
        if unsafe { sys::ibv_get_async_event(context.as_ptr(), event.as_mut_ptr()) } != 0 {
            return None;
        }
        // Read as a number: a newer kernel may know events that the enumeration does not.
        let place = event.as_ptr().cast::<u8>();
        let offset = mem::offset_of!(sys::ibv_async_event, event_type);
        // SAFETY: the field lies inside the event.
        let place = unsafe { place.add(offset) }.cast::<u32>();
        // SAFETY: the field is a C enumeration, four bytes, and was written by the call.
        let number = unsafe { place.read_unaligned() };
        // SAFETY: the event is the one just taken; unacknowledged, it would hold up the clean-up.
        unsafe { sys::ibv_ack_async_event(event.as_mut_ptr()) };
        Some(match number {
            0 => (String::from("its completion queue overflowed or failed"), true),
            1 => (String::from("its queue pair failed"), true),
            2 => (String::from("its queue pair refused a request of the peer"), true),
            3 => (String::from("the peer broke the access rules of its queue pair"), true),
            8 => (String::from("the device failed"), true),
            10 => (String::from("the port lost its link"), false),
            other => (format!("the device reported event {other}"), false),
        })
    }
}

fn register(
    domain: &Arc<ProtectionDomain>,
    pool: &Pool,
    place: &str,
) -> Result<Arc<MemoryRegion>, RdmaError> {
    let address = pool.start.addr().get();
    // SAFETY: the mapping is valid for its whole length and outlives the region (see `Link`); it is
    // only touched as described at the top of this module.
    let region = unsafe { domain.reg_mr(address, pool.bytes, AccessFlags::LocalWrite) };
    region.map_err(|error| not_pinned(error.0, pool.bytes, place))
}

fn async_fd(port: &Port) -> RawFd {
    // SAFETY: `port` keeps the context alive.
    let context = unsafe { port.context.context() };
    // SAFETY: the field is set when the device is opened and does not change.
    unsafe { (*context.as_ptr()).async_fd }
}

fn set_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: the call takes no pointer.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call takes no pointer.
    match unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn posted(result: i32) -> io::Result<()> {
    match result {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}
