//! What `./x bench` takes.

use clap::Args;

/// Options of all experiments; each says in its own what it heeds.
#[derive(Args, Clone, Debug)]
pub struct BenchOptions {
    /// An experiment, or `cargo` for the benchmarks of cargo; lists them if not given
    pub name: Option<String>,
    /// Fewer rounds: for a look, not for a claim
    #[arg(long)]
    pub quick: bool,
    /// For `solo`: a VM whose other slice was drained, with one that was started on one slice
    #[arg(long)]
    pub after_drain: bool,
    /// For `net`, `disk`, `sharing-linux`, `programs`, `workloads` and `ablation`: rounds, in each of which all modes have their turn; the plan's own unless given. With 0
    /// `disk` only looks whether pages of the rings travel
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(..=99))]
    pub rounds: Option<u16>,
    /// For `disk` on emulated hosts: most MB/s of the guest's disks, 4 unless given; 0 for no limit
    #[arg(long, value_name = "MB/s")]
    pub disk_speed: Option<u32>,
    /// For `net` on emulated hosts: most MB/s of the client's line, 1 unless given; 0 for no line
    #[arg(long, value_name = "MB/s")]
    pub client_speed: Option<u32>,
    /// For `programs`: one more guest to compare, with these words on its kernel's command line and no preset; words that
    /// begin with -- go to tessera. May be repeated
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true)]
    pub also: Vec<String>,
    /// For `programs`: only the guests of `--also` and one vCPU, no preset
    #[arg(long, requires = "also")]
    pub no_presets: bool,
    /// For `ablation`: boots of Debian over two hosts of a lab, not the microguest
    #[arg(long)]
    pub lab: bool,
    /// For `ablation`: only this mechanism; for `workloads`: only those whose names begin so. May be repeated
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,
    /// More arguments for the benchmarks of cargo: part of a name, `--save-baseline NAME`; for `net`, `disk`, `sharing-linux`,
    /// `programs` and `workloads` options of the VM, as `./x demo` has them
    #[arg(last = true)]
    pub rest: Vec<String>,
}
