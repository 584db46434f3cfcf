//! How long VMs run: the curve that Azure published of 2019, with a tail that meets what it published of all VMs together.
//!
//! | published | here |
//! |---|---|
//! | shares that have ended by 1, 5, 10, 20, 40, 100 h | points of the curve; between them even in the logarithm of time |
//! | 60 h per VM (162 M hours of 2.70 M VMs) | the end of the tail, which is even in the logarithm of time too |
//! | 2.9 cores per VM-hour, and 4.1 per VM | the more cores, the smaller the share in the tail: a power of the cores |

use super::milliseconds;
use super::shape::Shapes;

/// Hours, and the share that has ended by then.
const ENDED: [(f64, f64); 7] = [
    (1.0 / 60.0, 0.0),
    (1.0, 0.64),
    (5.0, 0.75),
    (10.0, 0.82),
    (20.0, 0.88),
    (40.0, 0.90),
    (100.0, BODY),
];
/// Those that are not in the tail.
const BODY: f64 = 0.92;
const TAIL_FROM: f64 = 100.0;
const MEAN_HOURS: f64 = 60.0;
const CORES_PER_HOUR: f64 = 2.9;
/// Steps in which an interval is halved.
const HALVINGS: u32 = 60;

/// How long VMs run, by their cores.
#[derive(Clone, Debug)]
pub struct Lifetimes {
    /// The last hour of the tail.
    end: f64,
    /// Of VMs with one core the share in the tail, ...
    scale: f64,
    /// ... which falls with this power of the cores.
    power: f64,
}

impl Lifetimes {
    /// Fitted to Azure's totals for VMs of these shapes.
    #[must_use]
    pub fn azure(shapes: &Shapes) -> Self {
        let sizes = shapes.cores();
        let tail_hours = (MEAN_HOURS - BODY * body_hours()) / (1.0 - BODY);
        let end = solve(TAIL_FROM * 1.1, 1e5, |end| log_uniform_mean(TAIL_FROM, end) - tail_hours);
        let with = |power: f64| {
            let sum: f64 = sizes.iter().map(|(c, p)| p * f64::from(*c).powf(-power)).sum();
            Self { end, scale: (1.0 - BODY) / sum, power }
        };
        let mean_cores: f64 = sizes.iter().map(|(c, p)| p * f64::from(*c)).sum();
        // Where VMs are large throughout, cores per hour are as far below cores per VM as in Azure.
        let wanted = mean_cores * CORES_PER_HOUR / 4.094;
        let power = solve(0.0, 3.0, |power| wanted - with(power).cores_per_hour(&sizes));
        with(power)
    }

    fn tail_share(&self, cores: u32) -> f64 {
        (self.scale * f64::from(cores).powf(-self.power)).min(1.0)
    }

    /// Hours of a VM with so many cores on average.
    #[must_use]
    pub fn mean_hours(&self, cores: u32) -> f64 {
        let tail = self.tail_share(cores);
        (1.0 - tail) * body_hours() + tail * log_uniform_mean(TAIL_FROM, self.end)
    }

    fn cores_per_hour(&self, sizes: &[(u32, f64)]) -> f64 {
        let hours = |(cores, share): &(u32, f64)| share * self.mean_hours(*cores);
        let all: f64 = sizes.iter().map(hours).sum();
        sizes.iter().map(|it| hours(it) * f64::from(it.0)).sum::<f64>() / all
    }

    /// No VM lives longer, in milliseconds.
    #[must_use]
    pub fn longest(&self) -> u64 {
        milliseconds(self.end)
    }

    /// A life in milliseconds.
    pub(super) fn draw(&self, cores: u32, random: &mut fastrand::Rng) -> u64 {
        let is_long = random.f64() < self.tail_share(cores);
        let hours = if is_long {
            between(TAIL_FROM, self.end, random.f64())
        } else {
            let ended = random.f64() * BODY;
            let after = ENDED.iter().position(|point| point.1 > ended).unwrap_or(ENDED.len() - 1);
            let (before, after) = (ENDED[after - 1], ENDED[after]);
            between(before.0, after.0, (ended - before.1) / (after.1 - before.1))
        };
        milliseconds(hours).max(1)
    }
}

/// A part of the way, even in the logarithm.
fn between(from: f64, to: f64, part: f64) -> f64 {
    from * (to / from).powf(part)
}

fn log_uniform_mean(from: f64, to: f64) -> f64 {
    (to - from) / (to / from).ln()
}

/// Hours on average of those that are not in the tail.
fn body_hours() -> f64 {
    let hours = ENDED
        .windows(2)
        .map(|pair| (pair[1].1 - pair[0].1) * log_uniform_mean(pair[0].0, pair[1].0));
    hours.sum::<f64>() / BODY
}

/// Where a function that rises is 0, between two values.
fn solve(mut low: f64, mut high: f64, rises: impl Fn(f64) -> f64) -> f64 {
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if rises(middle) < 0.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

#[cfg(test)]
mod tests {
    use super::super::{HOUR, Preset};
    use super::*;

    #[test]
    #[expect(clippy::cast_precision_loss, reason = "figures of a test")]
    fn published_totals_are_met() {
        let shapes = Shapes::new(Preset::Azure);
        let lifetimes = Lifetimes::azure(&shapes);
        let mut random = fastrand::Rng::with_seed(5);
        let (mut hours, mut core_hours, mut ended) = (0.0, 0.0, [0.0; 6]);
        let count = 400_000;
        for _ in 0..count {
            let cores = shapes.draw(&mut random).needs.cores;
            let life = lifetimes.draw(cores, &mut random) as f64 / HOUR as f64;
            hours += life;
            core_hours += life * f64::from(cores);
            for (sum, point) in ended.iter_mut().zip(&ENDED[1..]) {
                *sum += if life <= point.0 { 1.0 / f64::from(count) } else { 0.0 };
            }
        }

        for (share, point) in ended.iter().zip(&ENDED[1..]) {
            assert!((share - point.1).abs() < 0.01, "{share} have ended by {} h", point.0);
        }
        assert!((hours / f64::from(count) - MEAN_HOURS).abs() < 1.5, "{hours}");
        assert!((core_hours / hours - CORES_PER_HOUR).abs() < 0.1, "{}", core_hours / hours);
        let longest = lifetimes.longest() / HOUR;
        assert!((1500..4000).contains(&longest), "{longest} h");
    }
}
