//! The `projector` program: parse, load, run the verb, exit code.

fn main() {}
