//! Made from `proto/etcd.proto`.
#![expect(unreachable_pub, unused_qualifications, reason = "written by a program")]

tonic::include_proto!("etcdserverpb");
