//! VM files, as TOML and as YAML: no panic; errors are one short line; what is accepted is read again as it is written.

use vm_file::Format;

pub(crate) fn run(input: &[u8]) {
    for format in [Format::Toml, Format::Yaml] {
        match format.decode(input) {
            Ok(file) => {
                file.check().expect("decoding checks");
                for format in [Format::Toml, Format::Yaml] {
                    let text = format.encode(&file).expect("every VM has a form");
                    assert_eq!(format.decode(text.as_bytes()), Ok(file.clone()));
                }
            }
            Err(error) => {
                let said = error.to_string();
                assert!(said.len() < 4096 && !said.contains(char::is_control));
            }
        }
    }
}
