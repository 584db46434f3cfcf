//! MG: Poisson's equation on a cube whose sides meet, by cycles over grids of half the side each.
//!
//! ```text
//!   residual ─halved─> ... ─halved─> coarsest: smoothed ─doubled─> residual, smoothed ─> ... ─doubled─> residual, smoothed
//! ```
//! Each step reads the neighbours of a point: those at the border of a processor's part are another one's. All wait behind
//! each step.

use super::random::Random;
use super::reals::{PARTS_MAX, Reals, Sums, real};
use super::{SEED_OF_DIGEST, mix};
use crate::job::{Job, Memory, PAGE_WORDS, now};
use crate::share::barrier;

/// Points along one side of the finest grid at most.
const SIDE_MAX: usize = 128;
/// And of the coarsest.
const SIDE_MIN: usize = 4;
const LEVELS: usize = (SIDE_MAX / SIDE_MIN).ilog2() as usize + 1;
/// Charges of either sign.
const CHARGES: usize = 10;
/// A cycle is a good one if it leaves less of the residual than this.
const FALLS: f64 = 0.5;

const _: () = assert!(SIDE_MAX <= PARTS_MAX);

/// Weights of a point, its 6 neighbours by a side, 12 by an edge and 8 by a corner (NPB 2.4, MG, class A).
type Weights = [f64; 4];
const LAPLACE: Weights = [-8.0 / 3.0, 0.0, 1.0 / 6.0, 1.0 / 12.0];
const SMOOTHER: Weights = [-3.0 / 8.0, 1.0 / 32.0, -1.0 / 64.0, 0.0];
const HALVING: Weights = [1.0 / 2.0, 1.0 / 4.0, 1.0 / 8.0, 1.0 / 16.0];

/// One value for each point of a grid, by z, y and x.
#[derive(Clone, Copy)]
struct Grid<'a> {
    side: usize,
    values: Reals<'a>,
}

/// A point and its neighbours along one axis.
fn along(at: usize, side: usize) -> [usize; 3] {
    [(at + side - 1) % side, at, (at + 1) % side]
}

impl Grid<'_> {
    fn at(self, z: usize, y: usize, x: usize) -> usize {
        (z * self.side + y) * self.side + x
    }

    /// Weighs a point and its neighbours.
    fn around(self, (z, y, x): (usize, usize, usize), weights: &Weights) -> f64 {
        let xs = along(x, self.side);
        let mut sum = 0.0;
        for (dz, z) in along(z, self.side).into_iter().enumerate() {
            for (dy, y) in along(y, self.side).into_iter().enumerate() {
                let row = self.at(z, y, 0);
                let off = usize::from(dz != 1) + usize::from(dy != 1);
                let beside = self.values.get(row + xs[0]) + self.values.get(row + xs[2]);
                sum += weights[off] * self.values.get(row + xs[1]) + weights[off + 1] * beside;
            }
        }
        sum
    }

    /// The value of a coarse grid in the middle of its points.
    fn between(self, (z, y, x): (usize, usize, usize)) -> f64 {
        let sides = |at: usize| [at / 2, at.div_ceil(2) % self.side];
        let (zs, ys, xs) = (sides(z), sides(y), sides(x));
        let mut sum = 0.0;
        for z in zs {
            for y in ys {
                sum +=
                    self.values.get(self.at(z, y, xs[0])) + self.values.get(self.at(z, y, xs[1]));
            }
        }
        sum / 8.0
    }
}

/// A run of MG on one processor.
struct Run<'a, 'b> {
    job: &'b Job,
    memory: &'b Memory,
    /// The charges.
    v: Grid<'a>,
    /// Solutions and residuals, the finest first.
    levels: [(Grid<'a>, Grid<'a>); LEVELS],
    used: usize,
    sums: Sums<'a>,
}

impl<'a, 'b> Run<'a, 'b> {
    fn new(job: &'b Job, memory: &'b Memory, sums: Sums<'a>, all: Reals<'a>) -> Option<Self> {
        let points = |side: usize| side * side * side;
        // A grid and those of all levels, twice, on whole pages.
        let needed = |side: usize| 4 * points(side) + 2 * LEVELS * PAGE_WORDS;
        let mut side = SIDE_MAX;
        while side > SIDE_MIN && needed(side) > all.len() {
            side /= 2;
        }
        let (values, mut rest) = all.split(points(side))?;
        let v = Grid { side, values };
        let mut levels = [(v, v); LEVELS];
        let mut used = 0;
        while side >= SIDE_MIN {
            let (u, behind) = rest.split(points(side))?;
            let (r, behind) = behind.split(points(side))?;
            levels[used] = (Grid { side, values: u }, Grid { side, values: r });
            (rest, used, side) = (behind, used + 1, side / 2);
        }
        Some(Self { job, memory, v, levels, used, sums })
    }

