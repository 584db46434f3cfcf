//! What a disk refuses whatever it is made of. Front end, server and back end each ask again: none
//! of them trusts the one before it.

use super::{DiskReply, DiskRequest, DiskShape, REQUEST_BYTES_MAX, SECTOR_BYTES};

impl DiskShape {
    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.sectors.saturating_mul(SECTOR_BYTES)
    }

    /// The answer to a request that no disk of this shape may carry out: out of range (also by
    /// overflow), empty, of broken sectors, larger than [`REQUEST_BYTES_MAX`], or a change of what
    /// is read-only.
    #[must_use]
    pub fn refusal(&self, request: &DiskRequest) -> Option<DiskReply> {
        let (sector, sectors, changes) = match request {
            DiskRequest::Flush => return None,
            DiskRequest::Read { sector, bytes } => (*sector, whole_sectors(*bytes as usize), false),
            DiskRequest::Write { sector, data } => (*sector, whole_sectors(data.len()), true),
            DiskRequest::Discard { .. } if !self.discard => return Some(DiskReply::Unsupported),
            DiskRequest::Discard { sector, sectors }
            | DiskRequest::WriteZeroes { sector, sectors, .. } => (*sector, Some(*sectors), true),
        };
        let end = sectors.filter(|count| *count > 0).and_then(|count| sector.checked_add(count));
        let fits = end.is_some_and(|end| end <= self.sectors);
        (!fits || changes && self.read_only).then_some(DiskReply::Failed)
    }
}

/// Number of sectors, if it is one.
fn whole_sectors(bytes: usize) -> Option<u64> {
    let whole = bytes <= REQUEST_BYTES_MAX && (bytes as u64).is_multiple_of(SECTOR_BYTES);
    whole.then_some(bytes as u64 / SECTOR_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(read_only: bool, discard: bool) -> DiskShape {
        DiskShape { sectors: 100, block_bytes: 512, read_only, discard, id: [0; 20] }
    }

    #[test]
    fn request_inside_the_disk_is_admitted() {
        let shape = shape(false, true);

        for request in [
            DiskRequest::Read { sector: 99, bytes: 512 },
            DiskRequest::Write { sector: 98, data: vec![0; 1024] },
            DiskRequest::Discard { sector: 0, sectors: 100 },
            DiskRequest::Flush,
        ] {
            assert_eq!(shape.refusal(&request), None, "{request:?}");
        }
    }

    #[test]
    fn request_beyond_the_disk_fails() {
        let shape = shape(false, true);

        for request in [
            DiskRequest::Read { sector: 99, bytes: 1024 },
            DiskRequest::Read { sector: u64::MAX, bytes: 512 },
            DiskRequest::Read { sector: 0, bytes: 511 },
            DiskRequest::Read { sector: 0, bytes: 0 },
            DiskRequest::Write { sector: 0, data: vec![0; REQUEST_BYTES_MAX + 512] },
            DiskRequest::Discard { sector: 1, sectors: u64::MAX },
            DiskRequest::WriteZeroes { sector: 100, sectors: 1, unmap: false },
        ] {
            assert_eq!(shape.refusal(&request), Some(DiskReply::Failed), "{request:?}");
        }
    }

    #[test]
    fn change_of_a_read_only_disk_fails() {
        let shape = shape(true, true);
        let write = DiskRequest::Write { sector: 0, data: vec![0; 512] };
        let zero = DiskRequest::WriteZeroes { sector: 0, sectors: 1, unmap: true };

        assert_eq!(shape.refusal(&write), Some(DiskReply::Failed));
        assert_eq!(shape.refusal(&zero), Some(DiskReply::Failed));
        assert_eq!(shape.refusal(&DiskRequest::Read { sector: 0, bytes: 512 }), None);
        assert_eq!(shape.refusal(&DiskRequest::Flush), None);
    }

    #[test]
    fn discard_where_there_is_none_is_unsupported() {
        let discard = DiskRequest::Discard { sector: 0, sectors: 1 };

        assert_eq!(shape(false, false).refusal(&discard), Some(DiskReply::Unsupported));
    }
}
