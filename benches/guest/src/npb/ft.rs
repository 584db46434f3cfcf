//! FT: a partial differential equation solved by Fourier transforms in three dimensions.
//!
//! ```text
//!   random field ─forward─> spectrum ─times exp(-4 a pi^2 k^2 t)─> field ─back─> checksum     t = 1, 2, ...
//!   a transform:  lines along x and y of own planes │ lines along z of own rows │      (│: all wait)
//! ```
//! Lines along z cross the planes of all processors: each reads and writes what the others have written.

use super::random::Random;
use super::reals::{PARTS_MAX, Reals, Sums, real};
use super::{SEED_OF_DIGEST, mix, word};
use crate::job::{Job, Memory, index, now};
use crate::share::barrier;
use core::f64::consts::PI;

/// Points along one side at most; 4 at least.
const SIDE_MAX: usize = 64;
/// How fast the field evens out.
const ALPHA: f64 = 1e-6;
/// Points that a checksum adds up, in parts of 16.
const CHECKED: usize = 1024;
const PART: usize = 16;
/// How far a field that was transformed there and back may be from what it was.
const ROUNDING: f64 = 1e-9;

const _: () = assert!(CHECKED / PART <= PARTS_MAX);

#[derive(Clone, Copy)]
struct Complex {
    re: f64,
    im: f64,
}

impl Complex {
    const ZERO: Self = Self { re: 0.0, im: 0.0 };

    fn times(self, other: Self) -> Self {
        Self {
            re: self.re * other.re - self.im * other.im,
            im: self.re * other.im + self.im * other.re,
        }
    }

    fn plus(self, other: Self) -> Self {
        Self { re: self.re + other.re, im: self.im + other.im }
    }

    fn scaled(self, by: f64) -> Self {
        Self { re: self.re * by, im: self.im * by }
    }
}

/// Which way a transform goes.
#[derive(Clone, Copy)]
enum Way {
    Forward,
    Back,
}

/// Transforms of lines.
struct Lines {
    side: usize,
    /// exp(-2 pi i k / side).
    roots: [Complex; SIDE_MAX / 2],
}

impl Lines {
    fn new(side: usize) -> Self {
        let mut roots = [Complex::ZERO; SIDE_MAX / 2];
        for (k, root) in roots.iter_mut().take(side / 2).enumerate() {
            let angle = -2.0 * PI * real(k) / real(side);
            *root = Complex { re: libm::cos(angle), im: libm::sin(angle) };
        }
        Self { side, roots }
    }

    /// Transforms one line in place (Cooley and Tukey, radix 2), without the factor of the way back.
    fn transform(&self, line: &mut [Complex], way: Way) {
        let bits = self.side.trailing_zeros();
        for at in 0..self.side {
            let other = at.reverse_bits() >> (usize::BITS - bits);
            if at < other {
                line.swap(at, other);
            }
        }
        let mut half = 1;
        while half < self.side {
            let step = self.side / (2 * half);
            for first in (0..self.side).step_by(2 * half) {
                for k in 0..half {
                    let root = self.roots[k * step];
                    let root = match way {
                        Way::Forward => root,
                        Way::Back => Complex { im: -root.im, ..root },
                    };
                    let (even, odd) = (line[first + k], line[first + half + k].times(root));
                    line[first + k] = even.plus(odd);
                    line[first + half + k] = even.plus(odd.scaled(-1.0));
                }
            }
            half *= 2;
        }
    }
}

/// A field of complex numbers, by z, y and x.
#[derive(Clone, Copy)]
struct Field<'a> {
    side: usize,
    numbers: Reals<'a>,
}

impl Field<'_> {
    fn at(self, (z, y, x): (usize, usize, usize)) -> usize {
        ((z * self.side + y) * self.side + x) * 2
    }

    fn get(self, at: usize) -> Complex {
        Complex { re: self.numbers.get(at), im: self.numbers.get(at + 1) }
    }

    fn set(self, at: usize, value: Complex) {
        self.numbers.set(at, value.re);
        self.numbers.set(at + 1, value.im);
    }

    /// Transforms the line that begins at a place and goes on in such steps.
    fn line(self, lines: &Lines, (first, step): (usize, usize), way: Way) {
        let mut line = [Complex::ZERO; SIDE_MAX];
        let line = &mut line[..self.side];
        for (k, value) in line.iter_mut().enumerate() {
            *value = self.get(first + k * step);
        }
        lines.transform(line, way);
        for (k, value) in line.iter().enumerate() {
            self.set(first + k * step, *value);
        }
    }

    /// Transforms all of it, with the other processors; false if they do not come.
    fn transform(self, (job, memory): (&Job, &Memory), lines: &Lines, way: Way) -> bool {
        let (side, own) = (self.side, job.part(self.side));
        for z in own.clone() {
            for other in 0..side {
                self.line(lines, (self.at((z, other, 0)), 2), way);
            }
            for other in 0..side {
                self.line(lines, (self.at((z, 0, other)), 2 * side), way);
            }
        }
        if !barrier(job, memory) {
            return false;
        }
        for y in own {
            for x in 0..side {
                self.line(lines, (self.at((0, y, x)), 2 * side * side), way);
            }
        }
        barrier(job, memory)
    }
}

