//! Manifests of checkpoints: no panic on any bytes; contents that are accepted are in order and written the same way.

use checkpoint::{Contents, Key, assemble, decode_manifest, encode_manifest};
use migrate::SavedState;
use std::path::Path;

fn read(bytes: &[u8], key: Option<&Key>) -> Option<Contents> {
    let manifest = decode_manifest(bytes, Path::new("manifest"), key).ok()?;
    manifest.contents.check().expect("decoding checks");
    Some(manifest.contents)
}

pub(crate) fn run(input: &[u8]) {
    // As it is: head and digests; then as contents under digests that fit.
    read(input, None);
    let key = Key::of_secret(b"secret of the fuzz target");
    assert!(read(input, Some(&key)).is_none(), "nobody knows the key");
    let sealed = assemble::manifest(input, Some(&key));
    if let Some(contents) = read(&sealed, Some(&key)) {
        let (again, _) =
            encode_manifest(&contents, Some(&key)).expect("what was read can be written");
        assert_eq!(read(&again, Some(&key)), Some(contents));
        assert!(read(&sealed, Some(&Key::of_secret(b"another"))).is_none());
    }
}
