//! Whoever is killed, at whatever step: no VM is lost, and none runs twice.
//!
//! ```text
//!   calm ──a step begins: create, drain, slice lost, delete, nothing──┬─> calm: all is as it was asked for, and the guest goes on
//!                            └──a random moment later──> someone is killed, or stands still ──> is there again
//! ```
//! All the while there is at most one bootstrap of the VM. `./x soak cluster` has more rounds.

use crate::rig::{Asker, FILE, LIMIT, Lab, hosts_of, processes, until};
use fastrand::Rng;
use needs::Need;
use needs::etcd::{EtcdProcess, etcd_program};
use serde_json::Value;
use std::fs::{self, read_to_string};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};
use std::{env, mem};

/// So many rounds, and the seed of all.
const ROUNDS: &str = "TESSERA_KILL_ROUNDS";
const SEED: &str = "TESSERA_KILL_SEED";
pub(super) const HOSTS: [(&str, usize); 3] = [("a", 1), ("b", 1), ("c", 1)];

/// What is asked for, or happens to the VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Create,
    Delete,
    /// The host of the companion is to be empty.
    Drain,
    /// A slice is killed, as by its host's kernel.
    Lose(&'static str),
    Nothing,
}

/// To whom it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Orchestrator(usize),
    Agent(usize),
    OrchestratorAndAgent(usize, usize),
    /// It stands still for longer than it may lead without a word of it, and then goes on.
    Stands(usize),
    Etcd,
}

#[derive(Clone, Copy, Debug)]
struct Round {
    step: Step,
    victim: Victim,
    after: Duration,
    away: Duration,
}

/// From microseconds, in which a call is made, to seconds, in which a VM starts.
fn moment(rng: &mut Rng) -> Duration {
    Duration::from_secs_f64(10_f64.powf(rng.f64() * 4.0 - 3.5))
}

fn draw(rng: &mut Rng, there: bool, orchestrators: usize) -> Round {
    let step = match rng.u32(..10) {
        _ if !there => Step::Create,
        0..=2 => Step::Delete,
        3..=5 => Step::Drain,
        6 => Step::Lose("companion"),
        7 => Step::Lose("bootstrap"),
        _ => Step::Nothing,
    };
    let (orchestrator, host) = (rng.usize(..orchestrators), rng.usize(..HOSTS.len()));
    let victim = match rng.u32(..if orchestrators > 1 { 10 } else { 8 }) {
        0..=2 => Victim::Orchestrator(orchestrator),
        3..=5 => Victim::Agent(host),
        6 => Victim::OrchestratorAndAgent(orchestrator, host),
        7 | 8 => Victim::Stands(orchestrator),
        _ => Victim::Etcd,
    };
    let away = match victim {
        // Longer than the lease of one of two.
        Victim::Stands(_) => Duration::from_secs(3),
        // Not so long that a host is lost.
        _ => moment(rng).min(Duration::from_secs(2)),
    };
    Round { step, victim, after: moment(rng), away }
}

fn strike(lab: &mut Lab, Round { victim, away, .. }: Round) {
    match victim {
        Victim::Orchestrator(number) => {
            lab.kill_orchestrator(number);
            sleep(away);
            lab.begin_orchestrator(number);
        }
        Victim::Agent(host) => {
            lab.kill_agent(host);
            sleep(away);
            lab.begin_agent(host);
        }
        Victim::OrchestratorAndAgent(number, host) => {
            lab.kill_orchestrator(number);
            lab.kill_agent(host);
            sleep(away);
            lab.begin_orchestrator(number);
            lab.begin_agent(host);
        }
        Victim::Stands(number) => {
            lab.halt_orchestrator(number, true);
            sleep(away);
            lab.halt_orchestrator(number, false);
        }
        Victim::Etcd => {
            let etcd = lab.etcd.as_mut().unwrap();
            etcd.kill();
            sleep(away);
            etcd.restart();
        }
    }
}

