//! Files that are large, deep, or made to grow; and any file at all.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail loudly")]

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use vm_file::{
    ApiVersion, BYTES_MAX, Borrow, Checkpoint, Class, DecodeError, Disk, DiskFormat, Format, Guest,
    Kind, Mac, Metadata, Nic, Period, Preset, Run, Size, Slice, Spec, Standby, VmFile,
};

const FORMATS: [Format; 2] = [Format::Toml, Format::Yaml];

#[test]
fn file_that_is_too_long_is_refused_before_it_is_read() {
    let long = vec![b'#'; BYTES_MAX + 1];
    for format in FORMATS {
        assert_eq!(format.decode(&long), Err(DecodeError::TooLong(BYTES_MAX + 1)));
    }
}

#[test]
fn bytes_that_are_no_text_are_refused_with_their_line() {
    for format in FORMATS {
        assert_eq!(format.decode(b"a\nb\n\xff"), Err(DecodeError::NoText { line: 3 }));
    }
}

#[test]
fn deep_nesting_is_refused() {
    let deep = BYTES_MAX / 4;
    let texts = [
        (Format::Toml, format!("a = {}", "[".repeat(deep))),
        (Format::Toml, format!("[a{}]", ".a".repeat(deep))),
        (Format::Toml, format!("a = {}", "{a=".repeat(deep / 2))),
        (Format::Yaml, "[".repeat(deep)),
        (Format::Yaml, "{a: ".repeat(deep / 4)),
        (Format::Yaml, "- ".repeat(deep)),
        (Format::Yaml, (0..600).map(|level| format!("{}a:\n", " ".repeat(level))).collect()),
    ];
    for (format, text) in texts {
        let error = format.decode(text.as_bytes()).unwrap_err();
        assert!(matches!(error, DecodeError::Form { .. }), "{format:?}: {error}");
    }
}

/// Nine levels of nine references each would be 387 million words.
#[test]
fn aliases_do_not_grow_a_file() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for level in 1..9 {
        let before = format!("*a{}", level - 1);
        let all = vec![before; 9].join(", ");
        text += &format!("a{level}: &a{level} [{all}]\n");
    }
    text += "metadata: *a8\n";

    let error = Format::Yaml.decode(text.as_bytes()).unwrap_err();
    assert!(matches!(error, DecodeError::Form { .. }), "{error}");
}

#[test]
fn errors_about_long_or_odd_words_are_one_short_line() {
    let word = format!("{}\\u001b[2J\\n", "a".repeat(100_000));
    for (format, text) in [
        (Format::Toml, format!("\"{word}\" = 1")),
        (Format::Yaml, format!("\"{word}\": 1")),
        (Format::Toml, format!("apiVersion = \"{word}\"")),
        (Format::Yaml, format!("apiVersion: \"{word}\"")),
        (Format::Yaml, "\"\\e[2J\": 1".to_owned()),
    ] {
        let said = format.decode(text.as_bytes()).unwrap_err().to_string();
        assert!(said.len() < 2000, "{} bytes", said.len());
        assert!(!said.contains(char::is_control), "{said:?}");
    }
}

fn path() -> impl Strategy<Value = vm_file::Path> {
    "[^,\\p{C}]{1,12}".prop_filter_map("a path", |text| text.parse().ok())
}

fn standby(from: u16) -> impl Strategy<Value = Vec<Standby>> {
    vec(option::of(path()), 0..3).prop_map(move |names| {
        (from..).zip(names).map(|(slice, name)| Standby { slice, name }).collect()
    })
}

fn disk() -> impl Strategy<Value = Disk> {
    let format = select(vec![DiskFormat::Raw, DiskFormat::Qcow2]);
    (path(), any::<bool>(), format, standby(5)).prop_map(|(image, readonly, format, standby)| {
        Disk { image, readonly, format, slice: 4, standby }
    })
}

fn nic() -> impl Strategy<Value = Nic> {
    let mac = select(vec!["02:00:00:00:00:01", "fe:FF:ff:00:9a:0b"]);
    let mac = option::of(mac.prop_map(|text| text.parse::<Mac>().unwrap()));
    (path(), mac, standby(1)).prop_map(|(tap, mac, standby)| Nic { tap, mac, slice: 0, standby })
}

fn slices() -> impl Strategy<Value = Vec<Slice>> {
    vec((1..9_u16, 0..4_u16, 16..4096_u64), 0..8).prop_map(|parts| {
        let slice = |(index, (vcpus, more, chunks)): (usize, (u16, u16, u64))| Slice {
            address: (index > 0).then(|| format!("host{index}:7100").parse().unwrap()),
            vcpus,
            vcpus_max: (more > 0).then_some(vcpus + more),
            memory: Size::of_bytes(chunks << 21),
        };
        parts.into_iter().enumerate().map(slice).collect()
    })
}

