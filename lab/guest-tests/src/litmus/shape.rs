//! The shapes and what x86-TSO says of their outcomes.

/// A variable of a shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Var {
    /// The first.
    X,
    /// The second.
    Y,
}

/// What one worker does, in program order. Stored values are 1 or 2; 0 is the value before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Stores once.
    Store(Var, u64),
    /// Stores twice.
    StoreStore(Var, u64, Var, u64),
    /// Stores, then loads.
    StoreLoad(Var, u64, Var),
    /// Loads twice.
    LoadLoad(Var, Var),
    /// Loads, then stores.
    LoadStore(Var, Var, u64),
}

/// One litmus test.
#[derive(Debug)]
pub(crate) struct Shape {
    /// Name of the test.
    pub(crate) name: &'static str,
    /// One role per worker.
    pub(crate) roles: &'static [Role],
    /// Whether an MFENCE stands between the accesses of each worker.
    pub(crate) fence: bool,
    /// Whether the final values of x and y belong to the outcome.
    pub(crate) finals: bool,
    /// Whether x86-TSO forbids this outcome.
    pub(crate) forbidden: fn(&Outcome) -> bool,
}

/// What one iteration gave, each value 0 (old), 1, 2, or [`STALE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Outcome {
    /// The two loads of each worker; 0 where it loads less.
    pub(crate) loads: [[u8; 2]; 4],
    /// x and y after all; 0 where the shape does not ask.
    pub(crate) finals: [u8; 2],
}

/// A value from before the last batch, or never stored at all: stale or corrupt memory.
pub(crate) const STALE: u8 = 3;

impl Outcome {
    /// Whether no memory model at all allows it.
    pub(crate) fn is_stale(&self) -> bool {
        self.loads.as_flattened().contains(&STALE) || self.finals.contains(&STALE)
    }

    /// The outcome in short: loads of the workers in order, then the final values.
    pub(crate) fn text(&self, shape: &Shape) -> String {
        let mut text = String::new();
        for (role, loads) in shape.roles.iter().zip(&self.loads) {
            for load in &loads[..role.loads()] {
                text.push(char::from(b'0' + load));
            }
        }
        if shape.finals {
            text.push('/');
            text.extend(self.finals.map(|value| char::from(b'0' + value)));
        }
        text
    }
}

impl Role {
    /// How many loads it does.
    pub(crate) fn loads(self) -> usize {
        match self {
            Self::Store(..) | Self::StoreStore(..) => 0,
            Self::StoreLoad(..) | Self::LoadStore(..) => 1,
            Self::LoadLoad(..) => 2,
        }
    }
}

/// What a value loaded in a batch stands for: batch b stores 4b + 1 or 4b + 2 (each variable that a
/// shape uses is stored in every batch).
pub(crate) fn decode(value: u64, batch: u64) -> u8 {
    let base = 4 * batch;
    match value.checked_sub(base) {
        Some(1) => 1,
        Some(2) => 2,
        Some(0) if batch == 0 => 0,
        // The batch before: 4b - 3 or 4b - 2.
        None if base - value == 3 || base - value == 2 => 0,
        _ => STALE,
    }
}

use Role::{LoadLoad, LoadStore, Store, StoreLoad, StoreStore};
use Var::{X, Y};

const SB: &[Role] = &[StoreLoad(X, 1, Y), StoreLoad(Y, 1, X)];
const MP: &[Role] = &[StoreStore(X, 1, Y, 1), LoadLoad(Y, X)];
const LB: &[Role] = &[LoadStore(X, Y, 1), LoadStore(Y, X, 1)];
const CORR: &[Role] = &[StoreStore(X, 1, X, 2), LoadLoad(X, X)];
const IRIW: &[Role] = &[Store(X, 1), Store(Y, 1), LoadLoad(X, Y), LoadLoad(Y, X)];
const TWO_PLUS_TWO: &[Role] = &[StoreStore(X, 1, Y, 2), StoreStore(Y, 1, X, 2)];
const R: &[Role] = &[StoreStore(X, 1, Y, 1), StoreLoad(Y, 2, X)];
const S: &[Role] = &[StoreStore(X, 2, Y, 1), LoadStore(Y, X, 1)];

fn never(_: &Outcome) -> bool {
    false
}

fn both_old(o: &Outcome) -> bool {
    o.loads[0][0] == 0 && o.loads[1][0] == 0
}

fn flag_without_data(o: &Outcome) -> bool {
    o.loads[1] == [1, 0]
}

fn both_new(o: &Outcome) -> bool {
    o.loads[0][0] == 1 && o.loads[1][0] == 1
}

fn backwards(o: &Outcome) -> bool {
    o.loads[1][0] > o.loads[1][1]
}

fn readers_disagree(o: &Outcome) -> bool {
    o.loads[2] == [1, 0] && o.loads[3] == [1, 0]
}

fn both_first_stores_last(o: &Outcome) -> bool {
    o.finals == [1, 1]
}

fn second_wins_unseen(o: &Outcome) -> bool {
    o.finals[1] == 2 && o.loads[1][0] == 0
}

