//! What a cluster is seen by from outside: what its leader knows, told anew for each page. What each name means is in docs/metrics.md.

use super::shape::verb;
use crate::decide::{Counts, Standings};
use crate::run::Handle;
use ::metrics::{Label, Page, Source};
use scheduler::Resources;
use state::{SharingClass, VmState};
use std::future::Future;
use std::pin::Pin;

/// Memory is counted in such units.
const UNIT: u64 = 2 << 20;

/// Asks whoever leads here.
#[derive(Debug)]
pub(crate) struct ClusterMetrics(pub(crate) Handle);

impl Source for ClusterMetrics {
    fn tell(&self) -> Pin<Box<dyn Future<Output = Page> + Send + '_>> {
        Box::pin(async { page(self.0.look(|view| view.machine.counts()).await.ok().as_ref()) })
    }
}

/// A number as Prometheus has them: from 2^53 on some are rounded.
#[expect(clippy::cast_precision_loss, reason = "the format has no other numbers")]
fn number(count: u64) -> f64 {
    count as f64
}

fn size(count: usize) -> f64 {
    number(u64::try_from(count).unwrap_or(u64::MAX))
}

fn row(label: &'static str, value: &str, count: f64) -> (Vec<Label>, f64) {
    (vec![(label, value.to_owned())], count)
}

/// One that does not lead knows of no cluster.
fn page(counts: Option<&Counts>) -> Page {
    let mut page = Page::default();
    page.build(env!("CARGO_PKG_VERSION"));
    let leads = if counts.is_some() { 1.0 } else { 0.0 };
    page.gauge("leader", "Whether this orchestrator leads", [(Vec::new(), leads)]);
    if let Some(counts) = counts {
        hosts(counts, &mut page);
        vms(counts, &mut page);
    }
    page
}

fn hosts(counts: &Counts, page: &mut Page) {
    let Counts { standing, total, free, .. } = counts;
    let term = [(Vec::new(), number(standing.term.0))];
    page.gauge("orchestrator_term", "The term of the leader", term);
    let Standings { all, up, foreign } = standing.hosts;
    let states = [("up", up), ("foreign", foreign), ("down", all.saturating_sub(up + foreign))];
    let states = states.map(|(state, count)| row("state", state, size(count)));
    page.gauge("cluster_hosts", "Hosts, by whether their agents answer, and whom", states);
    let each = counts.hosts.iter();
    let each = each.map(|(host, up)| row("host", host.as_str(), f64::from(u8::from(*up))));
    page.gauge(
        "cluster_host_up",
        "Whether the agent of a host answers, and obeys this orchestrator",
        each,
    );
    let both = |of: fn(&Resources) -> f64| {
        [row("state", "capacity", of(total)), row("state", "free", of(free))]
    };
    let help = "Cores of all hosts that VMs may have, and of these the free ones";
    page.gauge("cluster_cores", help, both(|it| number(it.cores.into())));
    let help = "Memory of all hosts that VMs may have, and of this what is free";
    page.gauge("cluster_memory_bytes", help, both(|it| number(u64::from(it.memory) * UNIT)));
    let (_, phi) = standing.fragmentation;
    let help = "The part of the free cores that VMs of the usual sizes cannot use";
    page.gauge("cluster_fragmentation_ratio", help, [(Vec::new(), phi)]);
}

fn vms(counts: &Counts, page: &mut Page) {
    let Counts { standing, vms, waiting, operations, checkpoints, .. } = counts;
    let states =
        vms.iter().map(|(state, count)| row("state", word_of_state(*state), number(*count)));
    page.gauge("cluster_vms", "VMs, by their states", states);
    let info = counts.names.iter().map(|(uid, (name, state))| {
        let labels =
            [("vm", uid.as_str()), ("name", name.as_str()), ("state", word_of_state(*state))];
        (labels.map(|(label, value)| (label, value.to_owned())).to_vec(), 1.0)
    });
    page.gauge("cluster_vm_info", "1, with the name of a VM and its state", info);
    let several = [(Vec::new(), size(standing.aggregate))];
    page.gauge("cluster_aggregate_vms", "VMs on several hosts", several);
    let rows =
        waiting.iter().map(|(class, count)| row("class", word_of_class(*class), number(*count)));
    page.gauge("scheduler_pending_vms", "VMs that wait for room, by their classes", rows);
    let rows = operations.iter().map(|(of, count)| row("verb", verb(*of), number(*count)));
    page.gauge("cluster_operations", "Operations that go on", rows);
    let ages = checkpoints.iter().map(|(uid, age)| row("vm", uid.as_str(), number(*age)));
    page.gauge("checkpoint_age_seconds", "Time since the newest checkpoint of a VM", ages);
}

