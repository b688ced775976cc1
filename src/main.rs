//! `projector`: parse, load, run the verb, exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    projector::cli::main()
}
