//! One leader over a store that is slow, or knows another leader, with hosts that have heard of one.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use crate::LONG;
use crate::agent::{self, Door};
use crate::moody::Moody;
use crate::orchestrator::{Folder, settings, standing};
use crate::support;
use orchestrator::api::serve;
use orchestrator::decide::{Answer, Ask, HostStanding, Settings, Standings};
use orchestrator::run::{Agents, Command, Ended, LeadError, Pace, View, lead};
use state::{Name, RunStrategy, Term, Uid, VmState};
use std::sync::atomic::Ordering;
use std::time::Duration;
use store::{Candidate, Store};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use vm_service::listen_at;

const PACE: Duration = Duration::from_millis(20);

/// A leader, and how it is asked.
struct Led {
    folder: Folder,
    store: Moody,
    commands: mpsc::Sender<Command>,
    leading: JoinHandle<Result<Ended, LeadError>>,
    _stop: watch::Sender<bool>,
}

impl Led {
    async fn new(settings: Settings) -> Self {
        let store = Moody::default();
        let clock_error = Duration::from_millis(10);
        let candidate = Candidate { name: "it".into(), lease: LONG, clock_error };
        let leadership = store.campaign(&candidate).await.unwrap();
        let (commands, mut inbox) = mpsc::channel(16);
        let (stop, stopped) = watch::channel(false);
        let its = store.clone();
        let leading = tokio::spawn(async move {
            let what = (settings, Pace(PACE));
            lead(&its, &leadership, what, &Agents::new(None), &mut inbox, stopped).await
        });
        Self { folder: Folder::new(), store, commands, leading, _stop: stop }
    }

    async fn ask(&self, ask: Ask) -> Answer {
        let (wait, answer) = oneshot::channel();
        let (validate_only, ask) = (false, Box::new(ask));
        self.commands.send(Command::Ask { request: None, validate_only, ask, wait }).await.unwrap();
        answer.await.unwrap().unwrap()
    }

    async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&View<'_>) -> T + Send + 'static,
    ) -> T {
        let (wait, answer) = oneshot::channel();
        let look = move |view: &View<'_>| drop(wait.send(look(view)));
        self.commands.send(Command::Look(Box::new(look))).await.unwrap();
        answer.await.unwrap()
    }

    async fn until(&self, look: impl Fn(&View<'_>) -> bool + Clone + Send + 'static) {
        while !self.look(look.clone()).await {
            sleep(Duration::from_millis(5)).await;
        }
    }

    async fn until_host(&self, host: &str, standing: HostStanding) {
        let name = support::name(host);
        self.until(move |view| {
            let host = view.machine.host(&name);
            host.is_some_and(|it| it.standing == standing && it.host.facts.is_some())
        })
        .await;
    }

    async fn host(&self, host: &str) -> Door {
        let (door, agent) = agent::serve(&self.folder.0, host, 4);
        self.ask(Ask::Register { name: support::name(host), agent }).await;
        self.until_host(host, HostStanding::Up).await;
        door
    }

    async fn create(&self, name: &str, vcpus: u16) -> Name {
        let (name, uid) = (support::name(name), Uid::new(u128::from(vcpus)));
        let desired = Box::new(support::desired(vcpus, 1024, RunStrategy::Always));
        let (it, secret) = (name.clone(), support::secret(&uid));
        self.ask(Ask::Create { name: it, uid, secret, desired, plan: None }).await;
        name
    }

    async fn until_running(&self, vm: &Name) {
        let vm = vm.clone();
        self.until(move |view| {
            let vm = view.machine.vm(&vm);
            vm.is_some_and(|it| it.observed.state == VmState::Running)
        })
        .await;
    }
}

