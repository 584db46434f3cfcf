//! Runs one shape over groups of CPUs and counts the outcomes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail};

use super::ops;
use super::shape::{Outcome, Role, SHAPES, Shape, Var, decode};
use crate::arena::{Arena, BULK_PAGE, Barrier, LINE_WORDS, PAGE_WORDS};
use crate::bench::{Bench, SKIP};
use crate::pool::Env;

/// Instances between two barriers: one page of cache lines.
const INSTANCES: usize = PAGE_WORDS / LINE_WORDS;
/// Pages of result words for one worker; words hold eight outcomes, a byte each.
const RESULT_PAGES: usize = 512;
const PLACEMENTS: [&str; 2] = ["apart", "page"];

/// Runs the shape on every group of CPUs.
pub(crate) fn run(bench: &mut Bench, shape: &'static Shape) -> Result<String> {
    let groups: Vec<Vec<usize>> = match shape.roles.len() {
        2 => bench.topology.pairs().iter().map(|pair| pair.to_vec()).collect(),
        _ => bench.topology.quads().iter().map(|quad| quad.to_vec()).collect(),
    };
    if groups.is_empty() {
        return Ok(format!("{SKIP}needs {} cpus", shape.roles.len()));
    }
    let index =
        SHAPES.iter().position(|other| other.name == shape.name).context("no such shape")?;
    // Four CPUs that all want one page take several times as long as two.
    let least = if shape.roles.len() > 2 { 250 } else { 1000 };
    let wanted = least * usize::try_from(bench.rounds)?;
    let batches = wanted.div_ceil(INSTANCES * groups.len() * PLACEMENTS.len());
    let args = [u64::try_from(index)?, u64::try_from(batches)?, 0, 0];
    let mut tallies: [Tally; PLACEMENTS.len()] = Default::default();
    for group in &groups {
        bench.pool.run(group, work, args)?;
        for (placement, tally) in tallies.iter_mut().enumerate() {
            tally.collect(bench.pool.arena, shape, placement, batches);
        }
    }
    let iterations = batches * INSTANCES * groups.len() * PLACEMENTS.len();
    judge(shape, iterations, &tallies)
}

fn judge(shape: &Shape, iterations: usize, tallies: &[Tally]) -> Result<String> {
    let mut detail = format!("n={iterations}");
    let (mut forbidden, mut stale) = (0, 0);
    for (placement, tally) in PLACEMENTS.iter().zip(tallies) {
        write!(detail, " {placement}[{}]", tally.text(shape))?;
        for (outcome, count) in &tally.0 {
            if outcome.is_stale() {
                stale += count;
            } else if (shape.forbidden)(outcome) {
                forbidden += count;
            }
        }
    }
    if forbidden + stale > 0 {
        bail!("forbidden={forbidden} stale={stale} {detail}");
    }
    Ok(detail)
}

/// Outcomes and how often each was seen.
#[derive(Debug, Default)]
struct Tally(BTreeMap<Outcome, u64>);

impl Tally {
    fn collect(&mut self, arena: Arena, shape: &Shape, placement: usize, batches: usize) {
        for iteration in 0..batches * INSTANCES {
            let place = placement * batches * INSTANCES + iteration;
            let mut outcome = Outcome::default();
            for (worker, loads) in outcome.loads.iter_mut().enumerate().take(shape.roles.len()) {
                *loads = results(arena, worker).get(place);
            }
            if shape.finals {
                outcome.finals = results(arena, shape.roles.len()).get(place);
            }
            *self.0.entry(outcome).or_default() += 1;
        }
    }

    fn text(&self, shape: &Shape) -> String {
        let parts =
            self.0.iter().map(|(outcome, count)| format!("{}:{count}", outcome.text(shape)));
        parts.collect::<Vec<_>>().join(" ")
    }
}

