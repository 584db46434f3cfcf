//! The header of a packet (5.10.6). Our own and not that of crate `virtio-vsock`: its packets read guest memory in place,
//! through a descriptor chain, while [`Ring`](super::super::ring::Ring) copies everything once and checks the copy.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Address of the host (5.10.4).
pub const HOST_CID: u64 = 2;
/// The only type of socket here: streams (5.10.6).
pub(super) const STREAM: u16 = 1;
/// Bytes of a header.
pub(super) const HEADER_BYTES: usize = size_of::<Header>();
const _: () = assert!(HEADER_BYTES == 44);

/// Flags of a shutdown (5.10.6.5): who says so receives no more, sends no more.
pub(super) const NO_RECEIVE: u32 = 1;
pub(super) const NO_SEND: u32 = 2;
pub(super) const NO_MORE: u32 = NO_RECEIVE | NO_SEND;

/// `struct virtio_vsock_hdr`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout,
)]
#[repr(C)]
pub(super) struct Header {
    pub(super) src_cid: U64,
    pub(super) dst_cid: U64,
    pub(super) src_port: U32,
    pub(super) dst_port: U32,
    /// Bytes behind the header.
    pub(super) len: U32,
    pub(super) kind: U16,
    pub(super) op: U16,
    pub(super) flags: U32,
    pub(super) buf_alloc: U32,
    pub(super) fwd_cnt: U32,
}

/// What a packet is for (5.10.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Request,
    Response,
    Reset,
    Shutdown,
    Data,
    CreditUpdate,
    CreditRequest,
}

impl Op {
    const ALL: [Self; 7] = [
        Self::Request,
        Self::Response,
        Self::Reset,
        Self::Shutdown,
        Self::Data,
        Self::CreditUpdate,
        Self::CreditRequest,
    ];

    pub(super) fn code(self) -> u16 {
        match self {
            Self::Request => 1,
            Self::Response => 2,
            Self::Reset => 3,
            Self::Shutdown => 4,
            Self::Data => 5,
            Self::CreditUpdate => 6,
            Self::CreditRequest => 7,
        }
    }

    pub(super) fn of(code: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|op| op.code() == code)
    }
}

impl Header {
    /// A reset as the answer to this packet, whatever it says.
    pub(super) fn refusal(&self) -> Self {
        Self {
            src_cid: self.dst_cid,
            dst_cid: self.src_cid,
            src_port: self.dst_port,
            dst_port: self.src_port,
            kind: self.kind,
            op: Op::Reset.code().into(),
            ..Self::default()
        }
    }
}
