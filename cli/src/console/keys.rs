//! Keys that are not the guest's.
//!
//! ```text
//!   Passing ──Ctrl-]──> Asked ──q or .──> leave
//!      ^                  ├──w──────────> tell the size
//!      │                  ├──Ctrl-]─────> the guest's
//!      │                  └──any other──> help
//!      └──────────────────┘
//! ```

/// Ctrl-], as in telnet and virsh: no shell and no editor needs it.
const OURS: u8 = 0x1d;

/// What a key comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// It is the guest's.
    Key(u8),
    /// The end.
    Leave,
    /// The guest is to know how large the terminal is.
    Size,
    /// Which keys there are.
    Help,
}

/// Whether the next key is ours.
#[derive(Debug, Default)]
pub(super) struct Keys {
    asked: bool,
}

impl Keys {
    /// A key is pressed.
    pub(super) fn press(&mut self, key: u8) -> Option<Said> {
        if !std::mem::take(&mut self.asked) {
            self.asked = key == OURS;
            return (!self.asked).then_some(Said::Key(key));
        }
        Some(match key {
            b'q' | b'Q' | b'.' => Said::Leave,
            b'w' => Said::Size,
            OURS => Said::Key(OURS),
            _ => Said::Help,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(text: &[u8]) -> Vec<Said> {
        let mut keys = Keys::default();
        text.iter().filter_map(|key| keys.press(*key)).collect()
    }

    #[test]
    fn keys_are_the_guests_but_for_the_one_and_what_follows_it() {
        let ctrl_c = 3;
        assert_eq!(press(&[b'a', ctrl_c, 0xff]), [b'a', ctrl_c, 0xff].map(Said::Key));
        assert_eq!(press(b"q\x1dq"), [Said::Key(b'q'), Said::Leave]);
        assert_eq!(press(b"\x1d."), [Said::Leave]);
        assert_eq!(press(b"\x1dwq"), [Said::Size, Said::Key(b'q')]);
        assert_eq!(press(b"\x1d\x1dq"), [Said::Key(OURS), Said::Key(b'q')]);
        assert_eq!(press(b"\x1dxq"), [Said::Help, Said::Key(b'q')]);
        assert_eq!(press(b"\x1d"), []);
    }
}