/// Result bytes of one worker: its two loads, two bits each. Written by it alone, read at the end.
struct Results(&'static [AtomicU64]);

fn results(arena: Arena, worker: usize) -> Results {
    Results(arena.words(BULK_PAGE + worker * RESULT_PAGES, RESULT_PAGES * PAGE_WORDS))
}

impl Results {
    fn put(&self, place: usize, [first, second]: [u8; 2]) {
        let shift = 8 * (place % 8);
        let word = &self.0[place / 8];
        let rest = word.load(Ordering::Relaxed) & !(0xff << shift);
        let byte = u64::from(first | second << 2);
        word.store(rest | byte << shift, Ordering::Relaxed);
    }

    fn get(&self, place: usize) -> [u8; 2] {
        let bytes = self.0[place / 8].load(Ordering::Relaxed).to_le_bytes();
        let byte = bytes[place % 8];
        [byte & 3, byte >> 2 & 3]
    }
}

/// Where the variables of the instances are.
struct Variables {
    words: &'static [AtomicU64],
    apart: bool,
}

impl Variables {
    fn new(arena: Arena, placement: usize) -> Self {
        // Pages 1 and 2 for "apart", 3 and 4 for "page".
        let words = arena.words(1 + 2 * placement, 2 * PAGE_WORDS);
        Self { words, apart: placement == 0 }
    }

    fn get(&self, var: Var, instance: usize) -> &AtomicU64 {
        let second = usize::from(var == Var::Y);
        let line = if self.apart { second * INSTANCES + instance } else { 2 * instance + second };
        &self.words[line * LINE_WORDS]
    }
}

/// The job of each worker.
fn work(env: &Env<'_>) -> Result<()> {
    let shape = SHAPES.get(env.size(0)).context("no such shape")?;
    let role = *shape.roles.get(env.rank).context("no such role")?;
    let batches = env.size(1);
    let mine = results(env.arena, env.rank);
    let finals = results(env.arena, env.ranks);
    let mut barrier = Barrier::new(env.arena, env.ranks);
    for placement in 0..PLACEMENTS.len() {
        let vars = Variables::new(env.arena, placement);
        for batch in 0..batches {
            let (number, place) =
                (u64::try_from(batch)?, (placement * batches + batch) * INSTANCES);
            let step =
                if batch % 4 < 2 { 0 } else { jumble(number + u64::try_from(env.rank)? * 97) };
            barrier.wait();
            for turn in 0..INSTANCES {
                let instance = order(turn, batch, env.rank, step);
                let seen = perform(role, shape.fence, &vars, instance, number);
                mine.put(place + instance, seen);
            }
            if shape.finals {
                barrier.wait();
                if env.rank == 0 {
                    record_finals(&finals, &vars, place, number);
                }
            }
        }
    }
    Ok(())
}

fn record_finals(finals: &Results, vars: &Variables, place: usize, batch: u64) {
    for instance in 0..INSTANCES {
        let last = |var| decode(vars.get(var, instance).load(Ordering::Relaxed), batch);
        finals.put(place + instance, [last(Var::X), last(Var::Y)]);
    }
}

/// Order of the instances: together, against each other, or each worker from a place of its own,
/// so that pages change hands in the middle of a batch as well as at its ends.
fn order(turn: usize, batch: usize, rank: usize, start: usize) -> usize {
    let turn = (turn + start) % INSTANCES;
    if batch % 2 == 1 && rank % 2 == 1 { INSTANCES - 1 - turn } else { turn }
}

fn jumble(seed: u64) -> usize {
    let mixed = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
    usize::try_from(mixed).unwrap_or(0) % INSTANCES
}

fn perform(role: Role, fence: bool, vars: &Variables, instance: usize, batch: u64) -> [u8; 2] {
    let at = |var| vars.get(var, instance);
    let base = 4 * batch;
    match role {
        Role::Store(x, v) => {
            ops::store(at(x), base + v);
            [0, 0]
        }
        Role::StoreStore(x, v, y, w) => {
            ops::store_store(at(x), base + v, at(y), base + w, fence);
            [0, 0]
        }
        Role::StoreLoad(x, v, y) => {
            [decode(ops::store_load(at(x), base + v, at(y), fence), batch), 0]
        }
        Role::LoadLoad(x, y) => {
            let (first, second) = ops::load_load(at(x), at(y), fence);
            [decode(first, batch), decode(second, batch)]
        }
        Role::LoadStore(x, y, w) => {
            [decode(ops::load_store(at(x), at(y), base + w, fence), batch), 0]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_of_any_batch_visits_each_instance_once() {
        for batch in 0..8 {
            for rank in 0..4 {
                let mut seen: Vec<_> =
                    (0..INSTANCES).map(|turn| order(turn, batch, rank, 17)).collect();
                seen.sort_unstable();
                assert_eq!(seen, (0..INSTANCES).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn variables_of_both_placements_never_overlap() {
        let arena = Arena::new().unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for placement in 0..2 {
            let vars = Variables::new(arena, placement);
            for instance in 0..INSTANCES {
                for var in [Var::X, Var::Y] {
                    assert!(seen.insert(vars.get(var, instance).as_ptr().addr()));
                }
            }
        }
        assert_eq!(seen.len(), 4 * INSTANCES);
    }

    #[test]
    fn results_put_are_read_back() {
        let results = results(Arena::new().unwrap(), 1);
        results.put(9, [1, 2]);
        results.put(10, [3, 0]);
        results.put(9, [2, 2]);
        assert_eq!((results.get(9), results.get(10), results.get(8)), ([2, 2], [3, 0], [0, 0]));
    }

    #[test]
    fn verdict_on_a_stale_value_is_failure_even_for_an_allowed_shape() {
        let mut tally = Tally::default();
        tally.0.insert(Outcome { loads: [[3, 0], [0; 2], [0; 2], [0; 2]], finals: [0; 2] }, 1);
        let text = format!("{:#}", judge(&SHAPES[0], 1, &[tally]).unwrap_err());
        assert!(text.starts_with("forbidden=0 stale=1"), "{text}");
    }
}
