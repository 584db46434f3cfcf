//! Each step of the work of an orchestrator and of agents is somebody's last one: no VM is lost, and none runs twice.
//!
//! ```text
//!   number 0, 1, 2 ...: ┌ the orchestrator, or the agent of a host, dies before the step of this number, and is there again
//!                       └ a life of a VM: create ─> drain or loss of a slice ─> delete;  the number was never reached: over
//! ```
//! A step is what is recorded, what others are asked to do, and an answer (`cluster/fail-point`). `./x soak cluster --points` has all
//! numbers, `./x test` some of them.

use crate::kills::{HOSTS, Step, Watch, ask, settle};
use crate::rig::{FILE, Lab};
use needs::Need;
use std::env;

/// All numbers, and not some.
const ALL: &str = "TESSERA_KILL_POINTS";
/// More than there are, or something goes on for ever.
const POINTS_MAX: u64 = 500;

/// Who dies.
#[derive(Clone, Copy, Debug)]
enum Dies {
    Orchestrator,
    /// That of a host.
    Agent(usize),
}

fn begin(lab: &mut Lab, dies: Dies, point: u64) {
    match dies {
        Dies::Orchestrator => {
            lab.kill_orchestrator(0);
            lab.begin_orchestrator_that_dies(0, point);
        }
        Dies::Agent(host) => {
            lab.kill_agent(host);
            lab.begin_agent_that_dies(host, point);
        }
    }
}

/// Whether somebody has died in it.
fn life(lab: &mut Lab, steps: &[Step], file: &str, watch: &mut Watch) -> bool {
    let mut before = 1;
    for step in steps {
        let asked = ask(lab, *step, file);
        asked.into_iter().for_each(|asked| asked.join().unwrap());
        let seen = settle(lab, *step != Step::Delete, watch);
        let Some(seen) = seen else { continue };
        match step {
            Step::Lose(_) => assert!(seen.life > before, "{}: {}", seen.life, lab.said()),
            // A start may have been undone, and tried again.
            Step::Create => before = seen.life,
            _ => assert_eq!(seen.life, before, "{}", lab.said()),
        }
    }
    lab.has_died()
}

fn lives(name: &str, dies: Dies, steps: &[Step], some: [u64; 2]) {
    if !needs::kvm() || !needs::has(Need::Uffd, dsm::check_host()) {
        return;
    }
    let mut lab = Lab::new(name, &HOSTS);
    let checkpoint = "checkpoint = { every = \"10s\", keep = 1 }\n";
    let writes = if steps.contains(&Step::Drain) { "" } else { checkpoint };
    let file = lab.file("web.toml", &format!("{FILE}{writes}"));
    HOSTS.iter().for_each(|(host, cores)| lab.register(host, *cores));
    let mut watch = Watch::begin(lab.folder.clone());
    let all = env::var_os(ALL).is_some();
    let numbers: Vec<u64> = if all { (0..POINTS_MAX).collect() } else { some.to_vec() };
    for point in numbers {
        begin(&mut lab, dies, point);
        let has_died = life(&mut lab, steps, &file, &mut watch);
        println!("{dies:?} before step {point} of {steps:?}: {has_died}");
        assert!(has_died || all, "{dies:?} has no step {point}");
        if !has_died {
            assert!(point > some[1], "only {point} steps");
            return;
        }
    }
    assert!(!all, "more than {POINTS_MAX} steps");
}

const MOVED: [Step; 3] = [Step::Create, Step::Drain, Step::Delete];
const RESTORED: [Step; 3] = [Step::Create, Step::Lose("companion"), Step::Delete];

#[test]
fn orchestrator_dies_at_each_step_of_a_life_with_a_move() {
    lives("tsp1", Dies::Orchestrator, &MOVED, [3, 20]);
}

#[test]
fn orchestrator_dies_at_each_step_of_a_life_with_a_restore() {
    lives("tsp2", Dies::Orchestrator, &RESTORED, [9, 30]);
}

#[test]
fn agent_dies_at_each_step_of_a_life_with_a_move() {
    lives("tsp3", Dies::Agent(0), &MOVED, [1, 6]);
}

#[test]
fn agent_of_another_host_dies_at_each_step_of_a_life_with_a_restore() {
    lives("tsp4", Dies::Agent(1), &RESTORED, [2, 5]);
}
