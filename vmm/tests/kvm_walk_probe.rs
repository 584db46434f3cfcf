//! The probe of page walks, on this machine's KVM. Alone in its process: it counts threads.

use needs::Need;
use std::fs;
use std::path::Path;
use std::thread::yield_now;
use std::time::{Duration, Instant};
use tessera_vmm::walk_probe::walks_need_write;

/// Patience with a loaded machine; nothing depends on its value.
const LIMIT: Duration = Duration::from_secs(60);

fn threads() -> usize {
    fs::read_dir("/proc/self/task").expect("Linux lists threads").count()
}

/// What must come out, where flags and parameters are enough to know.
fn expected() -> Option<bool> {
    let parameter = |path: &str| {
        let text = fs::read_to_string(Path::new("/sys/module").join(path)).ok()?;
        Some(matches!(text.trim(), "Y" | "1"))
    };
    if let Some(nested) = parameter("kvm_amd/parameters/npt") {
        return Some(nested);
    }
    if let Some(nested) = parameter("kvm_intel/parameters/ept") {
        return Some(nested && parameter("kvm_intel/parameters/eptad")?);
    }
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let hardware = cpu.split_whitespace().any(|word| matches!(word, "vmx" | "svm"));
    let shadow = !hardware && Path::new("/sys/module/kvm_pvm").exists();
    shadow.then_some(false)
}

#[test]
fn kvm_walk_probe_answers() {
    if !needs::has(Need::Kvm, kvm_ioctls::Kvm::new()) || !needs::has(Need::Uffd, dsm::check_host())
    {
        return;
    }
    let before = threads();

    let start = Instant::now();
    let answers = [(); 3].map(|()| walks_need_write().unwrap());
    println!("page walks write: {answers:?} (expected {:?}), {:?}", expected(), start.elapsed());

    // A host does not change its mind; what it says is right where something else tells it too.
    assert_eq!(answers, [answers[0]; 3]);
    match expected() {
        Some(expected) => assert_eq!(answers[0], expected),
        None => needs::leave_out("nothing else tells whether page walks write on this host"),
    }

    // A thread that has said goodbye is listed for a moment still.
    let end = Instant::now() + LIMIT;
    while threads() > before && Instant::now() < end {
        yield_now();
    }
    assert_eq!(threads(), before);
}