/// Devices name slices up to 8, so there are none, and all are left open.
fn spec() -> impl Strategy<Value = Spec> {
    let class = select(vec![Class::Independent, Class::Requests, Class::Default]);
    let run = select(vec![Run::Always, Run::RerunOnFailure, Run::Once, Run::Halted]);
    let preset = select(vec![Preset::Spread, Preset::Isolate, Preset::None]);
    let guest = (path(), option::of(path()), "[^\\p{Cc}]{0,40}", preset, option::of(1..=1000_u16))
        .prop_map(|(kernel, initrd, cmdline, preset, clock_permille)| Guest {
            kernel,
            initrd,
            cmdline,
            preset,
            clock_permille,
        });
    let checkpoint = option::of(
        (10..604_800_u64, 1..1000_u16)
            .prop_map(|(every, keep)| Checkpoint { every: Period::of_seconds(every), keep }),
    );
    let devices = (vec(disk(), 0..4), vec(nic(), 0..4), any::<bool>());
    let borrow = "always|after:[0-9]{1,9}|adaptive|adaptive:[0-9]{1,9}";
    let borrow = borrow.prop_map(|text| text.parse::<Borrow>().unwrap());
    (class, run, guest, checkpoint, devices, (borrow, slices()), 16..9999_u64).prop_map(
        |(class, run, guest, checkpoint, (disks, nics, rng), (borrow, slices), chunks)| {
            let sum: u64 = slices.iter().map(|slice| slice.memory.bytes()).sum();
            let bare = slices.is_empty();
            Spec {
                vcpus: if bare { 3 } else { slices.iter().map(|slice| slice.vcpus).sum() },
                memory: Size::of_bytes(if bare { chunks << 21 } else { sum }),
                class,
                run,
                slices_max: bare.then_some(8),
                guest,
                disks: if bare { disks } else { Vec::new() },
                nics: if bare { nics } else { Vec::new() },
                rng,
                checkpoint,
                borrow,
                slices,
            }
        },
    )
}

fn file() -> impl Strategy<Value = VmFile> {
    let labels = btree_map("[a-z][a-z0-9./_-]{0,20}", "[A-Za-z0-9./_-]{0,20}", 0..5);
    ("[a-z]([a-z0-9-]{0,20}[a-z0-9])?", labels, spec()).prop_map(|(name, labels, spec)| VmFile {
        api_version: ApiVersion::V1,
        kind: Kind::VirtualMachine,
        metadata: Metadata { name: name.parse().unwrap(), labels },
        spec,
    })
}

proptest! {
    /// Words such as `no`, `1e3` and `~` are text where text is meant.
    #[test]
    fn every_vm_is_read_as_it_was_written(file in file()) {
        for format in FORMATS {
            let text = format.encode(&file).unwrap();
            let again = format.decode(text.as_bytes());
            prop_assert_eq!(again.as_ref(), Ok(&file), "{:?}\n{}", format, text);
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..400)) {
        for format in FORMATS {
            let _ = format.decode(&bytes);
        }
    }

    /// One byte of a good file is another one: it is refused on one line, or read and written again.
    #[test]
    fn damaged_files_are_read_or_refused(at in 0..2000_usize, byte in any::<u8>()) {
        let golden = [
            (Format::Toml, include_bytes!("golden/all-fields.toml").as_slice()),
            (Format::Yaml, include_bytes!("golden/all-fields.yaml").as_slice()),
        ];
        for (format, text) in golden {
            let mut text = text.to_vec();
            let at = at % text.len();
            text[at] = byte;
            match format.decode(&text) {
                Ok(file) => {
                    let again = format.encode(&file).unwrap();
                    prop_assert_eq!(format.decode(again.as_bytes()), Ok(file));
                }
                Err(error) => prop_assert!(!error.to_string().contains(char::is_control)),
            }
        }
    }
}

#[test]
fn sizes_periods_and_addresses_have_one_grammar() {
    let bytes = |text: &str| text.parse::<Size>().map(Size::bytes).ok();
    let units = ["512M", "512Mi", "2G", "1Ti", "0", "4096"].map(bytes);
    let expected = [512 << 20, 512 << 20, 2 << 30, 1 << 40, 0, 4096];
    assert_eq!(units, expected.map(Some));
    for text in ["", "M", "i", "4i", "+1M", "1.5G", "1K", "1 M", "99999999999999T", "-1"] {
        assert_eq!(bytes(text), None, "{text}");
    }
    let seconds = |text: &str| text.parse::<Period>().map(Period::seconds).ok();
    assert_eq!(["30s", "10m", "2h", "1d", "7"].map(seconds), [30, 600, 7200, 86_400, 7].map(Some));
    for text in ["", "s", "1w", "1.5h", "99999999999999999d"] {
        assert_eq!(seconds(text), None, "{text}");
    }
    for text in ["h:1", "host-2.example.:65535", "10.9.0.2:7100", "[::1]:9", "[fe80::1%eth0]:9"] {
        assert_eq!(text.parse::<vm_file::Address>().unwrap().to_string(), text);
    }
    let wrong = [
        "", "h", ":1", "h:", "h:0", "h:65536", "h:+1", "::1:9", "[h]:1", "[::1]", "[::1%]:1",
        "-h:1", "h-:1", "a..b:1", "h h:1", "[::1:9", "h:1:2",
    ];
    for text in wrong {
        assert!(text.parse::<vm_file::Address>().is_err(), "{text}");
    }
}
