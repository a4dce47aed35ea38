//! The binary `lockkeeper`, which serves cells and measures engines.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::process::Command;

use lockkeeper_testkit::ServerError;

const PROGRAM: &str = if cfg!(windows) { "lockkeeper.exe" } else { "lockkeeper" };

/// Finds the binary `lockkeeper` when it is first needed. A lab that was started by `cargo run` builds it with its own
/// profile; otherwise it is expected next to the lab.
#[derive(Debug)]
pub struct LockkeeperBinary {
    chosen: Option<PathBuf>,
    found: OnceCell<PathBuf>,
}

impl LockkeeperBinary {
    /// Uses the chosen binary, if there is one.
    pub fn new(chosen: Option<PathBuf>) -> LockkeeperBinary {
        LockkeeperBinary { chosen, found: OnceCell::new() }
    }

    /// The path of the binary.
    ///
    /// # Errors
    ///
    /// If it does not exist or cannot be built.
    pub fn path(&self) -> Result<&Path, ServerError> {
        if self.found.get().is_none() {
            let _ = self.found.set(self.find()?);
        }
        self.found.get().map(PathBuf::as_path).ok_or(MISSING)
    }

    fn find(&self) -> Result<PathBuf, ServerError> {
        if let Some(path) = &self.chosen {
            return path.exists().then(|| path.clone()).ok_or(MISSING);
        }
        let lab = std::env::current_exe()
            .map_err(|error| ServerError::Io { what: "failed to find this program".to_owned(), error })?;
        let folder = lab.parent().ok_or(MISSING)?;
        build(folder)?;
        let path = folder.join(PROGRAM);
        path.exists().then_some(path).ok_or(MISSING)
    }
}

const MISSING: ServerError = ServerError::Missing {
    program: "lockkeeper",
    advice: "build it with `cargo build --release -p lockkeeper-cli`, or name it with --binary",
};

/// Builds the binary into the folder of the lab, if `cargo run` has started the lab.
fn build(folder: &Path) -> Result<(), ServerError> {
    let (Some(cargo), Some(package)) = (std::env::var_os("CARGO"), std::env::var_os("CARGO_MANIFEST_DIR"))
    else {
        return Ok(());
    };
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(profile) => profile,
    };
    let status = Command::new(cargo)
        .args(["build", "--quiet", "-p", "lockkeeper-cli", "--profile", profile])
        .current_dir(package)
        .status()
        .map_err(|error| ServerError::Io { what: "failed to start cargo".to_owned(), error })?;
    if status.success() {
        return Ok(());
    }
    Err(ServerError::Command {
        command: "cargo build -p lockkeeper-cli".to_owned(),
        words: status.to_string(),
    })
}
