//! The program as a process, with files of a test's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use super::PATIENCE;

/// A folder with a configuration, and the program run in it.
pub(crate) struct Workplace {
    folder: tempfile::TempDir,
}

impl Workplace {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder") }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        fs::write(&path, text).expect("written");
        path
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_projector"));
        command.args(arguments).current_dir(self.path()).env_remove("PROJECTOR_CONFIG").stdin(Stdio::null());
        command
    }

    /// Runs the program to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Finished {
        let output = self.command(arguments).output().expect("the program starts");
        Finished::from(&output)
    }

    /// Starts the program; its log goes to `name.log` in the folder.
    pub(crate) fn start(&self, name: &str, arguments: &[&str]) -> Running {
        let log = self.path().join(format!("{name}.log"));
        let file = fs::File::create(&log).expect("a log file");
        let child = self
            .command(arguments)
            .stdout(file.try_clone().expect("cloned"))
            .stderr(file)
            .spawn()
            .expect("the program starts");
        Running { child, log }
    }
}

/// What a finished run printed.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<&Output> for Finished {
    fn from(output: &Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Finished {
    /// Fails the test where the exit code is another one.
    #[track_caller]
    pub(crate) fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }
}

/// A running process; killed when dropped.
pub(crate) struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([&format!("-{name}"), &pid]).status().expect("kill runs");
        assert!(sent.success(), "kill -{name} {pid}");
    }

    /// SIGKILL, and waits until the process is gone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("gone");
    }

    /// Waits for the process to end by itself.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        self.ended_within(PATIENCE).await
    }

    pub(crate) async fn ended_within(&mut self, patience: Duration) -> ExitStatus {
        let begun = Instant::now();
        let mut pause = tokio::time::interval(Duration::from_millis(20));
        loop {
            pause.tick().await;
            if let Some(status) = self.child.try_wait().expect("a status") {
                return status;
            }
            assert!(begun.elapsed() < patience, "still running after {patience:?}: {}", self.log());
        }
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a status").is_none()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.is_running() {
            self.kill();
        }
        if std::thread::panicking() {
            eprintln!("---- {}\n{}", self.log.display(), self.log());
        }
    }
}