    /// Does something with each point of this processor's part of a grid; then all wait.
    fn each(&self, side: usize, mut at: impl FnMut((usize, usize, usize))) -> Option<()> {
        for z in self.job.part(side) {
            for y in 0..side {
                (0..side).for_each(|x| at((z, y, x)));
            }
        }
        barrier(self.job, self.memory).then_some(())
    }

    fn residual(&self, u: Grid<'_>, v: Grid<'_>, r: Grid<'_>) -> Option<()> {
        self.each(u.side, |(z, y, x)| {
            let at = u.at(z, y, x);
            r.values.set(at, v.values.get(at) - u.around((z, y, x), &LAPLACE));
        })
    }

    fn smooth(&self, r: Grid<'_>, u: Grid<'_>) -> Option<()> {
        self.each(u.side, |(z, y, x)| {
            u.values.add(u.at(z, y, x), r.around((z, y, x), &SMOOTHER));
        })
    }

    fn clear(&self, u: Grid<'_>) -> Option<()> {
        self.each(u.side, |(z, y, x)| u.values.set(u.at(z, y, x), 0.0))
    }

    fn halve(&self, fine: Grid<'_>, coarse: Grid<'_>) -> Option<()> {
        self.each(coarse.side, |(z, y, x)| {
            let value = fine.around((2 * z, 2 * y, 2 * x), &HALVING);
            coarse.values.set(coarse.at(z, y, x), value);
        })
    }

    fn double(&self, coarse: Grid<'_>, fine: Grid<'_>) -> Option<()> {
        self.each(fine.side, |(z, y, x)| {
            fine.values.add(fine.at(z, y, x), coarse.between((z, y, x)));
        })
    }

    fn lay_charges(&self) -> Option<()> {
        let side = self.v.side;
        self.clear(self.v)?;
        self.clear(self.levels[0].0)?;
        let mut random = Random::of(self.job, 0);
        let own = self.job.part(side);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below a side")]
        let mut place = || (random.next() * real(side)) as usize;
        for charge in 0..2 * CHARGES {
            let (z, y, x) = (place(), place(), place());
            if own.contains(&z) {
                let sign = if charge < CHARGES { 1.0 } else { -1.0 };
                self.v.values.set(self.v.at(z, y, x), sign);
            }
        }
        barrier(self.job, self.memory).then_some(())
    }

    fn cycle(&self) -> Option<()> {
        let last = self.used - 1;
        for level in 0..last {
            self.halve(self.levels[level].1, self.levels[level + 1].1)?;
        }
        let (u, r) = self.levels[last];
        self.clear(u)?;
        self.smooth(r, u)?;
        for level in (0..last).rev() {
            let (u, r) = self.levels[level];
            if level > 0 {
                self.clear(u)?;
            }
            self.double(self.levels[level + 1].0, u)?;
            self.residual(u, if level > 0 { r } else { self.v }, r)?;
            self.smooth(r, u)?;
        }
        self.residual(self.levels[0].0, self.v, self.levels[0].1)
    }

    /// Size of the residual.
    fn norm(&mut self) -> Option<f64> {
        let r = self.levels[0].1;
        let plane = |z: usize| {
            let first = r.at(z, 0, 0);
            let values = (first..first + r.side * r.side).map(|at| r.values.get(at));
            values.map(|value| value * value).sum()
        };
        self.sums.sum((self.job, self.memory), r.side, plane).map(libm::sqrt)
    }

    /// `rounds` cycles: how many were good, and a digest of the residuals.
    fn all(&mut self) -> Option<(u64, u64)> {
        self.residual(self.levels[0].0, self.v, self.levels[0].1)?;
        let mut before = self.norm()?;
        let (mut good, mut digest) = (0, mix(SEED_OF_DIGEST, before.to_bits()));
        for _ in 0..self.job.rounds {
            self.cycle()?;
            let norm = self.norm()?;
            good += u64::from(norm < FALLS * before);
            digest = mix(digest, norm.to_bits());
            before = norm;
        }
        Some((good, digest))
    }
}

/// MG: `rounds` cycles. `count` is how many of them left less than half of the residual, `sum` a digest of the residuals.
pub fn mg(job: &mut Job, memory: &Memory) {
    let Some((sums, rest)) = Sums::new(job, memory) else { return };
    let Some(mut run) = Run::new(job, memory, sums, rest) else { return };
    if run.lay_charges().is_none() {
        return;
    }
    let start = now();
    if let Some((good, digest)) = run.all() {
        (job.count, job.sum, job.elapsed) = (good, digest, now().wrapping_sub(start));
    }
}
