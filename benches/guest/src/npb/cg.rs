//! CG: conjugate gradients on a sparse symmetric system, whose entries lie at random distances from the diagonal.
//!
//! ```text
//!   each round:  A z = x by 25 steps ─> x is z, scaled ─> again
//!   each step:   q = A p │ p·q │ z, r │ r·r │ p          (│: all wait)
//! ```
//! The diagonal outweighs the rest of each row, so the system has a solution and the steps find it.

use super::random::Random;
use super::reals::{PARTS_MAX, Reals, Sums, real};
use super::{SEED_OF_DIGEST, mix, word};
use crate::job::{Job, Memory, PAGE_WORDS, now};
use crate::share::barrier;
use core::ops::Range;

/// Entries of a row above the diagonal.
const DISTANCES: usize = 7;
const DIAGONAL: f64 = 8.0;
const STEPS: usize = 25;
/// Parts of the rows, which add up and belong to processors as a whole.
const BLOCKS: usize = 64;
/// A solution is one if what is left of the right side is less than this part of it.
const LEFT: f64 = 1e-10;

const _: () = assert!(BLOCKS <= PARTS_MAX);

struct System<'a> {
    rows: usize,
    distances: [usize; DISTANCES],
    /// Entry `k` of row `i`, and of row `i + distances[k]` at column `i`, is at `k * rows + i`.
    entries: Reals<'a>,
    x: Reals<'a>,
    z: Reals<'a>,
    r: Reals<'a>,
    p: Reals<'a>,
    q: Reals<'a>,
}

impl<'a> System<'a> {
    /// As large as the memory is.
    fn new(job: &Job, memory: Reals<'a>) -> Option<Self> {
        let rows = memory.len() / (DISTANCES + 5) / PAGE_WORDS * PAGE_WORDS;
        if rows == 0 {
            return None;
        }
        let (entries, rest) = memory.split(DISTANCES * rows)?;
        let (x, rest) = rest.split(rows)?;
        let (z, rest) = rest.split(rows)?;
        let (r, rest) = rest.split(rows)?;
        let (p, rest) = rest.split(rows)?;
        let (q, _) = rest.split(rows)?;
        let mut random = Random::of(job, 0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 2^32")]
        let distances = [(); DISTANCES].map(|()| 1 + (random.next() * real(rows / 2 - 1)) as usize);
        Some(Self { rows, distances, entries, x, z, r, p, q })
    }

    fn block(&self, block: usize) -> Range<usize> {
        let rows = self.rows / BLOCKS;
        block * rows..(block + 1) * rows
    }

    /// This processor's rows.
    fn own(&self, job: &Job) -> Range<usize> {
        let blocks = job.part(BLOCKS);
        self.block(blocks.start).start..self.block(blocks.end).start
    }

    fn fill(&self, job: &Job) {
        let own = self.own(job);
        // The distances come first.
        let mut random = Random::of(job, word(DISTANCES * (1 + own.start)));
        for row in own {
            for at in 0..DISTANCES {
                self.entries.set(at * self.rows + row, random.next() - 0.5);
            }
            self.x.set(row, 1.0);
        }
    }

    /// A row times a vector.
    fn times(&self, row: usize, of: Reals<'_>) -> f64 {
        let mut sum = DIAGONAL * of.get(row);
        for (at, distance) in self.distances.iter().enumerate() {
            let entries = at * self.rows;
            let above = (row + distance) % self.rows;
            let below = (row + self.rows - distance) % self.rows;
            sum += self.entries.get(entries + row) * of.get(above);
            sum += self.entries.get(entries + below) * of.get(below);
        }
        sum
    }
}

/// A run of CG on one processor.
struct Run<'a, 'b> {
    job: &'b Job,
    memory: &'b Memory,
    system: System<'a>,
    sums: Sums<'a>,
}

impl Run<'_, '_> {
    fn dot(&mut self, one: Reals<'_>, two: Reals<'_>) -> Option<f64> {
        let system = &self.system;
        self.sums.sum((self.job, self.memory), BLOCKS, |block| {
            system.block(block).map(|row| one.get(row) * two.get(row)).sum()
        })
    }

    /// Solves A z = x. How much is left of the right side, as a part of it.
    fn solve(&mut self) -> Option<f64> {
        let System { x, z, r, p, q, .. } = self.system;
        let own = || self.system.own(self.job);
        for row in own() {
            z.set(row, 0.0);
            r.set(row, x.get(row));
            p.set(row, x.get(row));
        }
        let own = own();
        let all = self.dot(r, r)?;
        let mut rho = all;
        for _ in 0..STEPS {
            for row in own.clone() {
                q.set(row, self.system.times(row, p));
            }
            let d = self.dot(p, q)?;
            // Nothing is left of it.
            let alpha = if d > 0.0 { rho / d } else { 0.0 };
            for row in own.clone() {
                z.add(row, alpha * p.get(row));
                r.add(row, -alpha * q.get(row));
            }
            let next = self.dot(r, r)?;
            let beta = if rho > 0.0 { next / rho } else { 0.0 };
            rho = next;
            for row in own.clone() {
                p.set(row, r.get(row) + beta * p.get(row));
            }
            if !barrier(self.job, self.memory) {
                return None;
            }
        }
        for row in own {
            q.set(row, x.get(row) - self.system.times(row, z));
        }
        Some(libm::sqrt(self.dot(q, q)? / all))
    }

    /// `rounds` solutions: how many were good, and a digest of what was found.
    fn all(&mut self) -> Option<(u64, u64)> {
        let (mut good, mut digest) = (0, SEED_OF_DIGEST);
        for _ in 0..self.job.rounds {
            let left = self.solve()?;
            let System { x, z, .. } = self.system;
            let zeta = 1.0 / self.dot(x, z)?;
            let scale = 1.0 / libm::sqrt(self.dot(z, z)?);
            for row in self.system.own(self.job) {
                x.set(row, z.get(row) * scale);
            }
            good += u64::from(left < LEFT);
            digest = mix(digest, zeta.to_bits());
        }
        Some((good, digest))
    }
}

/// CG: solves the system `rounds` times, each time for what was found before. `count` is how many solutions were good, `sum` a
/// digest of the estimates of the least eigenvalue.
pub fn cg(job: &mut Job, memory: &Memory) {
    let Some((sums, rest)) = Sums::new(job, memory) else { return };
    let Some(system) = System::new(job, rest) else { return };
    system.fill(job);
    if !barrier(job, memory) {
        return;
    }
    let start = now();
    let found = Run { job, memory, system, sums }.all();
    if let Some((good, digest)) = found {
        (job.count, job.sum, job.elapsed) = (good, digest, now().wrapping_sub(start));
    }
}
