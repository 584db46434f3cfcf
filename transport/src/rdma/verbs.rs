//! The pool and the calls that move messages. Everything `unsafe` of RDMA is here.
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

use super::RdmaError;
use super::device::{Port, causes};
use super::lane::SPARE;
use super::lending::{Lending, Lent};
use super::placing;
use crate::memory::PageMemory;
use crate::seam::Class;
use rdma_mummy_sys as sys;
use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::{
    BasicCompletionQueue, CompletionChannel, CompletionQueue, GenericCompletionQueue,
};
use sideway::ibverbs::memory_region::{MemoryRegion, RegisterMemoryRegionErrorKind};
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{BasicQueuePair, QueuePair};
use std::ffi::CStr;
use std::fmt;
use std::fs;
use std::io::{self, ErrorKind, IoSlice};
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// Slots of each class, and so messages under way.
pub(super) const SLOTS: [u16; Class::COUNT] = [64, 128, 128, 32];
/// Bytes of a slot of each class. A page with its head fits one of the second and third.
pub(super) const SLOT_BYTES: [usize; Class::COUNT] = [1024, 8192, 8192, 16384];
/// Messages up to this size are copied into the request itself.
const INLINE_BYTES: u32 = 128;
/// Completions taken by one call.
const BATCH: usize = 32;
/// Bytes of a page.
const PAGE_BYTES: u32 = 4096;
/// An identifier of a work request: what it is, its class and its slot.
const RECEIVE: u64 = 1 << 32;
const NOTE: u64 = 1 << 33;
const PLACE: u64 = 1 << 34;
const NUDGE: u64 = 1 << 35;

/// Where the slots of a class start in the pool: those to receive into, then those to send from.
fn place(class: usize) -> usize {
    let before = (0..class).map(|class| slots(class) * SLOT_BYTES[class]);
    before.sum()
}

/// Slots of both directions.
fn slots(class: usize) -> usize {
    usize::from(received(class)) + usize::from(SLOTS[class])
}

/// Slots to receive into.
pub(super) fn received(class: usize) -> u16 {
    SLOTS[class] + SPARE
}

/// Requests to send that can be outstanding.
fn requests(class: usize) -> u32 {
    let pages = if placing::CLASSES[class] { placing::PAGES_MAX } else { 0 };
    // And one nudge.
    u32::from(SLOTS[class] + SPARE + pages + 1)
}

/// Completions that can be outstanding: the completion queue never overflows. Pages complete only when
/// they fail.
pub(super) fn completions() -> u32 {
    (0..SLOTS.len()).map(|class| u32::from(received(class)) + requests(class)).sum()
}

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
    Placed,
    /// The queue pair of this class failed.
    Failed { class: usize, cause: String },
}

/// Pinned memory of one peer.
#[derive(Debug)]
struct Pool {
    start: NonNull<u8>,
    bytes: usize,
}

impl Pool {
    fn map() -> io::Result<Self> {
        let bytes = place(SLOTS.len());
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // A child process would otherwise turn pages that the adapter writes into copies of them.
        // SAFETY: the range is the mapping just made; the advice changes only what `fork` does.
        unsafe { libc::madvise(start, bytes, libc::MADV_DONTFORK) };
        let start = NonNull::new(start.cast()).ok_or(ErrorKind::OutOfMemory)?;
        Ok(Self { start, bytes })
    }

    /// A byte of a slot, with `count` bytes of the slot behind it; slots to send from follow those to
    /// receive into.
    fn at(&self, class: usize, slot: usize, byte: usize, count: usize) -> NonNull<u8> {
        assert!(slot < slots(class), "slot {slot} of class {class}");
        assert!(byte + count <= SLOT_BYTES[class], "{count} bytes at {byte} of a slot");
        let offset = place(class) + slot * SLOT_BYTES[class] + byte;
        // SAFETY: the assertions keep the offset inside the mapping.
        unsafe { self.start.add(offset) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: `start` is what `mmap` gave for exactly this length, and nothing borrows from it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Requests that are posted together, each with the part of memory it is about. The room is used again.
#[derive(Default)]
struct Requests {
    list: Vec<sys::ibv_send_wr>,
    parts: Vec<sys::ibv_sge>,
}

impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requests").field("count", &self.list.len()).finish_non_exhaustive()
    }
}

impl Requests {
    fn push(&mut self, request: sys::ibv_send_wr, part: sys::ibv_sge) {
        self.list.push(request);
        self.parts.push(part);
    }

    /// Makes a list of the requests; its head.
    fn link(&mut self) -> *mut sys::ibv_send_wr {
        let mut next = ptr::null_mut();
        for (request, part) in self.list.iter_mut().zip(&mut self.parts).rev() {
            request.sg_list = ptr::from_mut(part);
            request.next = next;
            next = ptr::from_mut(request);
        }
        next
    }

    fn clear(&mut self) {
        self.list.clear();
        self.parts.clear();
    }
}

/// The queue pairs to one peer and everything they need. Fields are dropped in this order: the
/// adapter must be done before the memory goes.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) pairs: [BasicQueuePair; Class::COUNT],
    region: Arc<MemoryRegion>,
    pool: Pool,
    lending: Option<Lending>,
    /// Where the peer wants our pages.
    target: Option<Lent>,
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
        let lending =
            memory.map(|memory| Lending::register(&domain, memory, &place)).transpose()?;
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
        Ok(Self { pairs, region, pool, lending, target, requests, cq, channel, port })
    }

    /// What the peer needs to write pages into our memory, if it may.
    pub(super) fn lent(&self) -> Option<Lent> {
        self.lending.as_ref().map(Lending::lent)
    }

    /// From now on pages may be placed there.
    pub(super) fn aim(&mut self, target: Lent) {
        self.target = Some(target);
    }

    /// Bytes of memory from and to which pages can be placed; zero if one end lends none.
    pub(super) fn placeable(&self) -> u64 {
        match (self.lent(), self.target) {
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
        let (Some(own), Some(theirs)) = (&self.lending, self.target) else {
            return Err(io::Error::other("a page without memory to place it in"));
        };
        let Lent { address, bytes, .. } = own.lent();
        let length = u64::from(PAGE_BYTES);
        if offset.checked_add(length).is_none_or(|end| end > bytes.min(theirs.bytes)) {
            return Err(io::Error::other("a page outside the memory that is lent"));
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

pub(super) fn not_pinned(
    error: RegisterMemoryRegionErrorKind,
    bytes: usize,
    place: &str,
) -> RdmaError {
    let cause = match error {
        RegisterMemoryRegionErrorKind::Ibverbs(cause) => cause,
        other => io::Error::other(other.to_string()),
    };
    RdmaError::Pinning { bytes, place: place.to_owned(), cause, limit: limit() }
}

/// A request that asks for nothing yet.
fn request(wr_id: u64) -> sys::ibv_send_wr {
    // SAFETY: a request is a plain C structure for which all bytes zero is a value.
    let mut request: sys::ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
    request.wr_id = wr_id;
    request
}

/// How much this process may lock, as text.
fn limit() -> String {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let soft = line.and_then(|line| line.split_whitespace().next());
    match soft {
        Some("unlimited") | None => String::from("without a limit"),
        Some(bytes) => format!("{bytes} bytes"),
    }
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

fn identifier(class: usize, slot: u16) -> u64 {
    u64::try_from(class).expect("a class is below 3") << 16 | u64::from(slot)
}

fn posted(result: i32) -> io::Result<()> {
    match result {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

fn meaning(one: &sys::ibv_wc) -> Done {
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
        return Done::Placed;
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
