//! Staged pages: pages of a run that came and are not in the memory file yet.
//!
//! A page that the file does not have yet is expensive to fill through a mapping: it takes a fault, a page of zeros, and
//! then the contents. A write into the file needs neither fault nor zeros, and one call for a run costs half as much as
//! a call for each page (decision 14). So prefetched pages are put side by side as they come, and are written together.
//!
//! ```text
//!   comes, prefetched, not in the file yet --> here --(somebody looks at it, end of the batch,
//!                                                  or a page that is no neighbour)--> in the file
//! ```

use crate::memory::GuestRam;
use dsm_protocol::Gfn;
use std::io::Error;
use wire::{PAGE_SIZE, RUN_MAX};

/// Bytes that wait at most.
const BYTES_MAX: usize = RUN_MAX as usize * PAGE_SIZE;

/// Neighbouring pages that are not in the file yet.
#[derive(Debug)]
pub(crate) struct StagedPages {
    first: Gfn,
    bytes: Vec<u8>,
}

impl Default for StagedPages {
    fn default() -> Self {
        Self { first: Gfn(0), bytes: Vec::with_capacity(BYTES_MAX) }
    }
}

impl StagedPages {
    fn end(&self) -> Gfn {
        let pages = u64::try_from(self.bytes.len() / PAGE_SIZE).expect("a few pages");
        Gfn(self.first.0 + pages)
    }

    /// Takes a page in. What is here already is written first if the page is no neighbour of it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn push(&mut self, ram: &GuestRam, gfn: Gfn, page: &[u8]) -> Result<(), Error> {
        debug_assert_eq!(page.len(), PAGE_SIZE);
        if gfn != self.end() || self.bytes.len() >= BYTES_MAX {
            self.write(ram)?;
        }
        if self.bytes.is_empty() {
            self.first = gfn;
        }
        self.bytes.extend_from_slice(page);
        Ok(())
    }

    /// Writes what is here.
    ///
    /// # Errors
    /// The file cannot be written: it stays here, and the next call fails too.
    pub(crate) fn write(&mut self, ram: &GuestRam) -> Result<(), Error> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        ram.write_to_file(self.first, &self.bytes)?;
        self.bytes.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice::from_ref;

    fn page(of: u8) -> [u8; PAGE_SIZE] {
        [of; PAGE_SIZE]
    }

    fn first_byte(ram: &GuestRam, gfn: u64) -> Option<u8> {
        let mut byte = [0];
        ram.peek(Gfn(gfn), 0, &mut byte).then_some(byte[0])
    }

    #[test]
    fn neighbours_wait_for_each_other_and_strangers_do_not() {
        let ram = GuestRam::new(from_ref(&(0..600))).unwrap();
        let mut staged = StagedPages::default();
        for (gfn, of) in [(7, 1), (8, 2), (9, 3)] {
            staged.push(&ram, Gfn(gfn), &page(of)).unwrap();
        }
        assert_eq!(first_byte(&ram, 7), None);

        staged.push(&ram, Gfn(20), &page(4)).unwrap();
        let seen: Vec<_> = [6, 7, 8, 9, 10, 20].map(|gfn| first_byte(&ram, gfn)).into();
        assert_eq!(seen, [None, Some(1), Some(2), Some(3), None, None]);

        staged.write(&ram).unwrap();
        assert_eq!(first_byte(&ram, 20), Some(4));
    }

    #[test]
    fn frames_on_both_sides_of_a_hole_in_memory_stay_apart() {
        let ram = GuestRam::new(&[0..16, 16..40, 600..700]).unwrap();
        let mut staged = StagedPages::default();
        for gfn in [14, 15, 16, 17, 600] {
            staged.push(&ram, Gfn(gfn), &page(u8::try_from(gfn % 251).unwrap())).unwrap();
        }
        staged.write(&ram).unwrap();
        let seen: Vec<_> = [14, 15, 16, 17, 600].map(|gfn| first_byte(&ram, gfn)).into();
        assert_eq!(seen, [Some(14), Some(15), Some(16), Some(17), Some(98)]);
    }

    #[test]
    fn pages_that_wait_are_bounded() {
        let ram = GuestRam::new(from_ref(&(0..4096))).unwrap();
        let mut staged = StagedPages::default();
        for gfn in 0..1000 {
            staged.push(&ram, Gfn(gfn), &page(5)).unwrap();
            assert!(staged.bytes.len() <= BYTES_MAX);
        }
        assert_eq!(first_byte(&ram, 0), Some(5));
    }
}
