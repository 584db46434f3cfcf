//! What the operator of a companion's host lends to VMs: of one kind, opened once, before any VM is there.
//!
//! The bootstrap names what it wants; the name only chooses among what is open. Who may change folders or
//! links of this host later changes nothing, and a disk is never taken for the file of a console.

use super::model::{Lending, LentThing};
use super::open_error::OpenError;
use super::registry::lendings;
use std::fmt;
use std::str::FromStr;

/// One thing that is lent, as `KIND:NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lend {
    kind: &'static str,
    name: String,
}

impl fmt::Display for Lend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.name)
    }
}

fn lending(kind: &str) -> Option<Lending> {
    lendings().find(|lending| lending.kind == kind)
}

impl FromStr for Lend {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = text.split_once(':').and_then(|(kind, name)| Some((lending(kind)?, name)));
        let Some((lending, name)) = known else {
            let forms: Vec<&str> = lendings().flat_map(|lending| lending.forms).copied().collect();
            let forms = forms.join(", ");
            return Err(format!("say what it is and how it may be used: {forms}"));
        };
        if name.is_empty() {
            return Err("the name is missing".into());
        }
        (lending.check)(name)?;
        Ok(Self { kind: lending.kind, name: name.to_owned() })
    }
}

/// All that is lent, open.
#[derive(Debug, Default)]
pub(crate) struct Lent(Vec<(String, LentThing)>);

impl Lent {
    /// Opens all of it.
    ///
    /// # Errors
    /// Something is not there, is of another kind, or may not be opened so.
    pub(crate) fn open(lends: &[Lend]) -> Result<Self, OpenError> {
        let open = |lend: &Lend| {
            let what = lend.to_string();
            let lending = lending(lend.kind).ok_or_else(|| "there is no such kind".into());
            match lending.and_then(|lending| (lending.open)(&lend.name)) {
                Ok(thing) => Ok((what, thing)),
                Err(source) => Err(OpenError::Lend { what, source }),
            }
        };
        lends.iter().map(open).collect::<Result<_, _>>().map(Self)
    }

    /// What is lent under one of these names.
    pub(super) fn find(&self, names: &[String]) -> Result<&LentThing, OpenError> {
        let found = self.0.iter().find(|(name, _)| names.contains(name));
        let what = || names.first().cloned().unwrap_or_default();
        found.map(|(_, thing)| thing).ok_or_else(|| OpenError::NotLent { what: what() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slice::peripherals::registry::DeviceSpec;
    use std::fs;
    use std::io::{Read, Seek, Write};
    use std::os::unix::fs::symlink;
    use std::path::{Path, PathBuf};
    use std::slice::from_ref;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("tessera-lend-{}-{name}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn file(&self, name: &str, text: &str) -> String {
            let path = self.0.join(name);
            fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn open(lends: &[String]) -> Result<Lent, OpenError> {
        let lends: Vec<Lend> = lends.iter().map(|lend| lend.parse().unwrap()).collect();
        Lent::open(&lends)
    }

    /// What a device finds of what is lent.
    fn found<'a>(lent: &'a Lent, option: &str, text: &str) -> Result<&'a LentThing, OpenError> {
        lent.find(&DeviceSpec::parse(option, text).unwrap().kind.names())
    }

    #[test]
    fn each_kind_is_read_and_shown() {
        for text in [
            "disk:ro:/a:b c",
            "disk:rw:/a:b c",
            "tap:tap0",
            "console:stdio",
            "console:file=/a:b c",
            "console:socket=/a:b c",
            "vsock:/a:b c",
        ] {
            assert_eq!(text.parse::<Lend>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_has_no_kind_or_mode_is_refused() {
        for text in ["/a/disk.img", "tap0", "stdio", "nic:tap0", ""] {
            let error = text.parse::<Lend>().unwrap_err();
            assert!(error.contains("disk:ro:PATH, disk:rw:PATH, tap:NAME"), "{text}: {error}");
        }
        for text in [
            "disk:/a",
            "disk:",
            "disk:ro:",
            "disk:wo:/a",
            "tap:",
            "console:",
            "console:/a",
            "vsock:",
        ] {
            assert!(text.parse::<Lend>().is_err(), "{text}");
        }
    }

    #[test]
    fn kind_and_mode_must_fit() {
        let folder = Folder::new("kinds");
        let [ro, rw, log] = ["ro", "rw", "log"].map(|name| folder.file(name, name));
        let lends =
            [format!("disk:ro:{ro}"), format!("disk:rw:{rw}"), format!("console:file={log}")];
        let lent = open(&lends).unwrap();

        assert!(found(&lent, "disk", &format!("{ro},readonly")).is_ok());
        assert!(found(&lent, "disk", &format!("{rw},readonly")).is_ok());
        assert!(found(&lent, "disk", &rw).is_ok());
        let file = found(&lent, "console", &format!("file={log}"));
        assert!(matches!(file, Ok(LentThing::File(_))));
        // A disk taken for a console's file would be added to.
        for (option, text, what) in [
            ("disk", ro.clone(), format!("disk:rw:{ro}")),
            ("disk", format!("{log},readonly"), format!("disk:ro:{log}")),
            ("console", format!("file={rw}"), format!("console:file={rw}")),
            ("console", format!("socket={log}"), format!("console:socket={log}")),
            ("net", "rw".into(), "tap:rw".into()),
            ("vsock", format!("cid=3,socket={log}"), format!("vsock:{log}")),
        ] {
            let says =
                format!("{what} is not lent to VMs here; start the companion with --lend {what}");
            assert_eq!(found(&lent, option, &text).unwrap_err().to_string(), says);
        }
    }

    #[test]
    fn what_is_lent_is_what_was_there_at_the_start() {
        let folder = Folder::new("names");
        let (path, other) = (folder.file("disk", "lent"), folder.file("other", "not lent"));
        let lent = open(&[format!("disk:rw:{path}")]).unwrap();

        fs::remove_file(&path).unwrap();
        symlink(&other, &path).unwrap();

        let Ok(LentThing::Image { file, .. }) = found(&lent, "disk", &path) else { panic!() };
        let mut file = file;
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        file.write_all(b"!").unwrap();
        assert_eq!(
            (text.as_str(), fs::read_to_string(&other).unwrap().as_str()),
            ("lent", "not lent")
        );
    }

    #[test]
    fn what_cannot_be_lent_is_refused_at_the_start() {
        let folder = Folder::new("refused");
        let place = |path: &Path| path.display().to_string();
        for lend in [
            format!("disk:ro:{}", place(&folder.0.join("none"))),
            format!("disk:ro:{}", place(&folder.0)),
            "disk:ro:/dev/null".into(),
            "console:file=/dev/null".into(),
            format!("console:file={}", place(&folder.0)),
            "tap:lo".into(),
            "tap:../lo".into(),
        ] {
            assert!(open(from_ref(&lend)).is_err(), "{lend}");
        }
    }
}