const fn word_of_state(state: VmState) -> &'static str {
    match state {
        VmState::Waiting => "waiting",
        VmState::Starting => "starting",
        VmState::Running => "running",
        VmState::Paused => "paused",
        VmState::Stopping => "stopping",
        VmState::Stopped => "stopped",
        VmState::Lost => "lost",
    }
}

const fn word_of_class(class: SharingClass) -> &'static str {
    match class {
        SharingClass::Independent => "independent",
        SharingClass::Requests => "requests",
        SharingClass::Default => "default",
        SharingClass::Shared => "shared",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::{Choice, Objects, Orchestrator, Settings, Time};
    use state::{Name, Term, Uid, Verb};

    fn value(text: &str, name: &str) -> Option<String> {
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(name));
        lines.find_map(|rest| rest.strip_prefix(' ').map(str::to_owned))
    }

    #[test]
    fn leader_tells_of_its_cluster() {
        let settings = Settings::new(Choice::BestFit);
        let (time, objects) = (Time::default(), Objects::default());
        let mut counts = Orchestrator::recover(settings, Term(7), time, objects).counts();
        let name = |text| Name::new(text).unwrap();
        counts.names = [(Uid::new(5), (name("web"), VmState::Running))].into();
        counts.hosts = [(name("a"), true), (name("b"), false)].into();
        counts.total = Resources::new(8, 16);
        counts.standing.hosts = Standings { all: 7, up: 4, foreign: 2 };
        counts.vms.insert(VmState::Running, 2);
        counts.waiting.insert(SharingClass::Requests, 1);
        counts.operations.insert(Verb::Checkpoint, 3);
        counts.checkpoints.insert(Uid::new(5), 40);
        let text = page(Some(&counts)).text();
        let told = |name: &str| value(&text, name).unwrap_or_else(|| panic!("{name}: {text}"));
        assert_eq!(told("tessera_leader"), "1.0");
        assert_eq!(told("tessera_orchestrator_term"), "7.0");
        for (state, count) in [("up", "4.0"), ("foreign", "2.0"), ("down", "1.0")] {
            assert_eq!(told(&format!("tessera_cluster_hosts{{state=\"{state}\"}}")), count);
        }
        assert_eq!(told("tessera_cluster_cores{state=\"capacity\"}"), "8.0");
        assert_eq!(told("tessera_cluster_memory_bytes{state=\"capacity\"}"), "33554432.0");
        let info = format!(
            "tessera_cluster_vm_info{{vm=\"{}\",name=\"web\",state=\"running\"}}",
            Uid::new(5)
        );
        assert_eq!(told(&info), "1.0");
        assert_eq!(told("tessera_cluster_host_up{host=\"a\"}"), "1.0");
        assert_eq!(told("tessera_cluster_host_up{host=\"b\"}"), "0.0");
        assert_eq!(told("tessera_cluster_vms{state=\"running\"}"), "2.0");
        assert_eq!(told("tessera_scheduler_pending_vms{class=\"requests\"}"), "1.0");
        assert_eq!(told("tessera_cluster_operations{verb=\"checkpoint\"}"), "3.0");
        let age = format!("tessera_checkpoint_age_seconds{{vm=\"{}\"}}", Uid::new(5));
        assert_eq!(told(&age), "40.0");
    }

    #[test]
    fn one_that_does_not_lead_says_so_and_no_more() {
        let text = page(None).text();
        assert_eq!(value(&text, "tessera_leader").as_deref(), Some("0.0"));
        assert!(!text.contains("tessera_cluster"), "{text}");
    }
}
