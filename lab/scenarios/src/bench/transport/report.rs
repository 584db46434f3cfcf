//! Rows and bars of all rounds.

use outcome::{Bar, Outcome};

use super::measure::{Bench, COLUMNS, PAGE};
use super::plan::{MODES, TOOLS, Tool, WAYS, read, send};

/// Page fetches take at most this many times a bare read of a page and a bare send together.
const BOUND: f64 = 1.3;
const TOOL_COLUMN: &str = "p50 us";

/// Tells what was measured.
pub(crate) fn outcome(bench: &Bench<'_>) -> Outcome {
    let mut outcome = Outcome::new("transport");
    outcome.conditions.notes.extend([
        format!(
            "two hosts ({}), one processor each, soft-RoCE; shm on one of them",
            bench.lab.substrate()
        ),
        format!(
            "medians of {} rounds of {} trips; ratios of the same round",
            bench.plan.rounds, bench.plan.count
        ),
        "ib_send_lat and ib_write_lat tell half a round trip".to_owned(),
    ]);
    let tool_row = |tool: &Tool| bench.tools.row(tool.to_string(), (), *tool, &[TOOL_COLUMN]);
    outcome.rows = TOOLS.iter().filter_map(tool_row).collect();
    for waiting in WAYS {
        for mode in MODES {
            let name = format!("{mode}, {}", waiting.name());
            outcome.rows.extend(bench.asked.row(name, waiting, mode, &COLUMNS));
        }
    }
    let bar = |asleep| {
        let found = bench.ratios.median((), asleep, 0)?;
        let (read, send) = (read(asleep), send(asleep));
        let what = format!("page fetch, rdma registered, engine, against {read} + {send}");
        Some(Bar { what, found, bound: BOUND, at_most: true })
    };
    outcome.bars = [false, true].into_iter().filter_map(bar).collect();
    COLUMNS[PAGE].clone_into(&mut outcome.shown);
    outcome
}
