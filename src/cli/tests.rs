use clap::CommandFactory;

use super::*;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split_whitespace())
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn the_verbs_are_those_of_this_release() {
    let command = Cli::command();
    let verbs: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
    assert_eq!(verbs, ["run", "check", "ddl", "status", "retire", "resume", "dlq", "demo", "completions"]);
}

#[test]
fn every_verb_has_a_help_text_with_an_example() {
    for verb in
        ["run", "check", "ddl", "status", "retire", "resume", "demo", "completions", "dlq list", "dlq show"]
    {
        let error = parse(&format!("projector {verb} --help")).expect_err("help is an early end");
        assert!(!error.use_stderr(), "{verb}");
        let help = error.to_string();
        assert!(
            help.contains("Examples:") && help.contains(&format!("  projector {verb}")),
            "{verb}: {help}"
        );
    }
}

#[test]
fn global_options_stand_before_or_after_the_verb() {
    for line in ["projector --json -c a.yaml status", "projector status --json -c a.yaml"] {
        let cli = parse(line).expect(line);
        assert!(cli.global.json && cli.global.config == Some(PathBuf::from("a.yaml")), "{line}");
    }
}

#[test]
fn documented_forms_are_taken() {
    for line in [
        "projector run",
        "projector run a b --until-caught-up --log-format json -vv",
        "projector check",
        "projector check a.yaml b.yaml --connect",
        "projector ddl catalogue",
        "projector status catalogue -v",
        "projector status --watch",
        "projector retire catalogue@1 --execute",
        "projector resume catalogue --partition shop.products:3 --dead-letter",
        "projector dlq list catalogue --reason bad_framing --state all --limit 5",
        "projector dlq show shop.products:3:1207 --payload",
        "projector demo --keep dir --events 500",
        "projector completions bash",
    ] {
        assert!(parse(line).is_ok(), "{line}");
    }
}

#[test]
fn other_forms_are_refused_as_wrong_usage() {
    for line in [
        "projector",
        "projector retire catalogue",
        "projector resume catalogue --partition 3",
        "projector dlq show shop.products:3",
        "projector dlq list --reason nonsense",
        "projector dlq list --limit 0",
        "projector status --watch --json",
        "projector run --log-format xml",
        "projector rebuild catalogue",
    ] {
        let error = parse(line).expect_err(line);
        assert_eq!(error.exit_code(), 2, "{line}");
    }
}