/// Asks until it is done, as a user would; whoever was asked may be killed before the answer.
pub(super) fn insist(asker: &Asker, words: &[&str], is_done: impl Fn(&str) -> bool) {
    let end = Instant::now() + LIMIT;
    loop {
        let output = asker.run(words);
        let error = String::from_utf8_lossy(&output.stderr);
        if output.status.success() || is_done(&error) {
            return;
        }
        assert!(Instant::now() < end, "{words:?}: {error}");
    }
}

/// What a user does for a step.
pub(super) fn ask(lab: &Lab, step: Step, file: &str) -> Option<JoinHandle<()>> {
    let (asker, file) = (lab.asker(), file.to_owned());
    match step {
        Step::Create => Some(spawn(move || {
            insist(&asker, &["vm", "apply", "--wait", "-f", &file], |_| false);
        })),
        Step::Delete => Some(spawn(move || {
            let gone = |error: &str| error.contains("VM_NOT_FOUND");
            insist(&asker, &["vm", "delete", "--wait", "web"], gone);
        })),
        Step::Drain => {
            let vm = lab.json(&["vm", "get", "web"]).take();
            let host = vm[0]["placement"][1]["host"].as_str().unwrap().to_owned();
            Some(spawn(move || {
                // Some moves are not made: a VM and a host have so many in an hour.
                let _ = asker.run(&["host", "drain", &host, "--timeout", "10"]);
                insist(&asker, &["host", "uncordon", &host], |_| false);
            }))
        }
        Step::Lose(role) => {
            until("it is written down, and that is known", lab, || {
                let vm = lab.json(&["vm", "get", "web"])[0].take();
                let own = vm["uid"].as_str().unwrap();
                lab.checkpoints().iter().any(|name| name.contains(own)) && is_idle(&vm)
            });
            lab.kill_one(role);
            None
        }
        Step::Nothing => None,
    }
}

/// Looks for two that begin one VM.
pub(super) struct Watch {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Option<String>>>,
}

impl Watch {
    pub(super) fn begin(folder: PathBuf) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let look = move || {
            while !over.load(Ordering::Relaxed) {
                let there = processes(&folder, "bootstrap");
                if there.len() > 1 {
                    let words = |id: &String| read_to_string(format!("/proc/{id}/cmdline"));
                    return Some(format!("{:?}", there.iter().map(words).collect::<Vec<_>>()));
                }
                sleep(Duration::from_millis(20));
            }
            None
        };
        Self { is_over, thread: Some(spawn(look)) }
    }

    /// Fails if there were two until now.
    fn look(&mut self, lab: &Lab) {
        if let Some(thread) = self.thread.take_if(|thread| thread.is_finished()) {
            panic!("it ran twice: {:?}\n{}", thread.join(), lab.said());
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn is_idle(vm: &Value) -> bool {
    vm["operation"].as_str().is_none_or(str::is_empty)
}

/// Whether both vCPUs have had interrupts of each other, as the guest says on its serial line between what its slice logs.
fn goes_on(said: &[u8]) -> bool {
    let lines = said.split(|byte| *byte == b'\n');
    // A line of the guest has its letters only; what it has begun may stand before one of the log.
    let of_guest = |line: &[u8]| line.iter().take_while(|byte| b"abABrR".contains(byte)).count();
    let guest: Vec<u8> = lines.flat_map(|line| line[..of_guest(line)].to_vec()).collect();
    b"AB".iter().all(|letter| guest.contains(letter))
}

/// A VM that runs.
pub(super) struct Seen {
    pub(super) life: u64,
    hosts: Vec<String>,
}

/// Until all is as it was asked for. The VM, if there is one.
pub(super) fn settle(lab: &mut Lab, there: bool, watch: &mut Watch) -> Option<Seen> {
    lab.all_are_there();
    let seen = settled(lab, there);
    watch.look(lab);
    seen
}

fn settled(lab: &Lab, there: bool) -> Option<Seen> {
    until("all hosts are up", lab, || {
        let hosts = lab.json(&["host", "list"]);
        hosts.as_array().unwrap().iter().all(|host| host["state"] == "UP")
    });
    if !there {
        lab.until_nothing_is_left();
        until("it is forgotten", lab, || lab.json(&["vm", "list"]) == Value::Array(Vec::new()));
        return None;
    }
    let mut vm = Value::Null;
    until("it runs, and nothing is done to it", lab, || {
        vm = lab.json(&["vm", "get", "web"])[0].take();
        vm["state"] == "RUNNING"
            && is_idle(&vm)
            && (lab.slices("bootstrap"), lab.slices("companion")) == (1, hosts_of(&vm).len() - 1)
    });
    let (uid, host) = (vm["uid"].as_str().unwrap(), vm["placement"][0]["host"].as_str().unwrap());
    let said = lab.folder.join(host).join("s/slices").join(format!("{uid}-0.log"));
    let text = || fs::read(&said).unwrap_or_default();
    let before = text().len();
    until("the guest goes on", lab, || text().get(before..).is_some_and(goes_on));
    Some(Seen { life: vm["life"].as_u64().unwrap(), hosts: hosts_of(&vm) })
}

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap())
}

