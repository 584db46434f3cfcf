//! Memory made ready at the start (`memfd,prealloc`): all pages of the file are there, chunks on huge pages.
//!
//! A page that the file does not have yet costs a fault and its zeros when it comes. On a virtual machine whose free
//! memory went back to its own host it costs far more (decision 15). A slice that is given its memory in advance only
//! copies. The price is memory for the whole VM on every slice that asks for it.

use super::chunk::ChunkId;
use super::places::Place;
use super::prepared::Prepared;
use super::ram::GuestRam;
use crate::kernel::{GuestMapping, HUGE};
use std::io::Error;
use std::ops::Range;
use wire::{Gfn, PAGE_SIZE};

impl GuestRam {
    /// Fills the file, and maps the frames of this slice's home (`own`) in the guest mapping.
    ///
    /// # Errors
    /// There is not so much memory.
    pub(crate) fn prepare(&mut self, own: &[Range<u64>]) -> Result<(), Error> {
        let mut huge = Vec::with_capacity(self.bytes() / HUGE);
        for offset in (0..self.bytes()).step_by(HUGE) {
            // With one page there the kernel makes a huge page of zeros of the rest; without any it refuses.
            self.alias.advise(offset, PAGE_SIZE, libc::MADV_POPULATE_WRITE)?;
            let mut collapsed = self.alias.advise(offset, HUGE, libc::MADV_COLLAPSE);
            self.alias.advise(offset, HUGE, libc::MADV_POPULATE_WRITE)?;
            if collapsed.is_err() {
                collapsed = self.alias.advise(offset, HUGE, libc::MADV_COLLAPSE);
            }
            huge.push(collapsed.is_ok());
            if self.place_at(offset) == Place::Plain {
                self.guest.advise(offset, HUGE, libc::MADV_POPULATE_WRITE)?;
                if collapsed.is_ok() {
                    self.change_place(offset, Place::Plain, Place::Huge);
                }
            }
        }
        let refused = huge.iter().filter(|huge| !**huge).count();
        if refused > 0 {
            let of = huge.len();
            tracing::warn!(refused, of, "chunks of guest memory that are not on huge pages");
        }
        self.prepared = Some(Prepared::new(huge));
        for offset in own.iter().cloned().flatten().filter_map(|frame| self.offset(Gfn(frame))) {
            self.set_backed(offset);
        }
        Ok(())
    }

    /// True for a chunk that the file has as a huge page from the start.
    pub(crate) fn is_prepared(&self, chunk: ChunkId) -> bool {
        let prepared = self.prepared.as_ref().zip(self.offset(chunk.first()));
        prepared.is_some_and(|(prepared, offset)| prepared.is_huge(offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::kind::Memory;
    use std::slice::from_ref;

    #[test]
    fn memory_is_there_and_what_others_have_was_never_here() {
        let (all, own) = (0..2048, 512..1024);
        let ram = GuestRam::with_memory(from_ref(&all), from_ref(&own), Memory::MemfdPrealloc);
        let ram = ram.unwrap();

        let holes: Vec<bool> = [0, 511, 512, 1023, 1024].map(|gfn| ram.is_hole(Gfn(gfn))).into();
        assert_eq!(holes, [true, true, false, false, true]);
        assert!(!ram.is_new(Gfn(3)), "the file has it");
        let mut pages = [0; 2048];
        ram.alias.residency(0, &mut pages).unwrap();
        assert!(pages.iter().all(|page| page & 1 != 0));

        ram.write(Gfn(3), 0, &[7]);
        ram.note_had(Gfn(3));
        let mut byte = [0];
        assert!(ram.peek(Gfn(3), 0, &mut byte) && byte == [7]);
        if ram.is_prepared(ChunkId(1)) {
            assert_eq!(ram.place(ChunkId(1)), Place::Huge);
            assert_eq!(ram.huge_bytes().unwrap(), 2 << 20, "the guest sees its own");
        } else {
            needs::leave_out("this kernel gives memory files no huge pages");
        }
    }
}
