use super::*;

/// A host that is none.
struct Fixture(PathBuf);

impl Fixture {
    fn new(name: &str) -> Self {
        let folder = format!("tessera-inventory-{name}-{}", std::process::id());
        let fixture = Self(std::env::temp_dir().join(folder));
        let info = "processor : 0\nmodel name : A CPU\nflags : fpu vme sse\n\n\
            processor : 1\nmodel name : A CPU\nflags : fpu sse avx\n";
        fixture.write("proc/cpuinfo", info);
        fixture.write("proc/meminfo", "MemTotal: 8388608 kB\nMemFree: 1 kB\n");
        fixture.write("proc/sys/kernel/random/boot_id", "abc\n");
        fixture.write("proc/sys/kernel/osrelease", "6.18.0\n");
        fixture.write("sys/devices/system/cpu/online", "0-3\n");
        for cpu in 0..4 {
            let path = format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            fixture.write(&path, &format!("{},{}\n", cpu % 2, cpu % 2 + 2));
        }
        fixture
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn host_without_numa_is_one_node() {
    let fixture = Fixture::new("flat");
    let host = Inventory::read(&fixture.0, Resources::new(1, 512)).unwrap();
    assert_eq!(host.nodes, [Node { number: 0, capacity: Resources::new(1, 4096 - 512) }]);
    assert_eq!((host.boot_id.as_str(), host.kernel.as_str()), ("abc", "6.18.0"));
    assert_eq!(
        (host.cpu_model.as_str(), &host.cpu_features[..]),
        ("A CPU", &["fpu".into(), "sse".into()][..])
    );
}

#[test]
fn what_is_kept_is_taken_from_the_first_nodes() {
    let fixture = Fixture::new("nodes");
    // CPU 5 is off line.
    for (number, cpus) in [(0, "0,2"), (1, "1,3,5")] {
        let node = format!("sys/devices/system/node/node{number}");
        fixture.write(&format!("{node}/cpulist"), cpus);
        fixture.write(&format!("{node}/meminfo"), &format!("Node {number} MemTotal: 4194304 kB\n"));
    }
    let nodes = |keep| Inventory::read(&fixture.0, keep).unwrap().nodes;
    let node = |number, cores, memory| Node { number, capacity: Resources::new(cores, memory) };
    assert_eq!(nodes(Resources::NONE), [node(0, 1, 2048), node(1, 1, 2048)]);
    assert_eq!(nodes(Resources::new(1, 2049)), [node(0, 0, 0), node(1, 1, 2047)]);
    assert_eq!(nodes(Resources::new(9, 9999)), [node(0, 0, 0), node(1, 0, 0)]);
    let shared = Inventory::read(&fixture.0, Resources::NONE).unwrap();
    let (own, twice) = (shared.capacity(), shared.shared_by(2).capacity());
    assert_eq!((twice.cores, twice.memory), (own.cores * 2, own.memory));
}

#[test]
fn what_cannot_be_read_is_named() {
    let fixture = Fixture::new("missing");
    fixture.write("proc/meminfo", "nothing");
    let error = Inventory::read(&fixture.0, Resources::NONE).unwrap_err();
    assert!(error.to_string().contains("meminfo"), "{error}");
    fs::remove_file(fixture.0.join("proc/cpuinfo")).unwrap();
    let error = Inventory::read(&fixture.0, Resources::NONE).unwrap_err();
    assert!(error.to_string().contains("/proc/cpuinfo"), "{error}");
}

#[test]
fn port_that_is_down_is_no_ability() {
    let fixture = Fixture::new("rdma");
    let at = |state: &str| {
        fixture.write("ib/mlx5_0/ports/1/state", state);
        rdma(&fixture.0.join("ib")).why_not
    };
    assert_eq!(at("4: ACTIVE\n"), None);
    assert!(at("1: DOWN\n").unwrap().contains("none of 1 ports"));
    assert!(rdma(&fixture.0.join("none")).why_not.unwrap().contains("no RDMA device"));
}

#[test]
fn this_host_is_seen() {
    let host = Inventory::look(Resources::NONE).unwrap();
    assert!(host.capacity().cores > 0 && host.capacity().memory > 0, "{host:?}");
    let kvm = host.abilities.iter().find(|ability| ability.name == "kvm").unwrap();
    assert_eq!(kvm.why_not.is_none(), Kvm::new().is_ok(), "{kvm:?}");
}
