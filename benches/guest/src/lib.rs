//! What the benchmarks run: small workloads on a piece of memory, without an operating system.
//!
//! The same functions run in three places: in the microguest (the binary of this crate, on KVM), in
//! the microguest over several slices, and in ordinary threads of the benchmark program, for
//! comparison. A [`Job`] in memory says what to do and takes the result.
#![no_std]

pub mod chain;
pub mod job;
pub mod layout;
pub mod npb;
pub mod share;

pub use job::{Job, Kind, Memory, Waiting};

/// Does what the job says; the result is in the job afterwards.
///
/// # Safety
/// The job's memory and samples must be mapped and writable by this thread as long as it runs, and
/// other threads may touch the memory through atomic operations of whole words only.
#[expect(unsafe_code, reason = "the job names its memory by address")]
// UNSAFETY: the caller answers for the addresses in the job.
pub unsafe fn run(job: &mut Job) {
    // SAFETY: as the caller promises.
    let memory = unsafe { Memory::new(job) };
    run_with(job, &memory);
}

/// The same with the memory of the job.
pub fn run_with(job: &mut Job, memory: &Memory) {
    match job.kind() {
        Some(Kind::Nothing) | None => {}
        Some(Kind::Read) => chain::read(job, memory),
        Some(Kind::Write) => chain::write(job, memory),
        Some(Kind::Scan) => chain::scan(job, memory),
        Some(Kind::Chase) => chain::chase(job, memory),
        Some(Kind::PingPong) => share::ping_pong(job, memory),
        Some(Kind::Count) => share::count(job, memory),
        Some(Kind::Ep) => npb::ep(job, memory),
        Some(Kind::Is) => npb::is(job, memory),
        Some(Kind::IsKeys) => npb::is_keys(job, memory),
        Some(Kind::IsCheck) => npb::is_check(job, memory),
        Some(Kind::Cg) => npb::cg(job, memory),
        Some(Kind::Ft) => npb::ft(job, memory),
        Some(Kind::Mg) => npb::mg(job, memory),
    }
}