#[tokio::test]
async fn hosts_that_answer_are_not_lost_while_commits_take_longer_than_their_lease() {
    let led = Led::new(Settings { lease_ms: 300, listens_ms: 20, ..settings() }).await;
    let doors = [led.host("a").await, led.host("b").await];
    let web = led.create("web", 6).await;
    led.until_running(&web).await;
    led.store.commit_ms.store(600, Ordering::Relaxed);
    for cordoned in [true, false, true, false] {
        led.ask(Ask::Cordon { name: support::name("a"), cordoned }).await;
        let it = web.clone();
        let look = move |view: &View<'_>| {
            let vm = view.machine.vm(&it).unwrap();
            (vm.life, vm.observed.state, view.machine.standing().hosts)
        };
        for _ in 0..5 {
            let all = Standings { all: 2, up: 2, foreign: 0 };
            assert_eq!(led.look(look.clone()).await, (1, VmState::Running, all));
            sleep(PACE).await;
        }
    }
    assert_eq!(doors.iter().map(Door::bootstraps).sum::<usize>(), 1);
    assert_eq!(doors.iter().map(Door::running).sum::<usize>(), 2);
}

/// Of another cluster, or the store is an older copy.
#[tokio::test]
async fn host_that_has_heard_of_a_later_term_is_left_alone_and_others_go_on() {
    let led = Led::new(settings()).await;
    let (a, b) = (led.host("a").await, led.host("b").await);
    a.host.lock().unwrap().term = Term(99);
    led.until_host("a", HostStanding::Foreign).await;
    let web = led.create("web", 3).await;
    led.until_running(&web).await;
    assert_eq!((a.running(), b.running()), (0, 1));
    assert!(!led.leading.is_finished());
    a.host.lock().unwrap().term = Term(0);
    led.until_host("a", HostStanding::Up).await;
    let next = led.create("next", 4).await;
    led.until_running(&next).await;
    assert_eq!((a.running(), b.running()), (1, 1));
}

/// It is not known before it refuses.
#[tokio::test]
async fn host_that_refuses_the_term_of_a_leader_does_not_end_it() {
    let led = Led::new(settings()).await;
    let a = led.host("a").await;
    a.hides_term.store(true, Ordering::Relaxed);
    a.host.lock().unwrap().term = Term(99);
    let web = led.create("web", 3).await;
    sleep(Duration::from_millis(300)).await;
    assert!(!led.leading.is_finished());
    assert_eq!(a.running(), 0);
    a.hides_term.store(false, Ordering::Relaxed);
    led.host("b").await;
    led.until_running(&web).await;
    assert_eq!(a.running(), 0);
}

#[tokio::test]
async fn agent_that_knows_another_leader_ends_this_one() {
    for hides_term in [false, true] {
        let led = Led::new(settings()).await;
        let a = led.host("a").await;
        a.hides_term.store(hides_term, Ordering::Relaxed);
        led.store.is_deposed.store(true, Ordering::Relaxed);
        a.host.lock().unwrap().term = Term(99);
        let Led { commands, leading, .. } = led;
        let uid = Uid::new(5);
        let desired = Box::new(support::desired(1, 1024, RunStrategy::Always));
        let (name, secret) = (support::name("web"), support::secret(&uid));
        let ask = Box::new(Ask::Create { name, uid, secret, desired, plan: None });
        let (wait, _answer) = oneshot::channel();
        let command = Command::Ask { request: None, validate_only: false, ask, wait };
        // It may have ended before.
        drop(commands.send(command).await);
        let ended = leading.await.unwrap();
        assert!(matches!(ended, Ok(Ended::Deposed)), "{ended:?}");
        assert!(a.host.lock().unwrap().slices.is_empty());
    }
}

/// Whoever has started it starts another one, which opens the store anew.
#[tokio::test]
async fn orchestrator_whose_store_has_ended_ends() {
    let store = Moody::default();
    store.has_ended.store(true, Ordering::Relaxed);
    let (_stop, stopped) = watch::channel(false);
    let folder = Folder::new();
    let local = listen_at(&folder.0.join("socket")).unwrap();
    let serving = serve(store, standing("it", LONG), (Some(local), None, None), stopped);
    timeout(LONG, serving).await.expect("it ends by itself");
}
