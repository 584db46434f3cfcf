//! Files in git: what is read, how it is written again, what the schema is, and what errors say.
//!
//! `TESSERA_GOLDEN=write cargo test -p tessera-vm-file` writes the schema and the written forms anew.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly")]

use std::fs;
use std::path::{Path, PathBuf};

use vm_file::{Format, VmFile, schema};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn read(name: &str) -> VmFile {
    let path = golden(name);
    let format = Format::of_path(&path).unwrap();
    format.decode(&fs::read(&path).unwrap()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn assert_is_golden(name: &str, text: &str) {
    let path = golden(name);
    if std::env::var_os("TESSERA_GOLDEN").is_some() {
        fs::write(&path, text).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == text, "{name} in git is another one: see the head of this file\n{text}");
}

#[test]
fn toml_and_yaml_of_the_same_vm_are_one_struct() {
    for name in ["one-host", "all-fields"] {
        let [toml, yaml] = ["toml", "yaml"].map(|ending| read(&format!("{name}.{ending}")));

        assert_eq!(toml, yaml, "{name}");
    }
}

#[test]
fn written_forms_are_those_in_git_and_are_read_again() {
    for name in ["one-host", "all-fields"] {
        let file = read(&format!("{name}.toml"));
        for (format, ending) in [(Format::Toml, "toml"), (Format::Yaml, "yaml")] {
            let text = format.encode(&file).unwrap();

            assert_is_golden(&format!("{name}.written.{ending}"), &text);
            assert_eq!(format.decode(text.as_bytes()).unwrap(), file, "{name} {ending}");
        }
    }
}

#[test]
fn schema_is_the_one_in_git() {
    assert_is_golden("schema.json", &schema());
}

/// The file in TOML with this line in place of that one, and the error.
fn refused(replace: &str, by: &str) -> String {
    let text = fs::read_to_string(golden("all-fields.toml")).unwrap();
    assert!(text.contains(replace), "{replace}");
    let text = text.replacen(replace, by, 1);
    Format::Toml.decode(text.as_bytes()).map(|file| format!("{file:?}")).unwrap_err().to_string()
}

/// What of the file in TOML is replaced, by what, and what the error says.
const REFUSED: &[(&str, &str, &str)] = &[
    (
        "rng = true",
        "rgn = true",
        "line 17, column 1: unknown field `rgn`, expected one of `vcpus`, `memory`, `class`, `run`, `slicesMax`, `guest`, `disks`, `nics`, `rng`, `checkpoint`, `borrow`, `slices`",
    ),
    (
        "class = \"requests\"",
        "class = \"server\"",
        "line 14, column 9: unknown variant `server`, expected one of `independent`, `requests`, `default`, `shared`",
    ),
    (
        "memory = \"3G\"",
        "memory = \"3 GB\"",
        "line 13, column 10: \"3 GB\" is no size: write 512M, 2G, 1T or bytes",
    ),
    (
        "memory = \"3G\"",
        "memory = -1",
        "line 13, column 10: invalid value: integer `-1`, expected write 512M, 2G, 1T or bytes",
    ),
    ("memory = \"3G\"\n", "", "line 11, column 1: missing field `memory`"),
    ("vcpus = 4", "vcpus = 0", "spec.vcpus: 0; 1 to 256 are allowed"),
    ("vcpus = 4", "vcpus = 5", "spec.slices: they have 4 vCPUs together, and spec.vcpus says 5"),
    (
        "memory = \"3G\"",
        "memory = \"4G\"",
        "spec.slices: they have 3G of memory together, and spec.memory says 4G",
    ),
    ("memory = \"3G\"", "memory = \"3221225473\"", "spec.memory: 3221225473 is no multiple of 2M"),
    ("memory = \"3G\"", "memory = \"30M\"", "spec.memory: 30M; at least 32M is needed"),
    (
        "class = \"requests\"",
        "class = \"shared\"",
        "spec.slicesMax: a VM of class shared is never split; leave it out, or 1",
    ),
    ("slicesMax = 3", "slicesMax = 2", "spec.slices: 3 slices; at most 2 are allowed"),
    ("slicesMax = 3", "slicesMax = 33", "spec.slicesMax: 33; 1 to 32 are allowed"),
    (
        "borrow = \"adaptive:5\"",
        "borrow = \"after\"",
        "line 18, column 10: \"after\" is no time to borrow: write always, after:SECONDS, adaptive or adaptive:SECONDS",
    ),
    ("vcpusMax = 4", "vcpusMax = 1", "spec.slices[0].vcpusMax: 1; 2 to 256 are allowed"),
    (
        "vcpusMax = 4",
        "address = \"h:1\"",
        "spec.slices[0].address: the first slice is the bootstrap's own and has none",
    ),
    (
        "address = \"host2.example:7100\"",
        "",
        "spec.slices[1]: only the first slice has no address; where does its companion listen?",
    ),
    (
        "host2.example:7100",
        "[fd00::3]:7100",
        "spec.slices[2].address: another slice has [fd00::3]:7100",
    ),
    (
        "host2.example:7100",
        "fd00::3:7100",
        "line 52, column 11: \"fd00::3:7100\" is no address: write HOST:PORT, as host2:7100, 10.9.0.2:7100 or [fd00::2]:7100; the port is 1 to 65535",
    ),
    ("{ slice = 1 },", "{ slice = 0 },", "spec.disks[0].standby[0].slice: slice 0 has it already"),
    (
        "readonly = true\nslice = 1",
        "slice = 3",
        "spec.disks[1].slice: there is no slice 3; the VM has 3 at most",
    ),
    (
        "/srv/images/data.raw",
        "/srv/a,b",
        "line 33, column 9: \"/srv/a,b\" is no name of a file or of an interface: 1 to 4095 bytes without a comma or a control character",
    ),
    (
        "02:00:00:00:00:01",
        "03:00:00:00:00:01",
        "line 39, column 7: \"03:00:00:00:00:01\" is no MAC address: write six bytes as 02:00:00:00:00:01; the first is even, and not all are 0",
    ),
    ("every = \"10m\"", "every = \"5s\"", "spec.checkpoint.every: 5s; 10s to 7d are allowed"),
    ("keep = 3", "keep = 0", "spec.checkpoint.keep: 0; 1 to 1000 are allowed"),
    ("panic=-1", "panic=-1\\n", "spec.guest.cmdline: it has a control character"),
    (
        "team = \"web\"",
        "team = \"a b\"",
        "metadata.labels: \"team\": keys and values are up to 63 letters, digits, '-', '_', '.' and '/'",
    ),
    (
        "search-7",
        "Search",
        "line 5, column 8: \"Search\" is no name: 1 to 63 small letters, digits and '-', which neither begins nor ends it",
    ),
    (
        "tessera/v1",
        "tessera/v2",
        "line 1, column 14: unknown variant `tessera/v2`, expected `tessera/v1`",
    ),
    (
        "clockPermille = 250",
        "clockPermille = 1001",
        "spec.guest.clockPermille: 1001; 1 to 1000 are allowed",
    ),
    ("[metadata]", "[metadata", "line 4, column 10: unclosed table, expected `]`"),
    ("rng = true", "rng = true\nrng = true", "line 18, column 1: duplicate key"),
];

#[test]
fn what_makes_no_sense_is_refused_with_its_place() {
    let mut others = Vec::new();
    for (replace, by, error) in REFUSED {
        let said = refused(replace, by);
        if said != *error {
            others.push(format!("{by:?}: {said}, not {error}"));
        }
    }
    assert!(others.is_empty(), "{others:#?}");
}

#[test]
fn yaml_is_refused_with_its_place() {
    let whole = fs::read_to_string(golden("one-host.yaml")).unwrap();
    for (replace, by, error) in [
        ("  vcpus: 2", "  cpus: 2", "line 6, column 3: unknown field `cpus`"),
        ("  vcpus: 2", "  vcpus: 2\n  vcpus: 2", "line 7, column 3: duplicate mapping key: vcpus"),
        ("  vcpus: 2", "  vcpus: two", "line 6, column 10: "),
        ("  vcpus: 2", "  vcpus: 2\n  rng: yes", "line 7, column 8: "),
        ("  memory: 512Mi", "  memory: 512MB", "line 7, column 11: "),
        ("  vcpus: 2", "  <<: {vcpus: 2}", "line 6, column 3: "),
        ("kind:", "---\nkind:", "line "),
        ("name: web", "name: !secret web", "line 4, column 17: "),
    ] {
        assert!(whole.contains(replace), "{replace}");
        let text = whole.replacen(replace, by, 1);
        let said = Format::Yaml.decode(text.as_bytes()).unwrap_err().to_string();

        assert!(said.starts_with(error), "{by:?}: {said}");
        assert!(!said.contains('\n'), "{said:?}");
    }
}

#[test]
fn json_is_read_as_yaml() {
    let json = serde_json::to_string(&read("all-fields.toml")).unwrap();

    assert_eq!(Format::Yaml.decode(json.as_bytes()).unwrap(), read("all-fields.yaml"));
}
