//! Kernels of the NAS parallel benchmarks (NAS Technical Report RNR-94-007), written anew.
//!
//! | kernel | what it does |
//! |---|---|
//! | `ep` | Gaussian deviates: only computes |
//! | `is` | sorts integers: mostly touches memory |
//! | `cg` | conjugate gradients on a sparse system: reads memory here and there |
//! | `ft` | Fourier transforms in three dimensions: each processor reads what all others have written |
//! | `mg` | a multigrid solver: neighbours read the borders of each other's part |
//!
//! Each runs as one program over `all` processors that share its memory, or, with `all` 1, as a
//! serial program. The results are the same to the bit: what is added up has parts that do not depend on `all`, and one order.
//!
//! ```text
//!   EP:          pages 0 | 1.. results of the batches, each processor's on pages of its own
//!   IS:          pages 0 | 1..17 counts of buckets, a page per processor | 17..145 ranks | keys | keys by bucket
//!   CG, FT, MG:  pages 0 | 1..17 parts of sums, a page per processor | arrays
//! ```
//! Word 0 of page 0 is the barrier. It must be a multiple of `all` at the start, as in fresh memory
//! and after every run that came to its end.

mod cg;
mod ep;
mod ft;
mod is;
mod mg;
mod random;
mod reals;
#[cfg(test)]
mod tests;

pub use cg::cg;
pub use ep::{BATCH, ep};
pub use ft::ft;
pub use is::{is, is_check, is_keys};
pub use mg::mg;

/// Where a digest begins.
const SEED_OF_DIGEST: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a over words.
fn mix(digest: u64, word: u64) -> u64 {
    (digest ^ word).wrapping_mul(0x100_0000_01b3)
}

fn word(value: usize) -> u64 {
    u64::try_from(value).unwrap_or(0)
}