fn overwritten_by_its_cause(o: &Outcome) -> bool {
    o.finals[0] == 2 && o.loads[1][0] == 1
}

const fn shape(
    name: &'static str,
    roles: &'static [Role],
    fence: bool,
    forbidden: fn(&Outcome) -> bool,
) -> Shape {
    Shape { name, roles, fence, finals: false, forbidden }
}

const fn with_finals(shape: &Shape) -> Shape {
    Shape { finals: true, ..*shape }
}

/// Every litmus test. Only SB and R may show their outcome without a fence.
pub(crate) static SHAPES: &[Shape] = &[
    shape("litmus-sb", SB, false, never),
    shape("litmus-sb-fence", SB, true, both_old),
    shape("litmus-mp", MP, false, flag_without_data),
    shape("litmus-mp-fence", MP, true, flag_without_data),
    shape("litmus-lb", LB, false, both_new),
    shape("litmus-lb-fence", LB, true, both_new),
    shape("litmus-corr", CORR, false, backwards),
    shape("litmus-corr-fence", CORR, true, backwards),
    shape("litmus-iriw", IRIW, false, readers_disagree),
    shape("litmus-iriw-fence", IRIW, true, readers_disagree),
    with_finals(&shape("litmus-2w", TWO_PLUS_TWO, false, both_first_stores_last)),
    with_finals(&shape("litmus-2w-fence", TWO_PLUS_TWO, true, both_first_stores_last)),
    with_finals(&shape("litmus-r", R, false, never)),
    with_finals(&shape("litmus-r-fence", R, true, second_wins_unseen)),
    with_finals(&shape("litmus-s", S, false, overwritten_by_its_cause)),
    with_finals(&shape("litmus-s-fence", S, true, overwritten_by_its_cause)),
];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn named(name: &str) -> &'static Shape {
        SHAPES.iter().find(|shape| shape.name == name).unwrap()
    }

    fn outcome(loads: [[u8; 2]; 4], finals: [u8; 2]) -> Outcome {
        Outcome { loads, finals }
    }

    #[test]
    fn value_of_this_or_the_last_batch_is_decoded() {
        assert_eq!(decode(0, 0), 0);
        assert_eq!(decode(1, 0), 1);
        assert_eq!(decode(1, 1), 0);
        assert_eq!(decode(2, 1), 0);
        assert_eq!(decode(6, 1), 2);
    }

    #[test]
    fn value_of_an_older_batch_is_stale() {
        assert_eq!(decode(0, 1), STALE);
        assert_eq!(decode(2, 2), STALE);
        assert_eq!(decode(9, 1), STALE);
        assert_eq!(decode(4, 1), STALE);
    }

    #[test]
    fn store_buffering_is_forbidden_with_a_fence_only() {
        let both_old = Outcome::default();
        assert!(!(named("litmus-sb").forbidden)(&both_old));
        assert!((named("litmus-sb-fence").forbidden)(&both_old));
    }

    #[test]
    fn each_shape_forbids_its_outcome() {
        let z = [0, 0];
        let cases = [
            ("litmus-mp", outcome([z, [1, 0], z, z], z)),
            ("litmus-lb", outcome([[1, 0], [1, 0], z, z], z)),
            ("litmus-corr", outcome([z, [2, 1], z, z], z)),
            ("litmus-iriw", outcome([z, z, [1, 0], [1, 0]], z)),
            ("litmus-2w", outcome([z; 4], [1, 1])),
            ("litmus-r-fence", outcome([z; 4], [1, 2])),
            ("litmus-s", outcome([z, [1, 0], z, z], [2, 1])),
        ];
        for (name, bad) in cases {
            assert!((named(name).forbidden)(&bad), "{name}");
        }
    }

    #[test]
    fn sequential_outcomes_are_allowed() {
        let z = [0, 0];
        assert!(!(named("litmus-mp").forbidden)(&outcome([z, [1, 1], z, z], z)));
        assert!(!(named("litmus-mp").forbidden)(&outcome([z, [0, 1], z, z], z)));
        assert!(!(named("litmus-lb").forbidden)(&outcome([[0, 0], [1, 0], z, z], z)));
        assert!(!(named("litmus-corr").forbidden)(&outcome([z, [1, 2], z, z], z)));
        assert!(!(named("litmus-2w").forbidden)(&outcome([z; 4], [2, 1])));
        assert!(!(named("litmus-s").forbidden)(&outcome([z, [1, 0], z, z], [1, 1])));
    }

    #[test]
    fn text_shows_loads_and_finals() {
        let seen = outcome([[0, 0], [1, 0], [0; 2], [0; 2]], [1, 2]);
        assert_eq!(seen.text(named("litmus-sb")), "01");
        assert_eq!(seen.text(named("litmus-r")), "1/12");
        assert_eq!(seen.text(named("litmus-2w")), "/12");
    }

    proptest! {
        #[test]
        fn decode_of_any_value_is_a_small_number(value: u64, batch in 0u64..1 << 60) {
            prop_assert!(decode(value, batch) <= STALE);
        }
    }
}
