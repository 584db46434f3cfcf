use super::*;
use control::v1::{
    BootstrapSpec, CompanionSpec, DiskSpec, LentDisk, NicSpec, RestoreSpec, SlicePart,
};
use proptest::collection::vec;
use proptest::prelude::*;
use prost_types::Duration;

fn folders() -> Folders {
    Folders { images: "/srv/images".into(), checkpoints: "/srv/ck".into() }
}

fn files() -> Files {
    let name = |file: &str| format!("/var/run/{file}");
    Files {
        secret: name("secret"),
        control: name("control"),
        console: name("console"),
        report: name("report"),
    }
}

fn part(address: &str, vcpus: u32, memory_bytes: u64) -> SlicePart {
    SlicePart { address: address.into(), vcpus, memory_bytes }
}

fn bootstrap() -> BootstrapSpec {
    let disk = |image: &str, slice| DiskSpec { image: image.into(), slice, ..DiskSpec::default() };
    BootstrapSpec {
        parts: vec![part("", 1, 512 << 20), part("10.9.0.2:7100", 1, 512 << 20)],
        kernel: "vmlinuz".into(),
        initrd: "sub/initrd".into(),
        cmdline: "--root=/dev/vda rw".into(),
        disks: vec![
            DiskSpec { read_only: true, format: "qcow2".into(), ..disk("a.img", 0) },
            DiskSpec { standby: vec![0], ..disk("b.img", 1) },
        ],
        nics: vec![NicSpec { tap: "tap0".into(), standby: vec![1], ..NicSpec::default() }],
        rng: true,
        lease: Some(Duration { seconds: 2, nanos: 500_000_000 }),
        transports: vec!["rdma".into(), "tcp".into()],
        guest_preset: "isolate".into(),
        guest_clock_permille: 100,
        restore: None,
    }
}

fn request(role: Role) -> EnsureSliceRequest {
    EnsureSliceRequest {
        term: 1,
        slice: "vms/00000000000000000000000000000005/slices/1".into(),
        life: 1,
        resources: Some(HostResources { cores: 2, memory_bytes: (1 << 30) + 1 }),
        secret: vec![7; 32],
        role: Some(role),
    }
}

fn words(role: Role) -> Result<Vec<String>> {
    let listen = matches!(role, Role::Companion(_)).then(|| "10.9.0.1:7200".parse().unwrap());
    Ok(order(&request(role), &folders(), &files(), listen)?.order.words)
}

fn refused(change: impl FnOnce(&mut BootstrapSpec)) -> String {
    let mut spec = bootstrap();
    change(&mut spec);
    words(Role::Bootstrap(spec)).unwrap_err().field
}

#[test]
fn bootstrap_has_these_words() {
    let words = words(Role::Bootstrap(bootstrap())).unwrap();
    let expected = [
        "bootstrap",
        "--slice=local,cpus=1,memory=536870912",
        "--slice=10.9.0.2:7100,cpus=1,memory=536870912",
        "--kernel=/srv/images/vmlinuz",
        "--initrd=/srv/images/sub/initrd",
        "--cmdline=--root=/dev/vda rw",
        "--guest-preset=isolate",
        "--guest-clock-rate=0.1",
        "--disk=/srv/images/a.img,readonly,format=qcow2",
        "--disk=/srv/images/b.img,slice=1,standby=0",
        "--net=tap0,standby=1",
        "--rng",
        "--lease=2500",
        "--transport=rdma,tcp",
        "--console=socket=/var/run/console",
        "--secret-file=/var/run/secret",
        "--control=/var/run/control",
        "--report=/var/run/report",
        "--checkpoints=/srv/ck",
        "--offer-cpus=2",
        "--offer-memory=1075838976",
    ];
    assert_eq!(words, expected);
}

#[test]
fn companion_has_these_words_and_says_where_it_listens() {
    let disks = vec![LentDisk { image: "a.img".into(), read_only: false }];
    let role = Role::Companion(CompanionSpec { disks, taps: vec!["tap0".into()] });
    let expected = [
        "companion",
        "--listen=10.9.0.1:7200",
        "--lend=disk:rw:/srv/images/a.img",
        "--lend=tap:tap0",
        "--secret-file=/var/run/secret",
    ];
    let words = words(role).unwrap();
    assert_eq!(words[..5], expected);
    let order = Order { resources: Resources::NONE, words };
    assert_eq!(listens(&order), Some("10.9.0.1:7200".parse().unwrap()));
}

