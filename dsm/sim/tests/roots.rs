//! Which idle roots leave the replicated class. Found in a guest: when the last root left, every
//! kernel table below it left too, and the guest crawled.

use dsm_protocol::{
    Access, Config, Effect, Epoch, Gfn, HomeRange, HomeTable, Input, Level, Node, Replicate,
    SliceId, VcpuId,
};
use std::collections::VecDeque;
use tessera_dsm_sim::store::{ArrayStore, Page};

const KERNEL_ROOT: Gfn = Gfn(1);
const PROCESS_ROOT: Gfn = Gfn(2);
const OTHER_ROOT: Gfn = Gfn(3);
const TABLE: Gfn = Gfn(4);
const KERNEL_HALF: u16 = 256;
const SECOND_NS: u64 = 1_000_000_000;

struct Pair {
    nodes: Vec<(Node, ArrayStore)>,
    now: u64,
}

impl Pair {
    fn new() -> Self {
        let home = HomeRange { frames: 0..8, home: SliceId(0) };
        let homes = HomeTable::new(vec![home]).expect("one range");
        let slices = vec![SliceId(0), SliceId(1)];
        let table = |user| {
            let mut page = Page::from([(KERNEL_HALF, TABLE.0 << 12 | 0x63)]);
            if user {
                page.insert(0, 7 << 12 | 0x67);
            }
            page
        };
        let node = |id| {
            let mut config = Config::new(SliceId(id), slices.clone(), homes.clone(), Epoch(1));
            config.replicate = Replicate::KernelTables;
            let mut store = ArrayStore::default();
            if id == 0 {
                store.put_page(KERNEL_ROOT, table(false));
                store.put_page(PROCESS_ROOT, table(true));
            }
            (Node::new(config), store)
        };
        Self { nodes: vec![node(0), node(1)], now: 0 }
    }

    /// Gives one input to a slice and delivers messages until there are none.
    fn give(&mut self, at: usize, input: Input) {
        let mut work = VecDeque::from([(at, input, None)]);
        while let Some((at, input, body)) = work.pop_front() {
            let mut effects = Vec::new();
            let (node, store) = &mut self.nodes[at];
            store.take_in_hand(body);
            node.step(self.now, input, store, &mut effects).expect("the protocol holds");
            for effect in effects {
                let Effect::Send { to, message } = effect else { continue };
                let from = SliceId(u16::try_from(at).expect("two slices"));
                let page = message.gfn().filter(|_| message.has_body());
                let body = page.map(|gfn| self.nodes[at].1.page(gfn));
                let input = Input::Message { from, epoch: Epoch(1), message };
                work.push_back((usize::from(to.0), input, body));
            }
        }
    }

    fn all_use(&mut self, root: Gfn) {
        for at in 0..2 {
            let vcpu = VcpuId(u32::try_from(at).expect("two slices"));
            self.give(at, Input::Root { vcpu, gfn: root });
        }
    }

    fn seconds_pass(&mut self) {
        for _ in 0..2 {
            self.now += 2 * SECOND_NS;
            self.give(0, Input::Tick);
        }
    }
}

#[test]
fn idle_process_root_leaves_and_kernel_root_stays() {
    let mut pair = Pair::new();
    for root in [KERNEL_ROOT, PROCESS_ROOT] {
        pair.all_use(root);
        pair.give(1, Input::Fault { gfn: root, want: Access::Write });
    }
    pair.seconds_pass();
    assert!(pair.nodes.iter().all(|(node, _)| node.is_replica(KERNEL_ROOT)));
    assert!(pair.nodes.iter().all(|(node, _)| node.is_replica(PROCESS_ROOT)), "it is in use");

    pair.all_use(OTHER_ROOT);
    pair.seconds_pass();

    for (node, _) in &pair.nodes {
        assert!(node.is_replica(KERNEL_ROOT), "the kernel's root stays");
        assert!(!node.is_replica(PROCESS_ROOT), "an idle process's root leaves");
        assert_eq!(
            node.table(TABLE).map(|table| table.level),
            Level::new(3),
            "the table below is still known"
        );
    }
}