/// A run of FT on one processor.
struct Run<'a, 'b> {
    job: &'b Job,
    memory: &'b Memory,
    lines: Lines,
    spectrum: Field<'a>,
    field: Field<'a>,
    sums: Sums<'a>,
}

impl Run<'_, '_> {
    /// The random numbers of this processor's planes, with their places.
    fn each_random(&self, mut see: impl FnMut(usize, Complex)) {
        let side = self.field.side;
        for z in self.job.part(side) {
            let mut random = Random::of(self.job, word(2 * z * side * side));
            for at in 0..side * side {
                let value = Complex { re: random.next(), im: random.next() };
                see(self.field.at((z, 0, 0)) + 2 * at, value);
            }
        }
    }

    fn forward(&self) -> bool {
        self.each_random(|at, value| self.spectrum.set(at, value));
        self.spectrum.transform((self.job, self.memory), &self.lines, Way::Forward)
    }

    /// The field after some time; false if the others do not come.
    fn evolve(&self, time: f64) -> bool {
        let side = self.field.side;
        // Frequencies of the upper half are negative ones.
        let square = |k: usize| real(k.min(side - k) * k.min(side - k));
        for z in self.job.part(side) {
            for y in 0..side {
                for x in 0..side {
                    let at = self.field.at((z, y, x));
                    let k = square(z) + square(y) + square(x);
                    let factor = libm::exp(-4.0 * ALPHA * PI * PI * k * time);
                    self.field.set(at, self.spectrum.get(at).scaled(factor));
                }
            }
        }
        self.field.transform((self.job, self.memory), &self.lines, Way::Back)
    }

    /// The sum of some points of the field.
    fn checksum(&mut self) -> Option<Complex> {
        let (field, side) = (self.field, self.field.side);
        let point = |j: usize| field.get(field.at((5 * j % side, 3 * j % side, j % side)));
        let both = (self.job, self.memory);
        let part = |part: usize, of: fn(Complex) -> f64| {
            (part * PART..(part + 1) * PART).map(|j| of(point(j))).sum()
        };
        let re = self.sums.sum(both, CHECKED / PART, |at| part(at, |value| value.re))?;
        let im = self.sums.sum(both, CHECKED / PART, |at| part(at, |value| value.im))?;
        Some(Complex { re, im })
    }

    fn digest(&mut self) -> Option<u64> {
        let mut digest = SEED_OF_DIGEST;
        for time in (1..).map(real).take(index(self.job.rounds)) {
            if !self.evolve(time) {
                return None;
            }
            let sum = self.checksum()?;
            digest = mix(mix(digest, sum.re.to_bits()), sum.im.to_bits());
        }
        Some(digest)
    }

    /// How many points of this processor's planes come back from the spectrum as they were.
    fn verify(&self) -> Option<u64> {
        if !self.evolve(0.0) {
            return None;
        }
        let side = real(self.field.side);
        let mut good = 0;
        self.each_random(|at, value| {
            let back = self.field.get(at).scaled(1.0 / (side * side * side));
            let off = libm::fmax(libm::fabs(back.re - value.re), libm::fabs(back.im - value.im));
            good += u64::from(off < ROUNDING);
        });
        Some(good)
    }
}

/// FT: `rounds` times of the field. `count` is how many points of this processor's planes come back from the spectrum as they
/// were, `sum` a digest of all checksums.
pub fn ft(job: &mut Job, memory: &Memory) {
    let Some((sums, rest)) = Sums::new(job, memory) else { return };
    let mut side = SIDE_MAX;
    while side >= 4 && 4 * side * side * side > rest.len() {
        side /= 2;
    }
    let size = 2 * side * side * side;
    let Some((spectrum, rest)) = rest.split(size) else { return };
    let Some((field, _)) = rest.split(size) else { return };
    if side < 4 {
        return;
    }
    let start = now();
    let [spectrum, field] = [spectrum, field].map(|numbers| Field { side, numbers });
    let mut run = Run { job, memory, lines: Lines::new(side), spectrum, field, sums };
    if !run.forward() {
        return;
    }
    let Some(digest) = run.digest() else { return };
    let elapsed = now().wrapping_sub(start);
    let Some(good) = run.verify() else { return };
    (job.count, job.sum, job.elapsed) = (good, digest, elapsed);
}