#[test]
fn vm_that_goes_on_says_only_from_where() {
    let restore = Some(RestoreSpec { checkpoint: "db/7".into(), lazy: true });
    let none = String::new;
    let (kernel, initrd, cmdline, guest_preset) = (none(), none(), none(), none());
    let spec = BootstrapSpec {
        kernel,
        initrd,
        cmdline,
        guest_preset,
        guest_clock_permille: 0,
        restore,
        ..bootstrap()
    };
    let words = words(Role::Bootstrap(spec)).unwrap();
    assert_eq!(words[3..5], ["--restore=/srv/ck/db/7", "--lazy"]);
    let restore = || Some(RestoreSpec { checkpoint: "../x".into(), lazy: false });
    assert_eq!(refused(|it| it.restore = restore()), "bootstrap.kernel");
}

#[test]
fn names_that_lead_out_are_refused() {
    let long = "x".repeat(1025);
    for name in
        ["", "/etc/passwd", "../x", "a/../b", "a//b", "a/", ".", "a\0b", "a,b", "a\nb", &long]
    {
        assert_eq!(refused(|it| it.kernel = name.into()), "bootstrap.kernel", "{name:?}");
        assert_eq!(refused(|it| it.disks[1].image = name.into()), "bootstrap.disks[1].image");
    }
    assert_eq!(refused(|it| it.initrd = "/x".into()), "bootstrap.initrd");
}

#[test]
fn each_field_is_bounded() {
    type Change = fn(&mut BootstrapSpec);
    let cases: [(&str, Change); 22] = [
        ("bootstrap.parts", |it| it.parts.clear()),
        ("bootstrap.parts", |it| it.parts = vec![part("", 1, 2 << 20); 33]),
        ("bootstrap.parts", |it| it.parts[1].vcpus = u32::MAX),
        ("bootstrap.parts", |it| it.parts[1].memory_bytes = u64::MAX - (UNIT - 1)),
        ("bootstrap.parts[0].address", |it| it.parts[0].address = "10.9.0.1:1".into()),
        ("bootstrap.parts[0].vcpus", |it| it.parts[0].vcpus = 0),
        ("bootstrap.parts[1].address", |it| it.parts[1].address = "host:1".into()),
        ("bootstrap.parts[1].address", |it| it.parts[1].address = "0.0.0.0:1".into()),
        ("bootstrap.parts[1].address", |it| it.parts[1].address = "local".into()),
        ("bootstrap.parts[2].address", |it| it.parts.push(it.parts[1].clone())),
        ("bootstrap.parts[1].memory_bytes", |it| it.parts[1].memory_bytes += 1),
        ("resources", |it| it.parts[0].memory_bytes = 2 << 30),
        ("resources", |it| it.parts[0].vcpus = 3),
        ("bootstrap.cmdline", |it| it.cmdline = "x".repeat(2048)),
        ("bootstrap.guest_preset", |it| it.guest_preset = "--x".into()),
        ("bootstrap.guest_clock_permille", |it| it.guest_clock_permille = 1001),
        ("bootstrap.disks[0].format", |it| it.disks[0].format = "vmdk".into()),
        ("bootstrap.disks[0].slice", |it| it.disks[0].slice = 2),
        ("bootstrap.disks[1].standby", |it| it.disks[1].standby = vec![1]),
        ("bootstrap.nics[0].tap", |it| it.nics[0].tap = "a,mac=x".into()),
        ("bootstrap.nics[0].mac", |it| it.nics[0].mac = "02:00:00:00:00".into()),
        ("bootstrap.transports", |it| it.transports = vec!["tcp".into(), "tcp".into()]),
    ];
    for (field, change) in cases {
        assert_eq!(refused(change), field);
    }
    assert_eq!(refused(|it| it.disks = vec![it.disks[0].clone(); 29]), "bootstrap.disks");
    for (seconds, nanos) in [(-1, 0), (0, 1_000_000), (3601, 0), (i64::MAX, 0), (1, -1)] {
        let lease = Some(Duration { seconds, nanos });
        assert_eq!(refused(|it| it.lease = lease), "bootstrap.lease");
    }
}

