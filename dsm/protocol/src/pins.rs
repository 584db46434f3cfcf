//! Pages that the VMM has pinned.

use wire::Access;

/// A page pinned by the VMM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Pins {
    pub(crate) held: u32,
    pub(crate) waiting: Vec<(Access, u64)>,
}
