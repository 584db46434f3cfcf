//! What must always hold (I1 to I7), whatever happens in whatever order: proved for small clusters by a model of all orders, and
//! tried with random histories of larger ones.
//!
//! ```text
//!   scheduler --effects--> world: what agents really keep and run on each host, and a judge of each step
//!       ^                    │
//!       └────────────────────┘ prepared, failed, too late, flipped; VMs come and go; time passes
//! ```

mod histories;
mod model;
mod scenario;
mod world;