fn rounds(lab: &mut Lab, orchestrators: usize) {
    let seed = number(SEED).unwrap_or_else(|| fastrand::u64(..));
    let count = number(ROUNDS).unwrap_or(4);
    println!("{count} rounds of seed {seed}");
    let mut rng = Rng::with_seed(seed);
    let text = format!("{FILE}checkpoint = {{ every = \"10s\", keep = 1 }}\n");
    let file = lab.file("web.toml", &text);
    HOSTS.iter().for_each(|(host, cores)| lab.register(host, *cores));
    let mut watch = Watch::begin(lab.folder.clone());
    let (mut vm, mut drains, mut moves) = (None::<Seen>, 0, 0);
    for at in 0..count {
        let round = draw(&mut rng, vm.is_some(), orchestrators);
        let life = vm.as_ref().map(|vm| vm.life);
        println!("round {at} of seed {seed}, life {life:?}: {round:?}");
        let asked = ask(lab, round.step, &file);
        sleep(round.after);
        strike(lab, round);
        asked.into_iter().for_each(|asked| asked.join().unwrap());
        let is_there = round.step != Step::Delete;
        let before = mem::replace(&mut vm, settle(lab, is_there, &mut watch));
        let (Some(before), Some(now)) = (&before, &vm) else { continue };
        if let Step::Lose(_) = round.step {
            assert!(now.life > before.life, "{}: {}", now.life, lab.said());
            let explained = lab.ok(&["vm", "explain", "web"]);
            assert!(explained.contains("gone on from checkpoint"), "{explained}");
        } else {
            assert_eq!(now.life, before.life, "{}", lab.said());
        }
        if round.step == Step::Drain {
            drains += 1;
            moves += u32::from(now.hosts != before.hosts);
        }
    }
    if vm.is_some() {
        insist(&lab.asker(), &["vm", "delete", "--wait", "web"], |_| false);
    }
    settle(lab, false, &mut watch);
    println!("{moves} of {drains} drains have moved it");
    assert!(moves > 0 || drains < 4, "nothing moves");
}

#[test]
fn nothing_is_lost_or_runs_twice_whoever_is_killed() {
    if !needs::kvm() || !needs::has(Need::Uffd, dsm::check_host()) {
        return;
    }
    rounds(&mut Lab::new("tsrq", &HOSTS), 1);
}

#[test]
fn nothing_is_lost_or_runs_twice_whoever_of_two_leads() {
    if !needs::kvm()
        || !needs::has(Need::Uffd, dsm::check_host())
        || !needs::has(Need::Etcd, etcd_program())
    {
        return;
    }
    rounds(&mut Lab::over("tsre", &HOSTS, Some(EtcdProcess::start())), 2);
}
