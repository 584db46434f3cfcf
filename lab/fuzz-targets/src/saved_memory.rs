//! Saved states of nodes of the coherence protocol: no panic on any bytes, what is accepted is in order and written the
//! same way, a node restored from it saves it again and goes on, and forms of several slices are compared.

use dsm_protocol::saved::{NodeState, TableScope, check_all};
use dsm_protocol::{
    Access, Config, Gfn, HomeRange, HomeTable, Input, Message, NoPages, Node, Replicate, SliceId,
};
use migrate::SavedState;
use migrate::saved::{decode, encode};

/// A node takes a few bytes for each frame below the last.
const FRAMES_MAX: u64 = 1 << 16;
const FORMS_MAX: usize = 8;
const INPUTS_MAX: usize = 64;

fn read(bytes: &[u8]) -> Option<NodeState> {
    let state: NodeState = decode(bytes).ok()?;
    state.check().expect("decoding checks");
    let again = encode(&state).expect("what was read can be written");
    assert_eq!(decode::<NodeState>(&again).expect("what was written can be read"), state);
    Some(state)
}

/// The configuration that the form is of, unless that is a very large VM.
fn config(state: &NodeState) -> Option<Config> {
    let ranges = state.homes.iter().map(|range| HomeRange {
        frames: range.first..range.first + range.pages,
        home: range.home,
    });
    let homes = HomeTable::new(ranges.collect()).expect("it was checked");
    let replicate = match state.tables {
        TableScope::Nothing => Replicate::Nothing,
        TableScope::Kernel => Replicate::KernelTables,
        TableScope::All => Replicate::AllTables,
    };
    let small = homes.end() <= FRAMES_MAX;
    let config = Config::new(state.slice, state.slices.clone(), homes, state.epoch);
    small.then_some(Config { replicate, vcpus: state.vcpus, ..config })
}

/// Each page of the home has one keeper, and that slice says so if it is this one.
fn keepers_hold(state: &NodeState) {
    let mut pages = 0;
    for (_, frames) in state.keepers() {
        pages += frames.pages();
    }
    let own = state.homes.iter().filter(|range| range.home == state.slice);
    assert_eq!(pages, own.map(|range| range.pages).sum::<u64>());
}

fn goes_on(state: &NodeState, script: &[u8]) {
    let Some(config) = config(state) else { return };
    let epoch = config.epoch;
    let Ok(mut node) = Node::restored(config, state, &mut NoPages) else { return };
    assert_eq!(node.save(&NoPages).as_ref(), Ok(state));
    let mut effects = Vec::new();
    for (now, input) in script.chunks_exact(4).take(INPUTS_MAX).enumerate() {
        let gfn = Gfn(u64::from(u16::from_le_bytes([input[0], input[1]])));
        let from = SliceId(u16::from(input[2]));
        let want = if input[3] & 1 == 0 { Access::Read } else { Access::Write };
        let message = |message| Input::Message { from, epoch, message };
        let next = match input[3] >> 1 & 7 {
            0 | 1 if node.home(gfn).is_some() => Input::Fault { gfn, want },
            2 => message(Message::Get { gfn, want, table: None }),
            3 => message(Message::Invalidate { gfn, requester: from, upgrade: 0 }),
            4 => message(Message::Data { gfn, access: want, acks: 0, held_us: 0, table: None }),
            5 => message(Message::Demote { gfn, conflict: want == Access::Write }),
            6 => message(Message::GetRun { gfn, pages: 3, want }),
            _ => Input::Release { tokens: 1..2 },
        };
        let now = u64::try_from(now).expect("few inputs");
        if node.step(now, next, &mut NoPages, &mut effects).is_err() {
            return;
        }
        let _ = node.save(&NoPages);
    }
}

pub(crate) fn run(input: &[u8]) {
    // Length of a form and the form, several times; then what happens to the first.
    let mut rest = input;
    let mut forms = Vec::new();
    while let [low, high, after @ ..] = rest {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(after.len());
        let Some(form) = (forms.len() < FORMS_MAX).then(|| read(&after[..length])).flatten() else {
            break;
        };
        forms.push(form);
        rest = &after[length..];
    }
    forms.iter().for_each(keepers_hold);
    if let Some(first) = forms.first() {
        goes_on(first, rest);
    }
    if check_all(&forms).is_ok() {
        let owners: u64 = forms.iter().map(|form| form.exclusive.pages()).sum();
        let all: u64 = forms[0].homes.iter().map(|range| range.pages).sum();
        assert!(owners <= all, "a page has two owners");
    }
}
