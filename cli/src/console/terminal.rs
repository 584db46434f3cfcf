//! A terminal that passes on every key, and is put back however its user ends.
//!
//! ```text
//!   as it was ──raw──> raw ──Drop, or a panic of any thread──> as it was
//! ```
//! A panic ends the process and drops nothing (`vmm::crash`), so a hook before it puts the terminal back. Signals that can be
//! caught end the loop of `tessera console`, which drops it. After SIGKILL, `stty sane` helps.

use anyhow::{Context, Result};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::stdin;
use std::panic::{set_hook, take_hook};

/// Standard input, in raw mode.
#[derive(Debug)]
pub(super) struct Terminal {
    before: Termios,
    raw: Termios,
}

impl Terminal {
    /// Has standard input pass on every key, as it is, at once.
    pub(super) fn raw() -> Result<Self> {
        let before = tcgetattr(stdin()).context("read the terminal's modes")?;
        let mut raw = before.clone();
        raw.make_raw();
        let (hook, modes) = (take_hook(), before.clone());
        set_hook(Box::new(move |info| {
            restore(&modes);
            hook(info);
        }));
        let terminal = Self { before, raw };
        terminal.again()?;
        Ok(terminal)
    }

    /// The same after somebody else may have changed it.
    pub(super) fn again(&self) -> Result<()> {
        tcsetattr(stdin(), OptionalActions::Now, &self.raw).context("change the terminal's modes")
    }

    /// What tells a shell how large it is.
    pub(super) fn size(&self) -> Result<String> {
        let size = tcgetwinsize(stdin()).context("find how large the terminal is")?;
        Ok(format!("stty rows {} cols {}\r", size.ws_row, size.ws_col))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore(&self.before);
    }
}

fn restore(modes: &Termios) {
    // A terminal that is gone has no modes.
    let _ = tcsetattr(stdin(), OptionalActions::Flush, modes);
}
