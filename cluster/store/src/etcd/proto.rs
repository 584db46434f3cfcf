//! Made from `proto/etcd.proto`.
#![expect(
    unreachable_pub,
    unused_qualifications,
    clippy::absolute_paths,
    clippy::allow_attributes_without_reason,
    clippy::enum_variant_names,
    reason = "written by a program"
)]

tonic::include_proto!("etcdserverpb");