#[test]
fn what_is_of_neither_role_is_bounded_too() {
    let field = |change: fn(&mut EnsureSliceRequest)| {
        let mut request = request(Role::Bootstrap(bootstrap()));
        change(&mut request);
        let made = subject(&request).and_then(|_| order(&request, &folders(), &files(), None));
        made.unwrap_err().field
    };
    assert_eq!(field(|it| it.secret = vec![1; 15]), "secret");
    assert_eq!(field(|it| it.secret = vec![1; 4097]), "secret");
    assert_eq!(field(|it| it.life = 0), "life");
    assert_eq!(field(|it| it.role = None), "role");
    assert_eq!(field(|it| it.slice = "vms/-/slices/1".into()), "slice");
    assert_eq!(field(|it| it.resources = None), "resources");
    let memory_bytes = u64::MAX;
    assert_eq!(memory_bytes.div_ceil(UNIT), 1 << 43);
    assert_eq!(
        field(|it| it.resources = Some(HostResources { cores: 1, memory_bytes: u64::MAX })),
        "resources"
    );
}

fn any_spec() -> impl Strategy<Value = BootstrapSpec> {
    let name = "[a-z./,= -]{0,12}|\\PC{0,6}";
    let disk = (name, any::<bool>(), "raw|qcow2|[a-z,]{0,3}", 0u32..4, vec(0u32..4, 0..3))
        .prop_map(|(image, read_only, format, slice, standby)| DiskSpec {
            image,
            read_only,
            format,
            slice,
            standby,
        });
    let nic = ("[a-z0-9,/-]{0,17}", "[0-9a-f:]{0,18}", 0u32..4, vec(0u32..4, 0..3))
        .prop_map(|(tap, mac, slice, standby)| NicSpec { tap, mac, slice, standby });
    let part = ("10\\.0\\.0\\.[1-9]:7[0-9]{3}|[a-z,]{0,5}", 0u32..4, 0u64..64)
        .prop_map(|(address, vcpus, units)| part(&address, vcpus, units * UNIT));
    let rest =
        (any::<bool>(), "[a-z -]{0,20}|\\PC{0,6}", proptest::option::of(name), any::<bool>());
    (vec(part, 0..3), name, vec(disk, 0..3), vec(nic, 0..2), rest).prop_map(
        |(mut parts, kernel, disks, nics, (rng, cmdline, restore, lazy))| {
            parts.insert(0, self::part("", 1, 64 << 20));
            let restore = restore.map(|checkpoint| RestoreSpec { checkpoint, lazy });
            BootstrapSpec {
                parts,
                kernel,
                cmdline,
                disks,
                nics,
                rng,
                restore,
                ..Default::default()
            }
        },
    )
}

proptest! {
    /// Nothing that a request says becomes an option, or a word of one, that it does not say; no file is named outside of its folder; and
    /// the same request has the same words.
    #[test]
    fn words_say_what_was_asked(spec in any_spec()) {
        let request = request(Role::Bootstrap(spec.clone()));
        let Ok(made) = order(&request, &folders(), &files(), None) else { return Ok(()) };
        let again = order(&request, &folders(), &files(), None);
        prop_assert_eq!(again.as_ref(), Ok(&made));
        const OPTIONS: [&str; 15] = [
            "--slice=", "--kernel=", "--cmdline=", "--disk=", "--net=", "--rng", "--restore=", "--lazy",
            "--console=", "--secret-file=", "--control=", "--report=", "--checkpoints=", "--offer-cpus=",
            "--offer-memory=",
        ];
        let words = &made.order.words;
        prop_assert_eq!(&words[0], "bootstrap");
        for word in &words[1..] {
            prop_assert!(OPTIONS.iter().any(|it| word.starts_with(it)), "{}", word);
            prop_assert!(!word.contains('\0'));
        }
        let of = |option: &str| words.iter().filter(|it| it.starts_with(option)).count();
        prop_assert_eq!(of("--disk="), spec.disks.len());
        prop_assert_eq!(of("--net="), spec.nics.len());
        prop_assert_eq!(of("--slice="), spec.parts.len());
        let disks = words.iter().filter_map(|it| it.strip_prefix("--disk="));
        for (word, disk) in disks.zip(&spec.disks) {
            let mut parts = word.split(',');
            let path = format!("/srv/images/{}", disk.image);
            prop_assert_eq!(parts.next(), Some(path.as_str()));
            prop_assert!(!path.split('/').any(|it| it == ".."));
            let more = usize::from(disk.read_only) + usize::from(!disk.format.is_empty());
            let more = more + usize::from(disk.slice != 0) + disk.standby.len();
            prop_assert_eq!(parts.count(), more);
        }
        for named in &made.named {
            let below = named.path.strip_prefix(&named.folder).is_some_and(|it| it.starts_with('/'));
            prop_assert!(below, "{:?}", named);
        }
    }
}
