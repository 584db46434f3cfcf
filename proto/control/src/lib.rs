//! The gRPC API of Tessera: what is in `proto/`, as Rust, and as descriptors for reflection.
//!
//! ```text
//!   proto/tessera/control/v1/*.proto --build.rs (protox)--> messages, clients, servers
//!                                                     \--> DESCRIPTORS: what reflection tells
//! ```
//! Nothing here acts. Who serves a VM is `cluster/vm-service`.

#![expect(
    clippy::absolute_paths,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::doc_lazy_continuation,
    clippy::large_enum_variant,
    clippy::too_many_lines,
    reason = "what is generated is not ours to write"
)]

/// `google.longrunning` and `google.rpc`, as far as the API needs them: foreign clients know them by these names.
pub mod google {
    /// Operations that take long.
    #[expect(unused_qualifications, reason = "generated")]
    pub mod longrunning {
        tonic::include_proto!("google.longrunning");
    }
    /// How an operation has failed.
    pub mod rpc {
        tonic::include_proto!("google.rpc");
    }
}

/// The packages of Tessera; nested as the generated code wants them.
pub mod tessera {
    /// The control plane.
    pub mod control {
        /// Version 1.
        #[expect(unused_qualifications, reason = "generated")]
        pub mod v1 {
            tonic::include_proto!("tessera.control.v1");
        }
    }
}

pub use google::longrunning;
pub use tessera::control::v1;

/// The domain of all reasons (`google.rpc.ErrorInfo`) that Tessera gives.
pub const ERROR_DOMAIN: &str = "tessera";

/// All descriptors of the API, an encoded `google.protobuf.FileDescriptorSet` with everything that they import.
pub const DESCRIPTORS: &[u8] = tonic::include_file_descriptor_set!("descriptors");
