//! Where worlds begin that begin in the middle.

use super::*;

/// A VM of so many vCPUs is wanted.
fn create(vm: &str, uid: u128, vcpus: u16) -> Ask {
    let (uid, desired) = (Uid::new(uid), desired(vcpus, 1024, RunStrategy::Always));
    let (secret, desired) = (secret(&uid), Box::new(desired));
    Ask::Create { name: name(vm), uid, secret, desired, plan: None }
}

impl State {
    pub(super) fn new(
        machine: Option<Orchestrator>,
        hosts: BTreeMap<Name, Host>,
        faults: u8,
    ) -> Self {
        Self {
            store: BTreeMap::new(),
            term: Term(1),
            machine,
            effects: VecDeque::new(),
            looks_take_time: false,
            stalls: 0,
            network: BTreeMap::new(),
            late: Vec::new(),
            hosts,
            silent: None,
            ticks: 0,
            faults,
            asked: 0,
            first: None,
            before: 0,
            alone: BTreeMap::new(),
            copy: None,
            is_old: false,
            lost: None,
            has_died: false,
            has_left: false,
            strays: BTreeSet::new(),
            is_room_in_doubt: false,
            broken: BTreeSet::new(),
        }
    }

    fn asked_for(&mut self, ask: Ask) {
        self.hear(Input::Asked { ticket: Ticket(99), request: None, validate_only: false, ask });
    }

    /// Two VMs run, the second one on both hosts; the first one is deleted. Or one runs on both, there is a third one, and a host is
    /// drained. Up to the moment at which a move is decided.
    pub(super) fn up_to_a_move(&mut self, joins: bool) {
        let delete = Ask::Delete { name: name("other"), etag: None };
        let register = Ask::Register { name: name("c"), agent: "https://c:7000".to_owned() };
        let drain = Ask::Drain { name: name("b") };
        let asks = if joins {
            self.hosts.insert(name("c"), Host::named("c", 2, 4096));
            [create("vm", 1, 3), register, drain]
        } else {
            [create("other", 5, 3), create("vm", 1, 4), delete]
        };
        for ask in asks {
            self.asked_for(ask);
            self.carry_up_to(Verb::Move);
            if joins && self.effects.is_empty() {
                self.hear(Input::Tick);
                self.carry_up_to(Verb::Move);
            }
        }
        if self.effects.is_empty() {
            self.hear(Input::Tick);
            self.carry_up_to(Verb::Move);
        }
        assert!(!self.effects.is_empty(), "a move is decided");
        self.first = Some(Answer::Done);
    }

    /// A VM that is written down each ten seconds. Up to the moment at which that is decided for the second time, or it was for the first time.
    pub(super) fn up_to_a_checkpoint(&mut self, once: bool) {
        let (uid, checkpoint) = (Uid::new(1), Some(POLICY));
        let desired = VmDesired { checkpoint, ..desired(2, 1024, RunStrategy::Always) };
        let (secret, desired) = (secret(&uid), Box::new(desired));
        let ask = Ask::Create { name: name("vm"), uid, secret, desired, plan: None };
        self.asked_for(ask);
        self.carry_up_to(Verb::Checkpoint);
        for time in 0..2 {
            for _ in 0..11 {
                if self.effects.is_empty() {
                    self.before += 1000;
                    self.hear(Input::Tick);
                    self.carry_up_to(Verb::Checkpoint);
                }
            }
            assert!(!self.effects.is_empty(), "a checkpoint is decided");
            if time == 0 {
                let first = self.effects.pop_front().expect("a commit");
                self.carry(first);
                self.carry_up_to(Verb::Checkpoint);
            }
            if once {
                break;
            }
        }
        self.first = Some(Answer::Done);
    }

    /// A VM on both hosts runs.
    pub(super) fn up_to_running(&mut self) {
        self.asked_for(create("vm", 1, 3));
        self.carry_up_to(Verb::Stop);
        assert_eq!(self.vm().map(|vm| vm.observed.state), Some(VmState::Running));
        self.first = Some(Answer::Done);
    }

    /// Up to the moment at which another operation of this kind is decided.
    fn carry_up_to(&mut self, verb: Verb) {
        let is_new = |state: &Self, write: &Write| match write {
            Write::Put(one) => {
                let is_one = matches!(&**one, Stored::Operation(it) if it.verb == verb);
                is_one && !state.store.contains_key(&one.key())
            }
            Write::Delete(_) => false,
        };
        while let Some(effect) = self.effects.pop_front() {
            match effect {
                Effect::Commit(writes) if writes.iter().any(|it| is_new(self, it)) => {
                    self.effects.push_front(Effect::Commit(writes));
                    return;
                }
                Effect::Call { call, host, what } => {
                    let result = self.reach(&host, &what);
                    self.news(call, result);
                }
                other => self.carry(other),
            }
        }
    }

    /// A VM runs on the first host, which takes nothing new. There is a copy of the store from before it had its place, or from after that.
    pub(super) fn up_to_copy(&mut self, is_placed: bool) {
        let cordon = |host: &str, cordoned| Ask::Cordon { name: name(host), cordoned };
        let begin = [cordon("a", true), cordon("b", true), create("vm", 1, 2), cordon("a", false)];
        for ask in begin {
            if !is_placed {
                self.copy = Some(self.store.clone());
            }
            self.asked_for(ask);
            self.hear(Input::Tick);
            self.carry_up_to(Verb::Stop);
        }
        assert_eq!(self.vm().map(|vm| vm.observed.state), Some(VmState::Running));
        if is_placed {
            self.copy = Some(self.store.clone());
        }
        for ask in [cordon("a", true), cordon("b", false)] {
            self.asked_for(ask);
            self.carry_up_to(Verb::Stop);
        }
        // Whoever goes back to it says again which hosts take something.
        let is_host = |(key, _): &(&String, &Stored)| key.starts_with("hosts/");
        let hosts = self.store.iter().filter(is_host);
        let hosts: Vec<_> = hosts.map(|(key, host)| (key.clone(), host.clone())).collect();
        self.copy.iter_mut().for_each(|copy| copy.extend(hosts.clone()));
        self.first = Some(Answer::Done);
    }
}
