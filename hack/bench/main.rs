//! Takes the figures.
fn main() {}
