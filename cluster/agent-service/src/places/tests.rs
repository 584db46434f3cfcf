use super::*;
use agent::decide::{Order, Phase, Slice, Token};
use scheduler::Resources;
use std::os::unix::fs::{PermissionsExt, symlink};

/// A folder that goes away with its test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tsr-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn named(&self, path: &str) -> Named {
        let (field, folder) = ("f".into(), self.0.join("images").display().to_string());
        Named { field, path: format!("{folder}/{path}"), folder }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const OF: Of = (SliceName { vm: Vm(5), number: 1 }, Generation(1));
const LATER: Of = (SliceName { vm: Vm(5), number: 1 }, Generation(2));

#[test]
fn secret_is_its_owners_and_goes_with_its_slice() {
    let folder = Folder::new("places");
    let places = Places::open(&folder.0).unwrap();
    places.keep_secret(OF, b"sixteen bytes...").unwrap();
    places.keep_secret(OF, b"another secret..").unwrap();
    places.keep_secret(LATER, b"of a later life.").unwrap();
    let path = PathBuf::from(places.files(OF).secret);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing half written");
    assert!(places.has_secret(OF, b"another secret..").unwrap());
    assert!(!places.has_secret(OF, b"sixteen bytes...").unwrap());

    let mut journal = Journal::default();
    let order = Order { resources: Resources::NONE, words: Vec::new() };
    let (generation, token, phase) = (LATER.1, Token(1), Phase::Starting);
    journal.slices.insert(LATER.0, Slice { generation, order, token, phase, stop: None });
    places.sweep(&journal);
    assert!(!path.exists(), "it is of a life that is over");
    assert!(places.has_secret(LATER, b"of a later life.").unwrap());
    assert!(!places.has_secret(LATER, b"another secret..").unwrap());
}

#[test]
fn folder_with_too_long_a_name_is_refused() {
    let folder = Folder::new("long");
    let error = Places::open(&folder.0.join("x".repeat(60))).unwrap_err();
    assert!(error.to_string().contains("too long"), "{error}");
}

#[test]
fn links_that_lead_out_are_refused() {
    let folder = Folder::new("links");
    let images = folder.0.join("images");
    fs::create_dir_all(images.join("sub")).unwrap();
    fs::write(images.join("sub/vmlinuz"), "").unwrap();
    fs::write(folder.0.join("outside"), "").unwrap();
    symlink("sub/vmlinuz", images.join("inside")).unwrap();
    symlink("../outside", images.join("outside")).unwrap();
    symlink("..", images.join("up")).unwrap();
    for good in ["sub/vmlinuz", "inside"] {
        look(&folder.named(good)).unwrap();
    }
    for bad in ["outside", "up/outside", "up/images", "nowhere"] {
        let why = look(&folder.named(bad)).unwrap_err();
        assert!(why.contains(bad), "{why}");
    }
}
