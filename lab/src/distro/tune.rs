//! The guest's helper that keeps what the system does at home (`guest-patches/guest-tune`). Images have it, turned off: `tessera.tune=on` on
//! the kernel's command line turns it on.

/// Its name, and where it lies while a system is set up.
pub(super) const NAME: &str = "tessera-guest-tune";
/// A generator of systemd.
pub(super) const TEXT: &str = include_str!("../../../guest-patches/guest-tune/tessera-guest-tune");

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::process::Command as Process;

    /// A guest's files, and what was bound to which CPUs.
    struct Guest(PathBuf);

    impl Guest {
        /// With these CPUs on the first node.
        fn new(name: &str, home: &str) -> Self {
            let root = std::env::temp_dir().join(format!("tessera-{name}-{}", std::process::id()));
            let guest = Self(root);
            let node = "sys/devices/system/node/node0";
            guest.write(&format!("{node}/cpulist"), &format!("{home}\n"));
            guest.write(&format!("{node}/cpumap"), "1\n");
            guest.write("sys/devices/system/cpu/online", "0-1\n");
            guest.write("sys/devices/virtual/workqueue/cpumask", "3\n");
            guest.write("proc/cmdline", "quiet ro\n");
            for (pid, parent, cpus) in [(11, 2, "0-1"), (12, 2, "1"), (13, 1, "0-1")] {
                let status = format!("Name:\ta b\nPPid:\t{parent}\nCpus_allowed_list:\t{cpus}\n");
                guest.write(&format!("proc/{pid}/status"), &status);
            }
            guest.write("bound", "");
            guest.write("taskset", "echo $* >>\"${0%/*}/bound\"\n");
            guest
        }

        fn path(&self, path: &str) -> PathBuf {
            self.0.join(path)
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn read(&self, path: &str) -> String {
            fs::read_to_string(self.path(path)).unwrap()
        }

        /// As systemd runs it. What was bound, and the units that may use all CPUs.
        fn tune(&self) -> (String, Vec<String>) {
            let units = self.path("units");
            fs::create_dir_all(&units).unwrap();
            let mut sh = Process::new("sh");
            for (name, path) in
                [("SYS", "sys"), ("PROC", "proc"), ("ETC", "etc"), ("TASKSET", "taskset")]
            {
                sh.env(format!("TESSERA_TUNE_{name}"), self.path(path));
            }
            make_executable(&self.path("taskset"));
            let output = sh.args(["-c", TEXT, NAME]).arg(&units).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let names = fs::read_dir(&units).unwrap();
            let mut names: Vec<_> =
                names.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            (self.read("bound"), names)
        }
    }

    impl Drop for Guest {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn make_executable(path: &Path) {
        use std::os::unix::fs::PermissionsExt as _;
        let text = fs::read_to_string(path).unwrap();
        if !text.starts_with("#!") {
            fs::write(path, format!("#!/bin/sh\n{text}")).unwrap();
        }
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn system_stays_at_home_and_what_people_start_does_not() {
        let guest = Guest::new("tune-on", "0");
        guest.write("etc/tessera-guest-tune.conf", "SPREAD=\"nginx.service a@.service\"\n");
        let (bound, units) = guest.tune();
        // Process 1, and the only thread of the kernel that is bound nowhere.
        assert_eq!(bound, "-pc 0 1\n-pc 0 11\n");
        assert_eq!(guest.read("sys/devices/virtual/workqueue/cpumask"), "1\n");
        for unit in ["ssh.service.d", "user@.service.d", "nginx.service.d", "a@.service.d"] {
            assert!(units.iter().any(|it| it == unit), "{unit}: {units:?}");
        }
        let unit = guest.read("units/ssh.service.d/50-tessera-guest-tune.conf");
        assert_eq!(unit, "[Service]\nCPUAffinity=0-1\n");
    }

    #[test]
    fn nothing_is_done_where_it_is_off_or_one_host_has_all() {
        let nothing = (String::new(), Vec::new());
        assert_eq!(Guest::new("tune-one", "0-1").tune(), nothing);
        assert_eq!(Guest::new("tune-none", "").tune(), nothing);
        let guest = Guest::new("tune-off", "0");
        guest.write("etc/tessera-guest-tune.conf", "TUNE=off\n");
        assert_eq!(guest.tune(), nothing);
        guest.write("proc/cmdline", "quiet tessera.tune=on ro\n");
        assert_ne!(guest.tune(), nothing);
    }
}
