//! The grammar of `--lend`: `disk:ro:PATH`, `disk:rw:PATH`, `tap:NAME`, `console:END`.

use crate::devices::console_end;
use std::str::FromStr;
use vmm::slice::Lend;

/// What must be said.
const FORMS: &str =
    "disk:ro:PATH, disk:rw:PATH, tap:NAME, console:stdio, console:file=PATH or console:socket=PATH";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LendArgument(pub(crate) Lend);

impl FromStr for LendArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let lend = match text.split_once(':') {
            Some((_, "") | ("disk", "ro:" | "rw:")) => return Err("the name is missing".into()),
            Some(("tap", name)) => Lend::Tap { name: name.to_owned() },
            Some(("console", end)) => Lend::Console(console_end(end)?),
            Some(("disk", rest)) => match rest.split_once(':') {
                Some(("ro", path)) => Lend::Disk { path: path.into(), writable: false },
                Some(("rw", path)) => Lend::Disk { path: path.into(), writable: true },
                _ => return Err("a disk is lent as disk:ro:PATH or disk:rw:PATH".into()),
            },
            _ => return Err(format!("say what it is and how it may be used: {FORMS}")),
        };
        Ok(Self(lend))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmm::slice::ConsoleEnd;

    #[test]
    fn each_kind_is_read() {
        let path = || "/a:b c".into();
        for (text, lend) in [
            ("disk:ro:/a:b c", Lend::Disk { path: path(), writable: false }),
            ("disk:rw:/a:b c", Lend::Disk { path: path(), writable: true }),
            ("tap:tap0", Lend::Tap { name: "tap0".to_owned() }),
            ("console:stdio", Lend::Console(ConsoleEnd::Stdio)),
            ("console:file=/a:b c", Lend::Console(ConsoleEnd::File { path: path() })),
            ("console:socket=/a:b c", Lend::Console(ConsoleEnd::Socket { path: path() })),
        ] {
            assert_eq!(text.parse(), Ok(LendArgument(lend.clone())));
            assert_eq!(lend.to_string(), text);
        }
    }

    #[test]
    fn what_has_no_kind_or_mode_is_refused() {
        for text in ["/a/disk.img", "tap0", "stdio", "nic:tap0", ""] {
            let error = text.parse::<LendArgument>().unwrap_err();
            assert!(error.contains("disk:ro:PATH, disk:rw:PATH, tap:NAME"), "{text}: {error}");
        }
        for text in ["disk:/a", "disk:", "disk:ro:", "disk:wo:/a", "tap:", "console:", "console:/a"]
        {
            assert!(text.parse::<LendArgument>().is_err(), "{text}");
        }
    }
}
