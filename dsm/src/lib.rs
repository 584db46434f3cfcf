//! The distributed shared memory engine: userfaultfd, page store and fault handling
