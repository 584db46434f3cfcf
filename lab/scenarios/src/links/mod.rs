//! Two hosts with soft-RoCE and no VM: the transport's tests, and trouble on the line.

pub(crate) mod program;
pub mod rdma;
mod trouble;
