//! Memory: fill on one CPU and node, verify on another; mmap and munmap under load.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};

use crate::arena::{Arena, BULK_PAGE, PAGE, PAGE_WORDS, Scratch};
use crate::bench::Bench;
use crate::pool::Env;
use crate::sys;

/// Pages per CPU and round (2 MiB), and at most (16 MiB).
const PAGES_PER_ROUND: usize = 512;
const MOST_PAGES: usize = 4096;

/// Fills memory of every node with a pattern, and verifies and rewrites it from another CPU.
pub(crate) fn pattern(bench: &mut Bench) -> Result<String> {
    let pages = (PAGES_PER_ROUND * usize::try_from(bench.rounds)?).min(MOST_PAGES);
    let arena = bench.pool.arena;
    let mut bound = 0;
    let plan = plan(bench);
    for (turn, &(writer, reader, node)) in plan.iter().enumerate() {
        // A node without memory, or a kernel without NUMA: any memory will do then.
        let bind = sys::bind_to_node(arena.address(BULK_PAGE), pages * PAGE, node);
        bound += u32::from(bind.is_ok());
        let size = u64::try_from(pages)?;
        let seed = u64::try_from(turn * 2 + 1)?;
        let node = u64::try_from(node)?;
        bench.pool.run(&[writer], fill_job, [size, seed, node, 0])?;
        bench.pool.run(&[reader], verify_job, [size, seed, seed + 1, 0])?;
        bench.pool.run(&[writer], verify_job, [size, seed + 1, 0, 0])?;
        sys::drop_pages(arena.address(BULK_PAGE), pages * PAGE).context("cannot drop the pages")?;
    }
    Ok(format!("kib={} areas={} bound={bound}", pages * PAGE / 1024, plan.len()))
}

/// Writer, reader (indexes of CPUs) and node: each CPU with its own node, then the nodes that have
/// memory and no CPU.
fn plan(bench: &Bench) -> Vec<(usize, usize, usize)> {
    let cpus = &bench.topology.cpus;
    let other = |index: usize| {
        let pairs = bench.topology.pairs();
        let pair = pairs.iter().find(|pair| pair.contains(&index)).copied();
        pair.map_or(index, |[first, second]| if first == index { second } else { first })
    };
    let mut plan: Vec<_> =
        cpus.iter().enumerate().map(|(index, cpu)| (index, other(index), cpu.node)).collect();
    for &node in &bench.topology.memory_nodes {
        if cpus.iter().all(|cpu| cpu.node != node) {
            plan.push((0, other(0), node));
        }
    }
    plan
}

fn area(arena: Arena, pages: usize) -> &'static [AtomicU64] {
    arena.words(BULK_PAGE, pages * PAGE_WORDS)
}

fn expected(seed: u64, index: usize) -> u64 {
    let index = u64::try_from(index).unwrap_or(0);
    (index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed
}

fn fill(words: &[AtomicU64], seed: u64) {
    for (index, word) in words.iter().enumerate() {
        word.store(expected(seed, index), Ordering::Relaxed);
    }
}

fn fill_job(env: &Env<'_>) -> Result<()> {
    let words = area(env.arena, env.size(0));
    fill(words, env.args[1]);
    Ok(())
}

fn verify_job(env: &Env<'_>) -> Result<()> {
    let words = area(env.arena, env.size(0));
    for (index, word) in words.iter().enumerate() {
        let (found, wanted) = (word.load(Ordering::Relaxed), expected(env.args[1], index));
        ensure!(found == wanted, "word {index}: {found:#x}, expected {wanted:#x}");
    }
    if env.args[2] != 0 {
        fill(words, env.args[2]);
    }
    Ok(())
}

/// mmap, touch and munmap on all CPUs at once; fresh memory must read as zero.
pub(crate) fn map_stress(bench: &mut Bench) -> Result<String> {
    let count = 20 * u64::from(bench.rounds);
    let all: Vec<_> = (0..bench.topology.cpus.len()).collect();
    bench.pool.run(&all, map_stress_job, [count, 0, 0, 0])?;
    Ok(format!("maps={} pages_each={STRESS_PAGES}", count * u64::try_from(all.len())?))
}

const STRESS_PAGES: usize = 16;

fn map_stress_job(env: &Env<'_>) -> Result<()> {
    for turn in 0..env.args[0] {
        let area = Scratch::new(STRESS_PAGES).context("cannot map scratch memory")?;
        for page in 0..STRESS_PAGES {
            let found = area.first_word(page).swap(turn + 1, Ordering::Relaxed);
            ensure!(found == 0, "fresh page {page} of map {turn} reads {found:#x}");
        }
        for page in 0..STRESS_PAGES {
            let found = area.first_word(page).load(Ordering::Relaxed);
            ensure!(found == turn + 1, "page {page} of map {turn} now reads {found:#x}");
        }
    }
    Ok(())
}
