//! The power button: a press ends the machine in order, as a system's own service would.
//!
//! The kernel makes an input device of ACPI's button (`button.ko`) and shows its events to programs
//! (`evdev.ko`). A virtual machine without a keyboard has no other input device.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::{report, sys};

const DRIVERS: [&str; 2] = ["/drivers/button.ko", "/drivers/evdev.ko"];
const EVENTS: &str = "/dev/input/event0";
/// `struct input_event`: two words of time, type, code and value (linux/input.h).
const EVENT_BYTES: usize = 24;
const EV_KEY: u16 = 1;
const KEY_POWER: u16 = 116;
/// The node of the device is made by the kernel's own thread.
const PATIENCE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(100);

/// From now on a press powers the machine off, after what is written has reached the disks.
///
/// # Errors
/// No driver, or no button.
pub(crate) fn heed() -> Result<()> {
    for path in DRIVERS {
        let driver = File::open(path).with_context(|| format!("open {path}"))?;
        sys::load_module(driver.as_raw_fd()).with_context(|| format!("load {path}"))?;
    }
    let mut waited = Duration::ZERO;
    let mut events = loop {
        match File::open(EVENTS) {
            Ok(events) => break events,
            Err(error) if waited >= PATIENCE => return Err(error).context("open the power button"),
            Err(_) => thread::sleep(POLL),
        }
        waited += POLL;
    };
    thread::spawn(move || match pressed(&mut events) {
        Ok(()) => {
            report::line("GUEST power button");
            sys::sync();
            report::line(&format!("GUEST end_error {}", sys::reboot(libc::RB_POWER_OFF)));
        }
        Err(error) => report::line(&format!("GUEST button_error {error:#}")),
    });
    Ok(())
}

/// Waits for a press.
fn pressed(events: &mut impl Read) -> Result<()> {
    let mut event = [0; EVENT_BYTES];
    loop {
        events.read_exact(&mut event).context("read the power button")?;
        let field = |at: usize| u16::from_ne_bytes([event[at], event[at + 1]]);
        let down = event[20] == 1;
        if field(16) == EV_KEY && field(18) == KEY_POWER && down {
            return Ok(());
        }
        ensure!(field(16) <= EV_KEY, "an event of type {} is none of a button", field(16));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: u16, code: u16, value: u8) -> Vec<u8> {
        let mut event = vec![0; EVENT_BYTES];
        event[16..18].copy_from_slice(&kind.to_ne_bytes());
        event[18..20].copy_from_slice(&code.to_ne_bytes());
        event[20] = value;
        event
    }

    #[test]
    fn press_is_told_from_release_and_from_other_events() {
        let others = [event(0, 0, 0), event(EV_KEY, KEY_POWER, 0), event(EV_KEY, 28, 1)].concat();
        assert!(pressed(&mut &others[..]).is_err(), "the end of the events");
        let all = [others, event(EV_KEY, KEY_POWER, 1)].concat();
        assert!(pressed(&mut &all[..]).is_ok());
        assert!(pressed(&mut &event(2, 0, 0)[..]).is_err());
    }
}
