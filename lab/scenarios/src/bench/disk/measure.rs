//! One turn of a mode: a fio that puts all loads on its disk.

use std::time::Duration;

use anyhow::{Context, Result};
use outcome::Row;

use super::fio::{self, Block, Job, Measured, Times};
use super::plan::{Disks, MODES, Mode, Plan};
use super::report::COLUMNS;
use crate::bench::devices::Setup;
use crate::bench::net::{raw_load, raw_server};
use crate::bench::rig::Figures;

/// Warm-up of a load, in seconds.
const WARM_UP: f64 = 1.0;
/// For one run of fio beyond its own seconds: a program's start may cross the network page by page.
const SLACK: Duration = Duration::from_secs(300);

/// What the lab's network gives for as many bytes as a request has: a process on host 2, asked from host 1
/// without any VM, one request at a time. No disk of the other host can answer sooner.
pub(crate) fn raw(setup: &Setup<'_>, block: Block, seconds: u32) -> Result<Row> {
    let _server = raw_server(setup)?;
    let report = raw_load(setup, block.name(), seconds)?;
    let name = format!("{} raw network", block.name());
    let rate = report.requests_per_second;
    #[expect(clippy::cast_precision_loss, reason = "seconds at most")]
    let p50 = report.latency_us.p50 as f64 / 1e3;
    let bandwidth = rate * block.bytes() / 1e6;
    setup.rig.say(&format!("{name}: {bandwidth:.2} MB/s, {rate:.1} requests/s, p50 {p50:.2} ms"));
    let figures = COLUMNS.iter().map(|column| (*column).to_owned());
    Ok(Row { name, figures: figures.zip([bandwidth, rate, p50]).collect() })
}

/// All loads of all modes in turns.
pub(crate) fn loads(
    setup: &Setup<'_>,
    disks: &Disks,
    plan: Plan,
    figures: &mut Figures<Job, Mode>,
) -> Result<()> {
    let clock = setup.scenario.guest_clock()?;
    // The first load of a program far from its pages tells how they come, and nothing of the disk: it is
    // done twice, and the first time not looked at.
    let first = plan.loads().next().context("no loads")?;
    let all: Vec<_> = std::iter::once(first).chain(plan.loads()).collect();
    let times = Times {
        warm_up: Duration::from_secs_f64(WARM_UP * clock),
        load: Duration::from_secs_f64(f64::from(plan.seconds) * clock),
    };
    let seconds = (WARM_UP + f64::from(plan.seconds)) * f64::from(u32::try_from(all.len())?);
    let limit = Duration::from_secs_f64(2.0 * seconds) + SLACK;
    setup.rig.turns(plan.rounds, &MODES, &mut |round, mode| {
        let line = fio::line(&all, disks.of(mode), mode.cpu(), times);
        let said = setup.guest.ssh_within(&line, limit);
        let found = said.and_then(|said| Measured::read_all(&said, all.len()));
        let found = found.with_context(|| format!("{mode} loads"))?;
        for (job, found) in all.iter().zip(found).skip(1) {
            let round_of = format!("round {} of {}, {job} {mode}", round + 1, plan.rounds);
            let Some(found) = found else {
                setup.rig.say(&format!("{round_of}: no request was finished in its time"));
                continue;
            };
            // fio goes by the guest's clock.
            let (rate, p50) = (found.rate * clock, found.p50_ns / clock / 1e6);
            let bandwidth = found.bandwidth * clock / 1e6;
            setup.rig.say(&format!(
                "{round_of}: {bandwidth:.2} MB/s, {rate:.1} requests/s, p50 {p50:.2} ms"
            ));
            figures.add(*job, mode, round, vec![bandwidth, rate, p50]);
        }
        Ok(())
    })
}
