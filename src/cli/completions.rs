//! `projector completions`

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::exit::{Exit, Failure};
use super::{Cli, Context};

/// Arguments of `completions`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  projector completions bash > /etc/bash_completion.d/projector
  projector completions zsh > \"${fpath[1]}/_projector\"
  projector completions fish > ~/.config/fish/completions/projector.fish")]
pub(super) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

pub(super) fn completions(context: &Context, args: &CompletionsArgs) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "projector", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    if context.is_json() {
        context.output.json(&serde_json::json!({ "shell": args.shell.to_string(), "script": script }))?;
    } else {
        context.output.text(&script)?;
    }
    Ok(Exit::Done)
}
