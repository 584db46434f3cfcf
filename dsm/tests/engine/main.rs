//! Engines in one process, with real userfaultfd. Threads of the tests play the vCPUs: they touch the
//! guest mappings.
#![expect(unsafe_code, reason = "the tests touch guest memory as vCPUs would")]
#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]
// UNSAFETY: guest memory is reached by address, as KVM reaches it.

mod chunks;
mod exclusive_grants;
mod flood;
mod home_moves;
mod joining;
mod leaving;
mod loading;
mod losses;
mod lost;
mod remote_write;
mod saved;
mod support;
mod two_slices;
mod urgent;
