//! Benchmarks only; see `benches/`. Run them with `cargo bench` or `./x bench`.
