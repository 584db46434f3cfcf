//! Pages that are asked for together, ahead of their touch.

use wire::{Access, Gfn};

/// A page, and what is wanted of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Miss {
    /// The page.
    pub gfn: Gfn,
    /// The access that the slice has not.
    pub want: Access,
}

/// Pages of a chunk.
pub const CHUNK: u16 = 512;

/// Pages to fetch, each as far from the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The page that will be touched first.
    pub first: Gfn,
    /// From each page to the next: 1 for neighbours, below 0 for a run downwards.
    pub stride: i64,
    /// How many.
    pub pages: u16,
    /// The access that the run needs.
    pub want: Access,
    /// It is one page and no run: its touch asks for no more, and if it can only be read here it is upgraded.
    pub alone: bool,
}

impl Window {
    /// Pages of a run.
    #[must_use]
    pub fn of_run(first: Gfn, stride: i64, pages: u16, want: Access) -> Self {
        Self { first, stride, pages, want, alone: false }
    }

    /// One page.
    #[must_use]
    pub fn alone(Miss { gfn, want }: Miss) -> Self {
        Self { first: gfn, stride: 1, pages: 1, want, alone: true }
    }

    /// Those of its pages that there can be.
    pub(super) fn up_to_the_ends(self) -> Self {
        Self { pages: u16::try_from(self.frames().count()).expect("a window"), ..self }
    }

    /// True for a whole chunk.
    #[must_use]
    pub fn is_chunk(&self) -> bool {
        self.stride == 1 && self.pages == CHUNK
    }

    /// The page whose touch asks for more: the first of a run.
    #[must_use]
    pub fn is_marker(&self, gfn: Gfn) -> bool {
        !self.alone && gfn == self.first
    }

    /// The pages in the order in which they will be touched.
    pub fn frames(&self) -> impl Iterator<Item = Gfn> + use<> {
        let Self { first, stride, pages, .. } = *self;
        (0..pages).map_while(move |nth| away(first, stride, nth))
    }

    /// What to ask for, the first page of each request and how many: neighbours come by one, in whatever order they
    /// will be touched, and others by one each.
    #[must_use]
    pub fn requests(&self) -> Vec<(Gfn, u16)> {
        if !matches!(self.stride, 1 | -1) {
            return self.frames().map(|gfn| (gfn, 1)).collect();
        }
        self.frames().min().map(|lowest| (lowest, self.pages)).into_iter().collect()
    }
}

/// The page that is so many strides away, if there is one.
pub(super) fn away(from: Gfn, stride: i64, times: u16) -> Option<Gfn> {
    let distance = stride.checked_mul(i64::from(times))?;
    from.0.checked_add_signed(distance).map(Gfn)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(first: u64, stride: i64, pages: u16) -> Window {
        Window::of_run(Gfn(first), stride, pages, Access::Read)
    }

    #[test]
    fn neighbours_are_asked_for_by_one_request() {
        assert_eq!(window(7, 1, 3).requests(), [(Gfn(7), 3)]);
        assert_eq!(window(7, -1, 3).requests(), [(Gfn(5), 3)]);
        assert_eq!(window(7, -3, 3).requests(), [(Gfn(7), 1), (Gfn(4), 1), (Gfn(1), 1)]);
        assert_eq!(window(7, 16, 0).requests(), []);
    }

    #[test]
    fn pages_beyond_the_ends_are_none() {
        let frames = |window: Window| window.frames().map(|gfn| gfn.0).collect::<Vec<_>>();
        assert_eq!(frames(window(5, -4, 4)), [5, 1]);
        assert_eq!(frames(window(u64::MAX - 2, 2, 4)), [u64::MAX - 2, u64::MAX]);
        assert_eq!(frames(window(3, i64::MIN, 3)), [3]);
    }

    #[test]
    fn only_neighbours_upwards_are_a_chunk() {
        assert!(window(512, 1, CHUNK).is_chunk());
        assert!(!window(512, 2, CHUNK).is_chunk() && !window(512, 1, 64).is_chunk());
        assert!(window(9, -3, 4).is_marker(Gfn(9)) && !window(9, -3, 4).is_marker(Gfn(6)));
        let miss = Miss { gfn: Gfn(9), want: Access::Read };
        assert!(!Window::alone(miss).is_marker(Gfn(9)));
    }
}
