//! x86-TSO litmus tests over shared memory.
//!
//! A *shape* says what each worker does with the variables x and y, and which outcomes x86-TSO
//! forbids (Owens, Sarkar, Sewell: "A better x86 memory model: x86-TSO"; SDM vol. 3, 9.2.3).
//! Many instances of a shape run between two barriers, so that one page transfer serves many
//! iterations. Nothing is reset in between: batch b stores values above 4b, so that a value of the
//! batch before last is recognised as a stale page, which no shape may show.
//!
//! ```text
//! page placement "apart":  X page: x0 x1 .. x63 (a line each)   Y page: y0 y1 .. y63
//! page placement "page":   x0 y0 x1 y1 .. x31 y31 | x32 y32 .. (both variables on one page)
//! ```

mod ops;
mod run;
mod shape;

pub(crate) use run::run;
pub(crate) use shape::{SHAPES, Shape};
