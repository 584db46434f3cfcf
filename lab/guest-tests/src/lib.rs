//! What the guest test program and those who judge it from outside share.

pub mod records;
