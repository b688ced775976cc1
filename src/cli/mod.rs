//! The command line: one file a verb. Every verb works through the store, so also when nothing runs.
//!
//! Results go to standard output, logs, progress and errors to standard error. With `--json` the result, and also a
//! failure ([`exit::FailureObject`]), is one JSON document on standard output; of `run`, one JSON object a line.

mod check;
mod completions;
mod ddl;
mod demo;
mod dlq;
pub mod exit;
pub mod names;
pub mod output;
mod registered;
mod resume;
mod retire;
mod run;
pub mod signals;
mod status;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::app::{self, Purpose};
use crate::config::settings::Settings;
use crate::status::Catalogue;
use crate::store::{LayoutState, SharedStore};
use crate::telemetry::logs::{self, LogFormat, LogLevel};
use exit::{Exit, Failure};
use output::{Output, Shape, complain};

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "projector",
    version,
    about = "Applies Kafka events to tables in PostgreSQL or SQLite: exactly once, in order, with dead letters",
    after_help = "\
Configuration: -c FILE, else $PROJECTOR_CONFIG, ./projector.yaml, /etc/projector/projector.yaml.
Logs: PROJECTOR_LOG is a filter such as warn,projector=debug.
Exit codes: 0 done, 1 failed while running, 2 usage or configuration, 3 difference found, 4 refused or not ready.

Start with:
  projector demo                     see it work, with nothing but this program
  projector check                    find mistakes in projector.yaml and the projections
  projector run                      apply events until told to stop"
)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    verb: Verb,
}

/// What every verb takes.
#[derive(Debug, Args)]
struct Global {
    /// The configuration file
    #[arg(short, long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON for programs
    #[arg(long, global = true)]
    json: bool,
    /// How log lines look
    #[arg(long, global = true, value_enum, default_value_t = Format::Text, value_name = "FORMAT")]
    log_format: Format,
    /// Tell more; twice: everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Apply events until told to stop
    Run(run::RunArgs),
    /// Find mistakes in the configuration and the projections
    Check(check::CheckArgs),
    /// Print the SQL that makes the tables, or the views, for teams that run it themselves
    Ddl(ddl::DdlArgs),
    /// Show versions and partitions: state, lag, age, dead letters
    Status(status::StatusArgs),
    /// Drop everything of a version; prints a plan without --execute
    Retire(retire::RetireArgs),
    /// End the quarantine of partitions
    Resume(resume::ResumeArgs),
    /// List and show dead letters
    Dlq(dlq::DlqArgs),
    /// Run sample events through an embedded broker into a SQLite file
    Demo(demo::DemoArgs),
    /// Print completions for a shell
    Completions(completions::CompletionsArgs),
}

/// What a verb works with.
struct Context {
    output: Output,
    config: Option<PathBuf>,
    verbose: u8,
}

impl Context {
    fn is_json(&self) -> bool {
        self.output.shape == Shape::Json
    }

    fn settings(&self) -> Result<Settings, Failure> {
        Ok(app::load_settings(self.config.as_deref())?)
    }

    /// Opens the store to look, or to leave a request. One that no run has laid out yet is refused.
    async fn store(&self, settings: &Settings) -> Result<SharedStore, Failure> {
        let store = app::open_store(settings, Purpose::Inspect).await?;
        let layout = store.layout().await;
        if layout == Ok(LayoutState::Present) {
            return Ok(store);
        }
        store.close().await;
        layout?;
        Err(Failure::refused(
            "the store has not been laid out: the projector's tables are not there",
            "`projector run` makes them (with `store.ddl: verify`, somebody does, from `projector ddl`); if that has been \
             done, correct `store.url` or `store.schema`",
        ))
    }

    /// Views and limits from those projection files that can be read; the others are shown without.
    fn catalogue(settings: &Settings) -> Catalogue {
        let mut declarations = Vec::new();
        for path in &settings.projections {
            if let Ok(checked) = app::load_projection(path) {
                declarations.push(checked.declaration);
            } else {
                tracing::warn!(
                    file = %path.display(),
                    "this projection cannot be read; its views and limit are not shown; see `projector check`"
                );
            }
        }
        Catalogue::of(declarations.iter().map(AsRef::as_ref))
    }
}

/// Reads the command line, does what it says, and gives the exit code.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version end with 0, wrong usage with 2; where nobody reads, there is nobody to tell.
            let _ = error.print();
            return if error.use_stderr() { Exit::Usage.into() } else { Exit::Done.into() };
        }
    };
    let shape = if cli.global.json { Shape::Json } else { Shape::Text };
    let output = Output::new(shape);
    match start(cli, output) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            complain(&failure.text());
            if shape == Shape::Json {
                // The exit code tells it also where standard output cannot be written.
                let _ = output.json_line(&failure.object());
            }
            failure.exit().into()
        }
    }
}

fn start(cli: Cli, output: Output) -> Result<Exit, Failure> {
    let format = match cli.global.log_format {
        Format::Text => LogFormat::Text,
        Format::Json => LogFormat::Json,
    };
    let level = match (cli.global.verbose, &cli.verb) {
        (0, Verb::Run(_)) => LogLevel::Normal,
        // Of `status`, -v asks for partitions and not for logs.
        (0, _) | (1, Verb::Status(_)) => LogLevel::Quiet,
        (1, _) => LogLevel::Debug,
        _ => LogLevel::Trace,
    };
    logs::set_up(format, level)
        .map_err(|error| Failure::usage(error.to_string(), "see `projector --help`"))?;
    let context = Context { output, config: cli.global.config, verbose: cli.global.verbose };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|error| {
        Failure::failed(
            anyhow::Error::new(error).context("cannot start threads"),
            "raise the limit of threads",
        )
    })?;
    let result = runtime.block_on(perform(&context, cli.verb));
    // Whatever is still in a blocking call must not hold up the end.
    runtime.shutdown_timeout(std::time::Duration::from_millis(500));
    result
}

async fn perform(context: &Context, verb: Verb) -> Result<Exit, Failure> {
    match verb {
        Verb::Run(args) => run::run(context, args).await,
        Verb::Check(args) => check::check(context, &args).await,
        Verb::Ddl(args) => ddl::ddl(context, &args).await,
        Verb::Status(args) => status::status(context, &args).await,
        Verb::Retire(args) => retire::retire(context, &args).await,
        Verb::Resume(args) => resume::resume(context, args).await,
        Verb::Dlq(args) => dlq::dlq(context, args).await,
        Verb::Demo(args) => demo::demo(context, args).await,
        Verb::Completions(args) => completions::completions(context, &args),
    }
}

#[cfg(test)]
mod tests;
