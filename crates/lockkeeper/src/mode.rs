//! Alone, or together with others.

use std::fmt;

use serde::Serialize;

/// How a lock is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Nobody else.
    #[default]
    Exclusive,
    /// Others in shared mode may hold it too.
    Shared,
}

impl Mode {
    /// The word used in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
        }
    }
}

impl From<Mode> for lockkeeper_core::Mode {
    fn from(mode: Mode) -> lockkeeper_core::Mode {
        match mode {
            Mode::Exclusive => lockkeeper_core::Mode::Exclusive,
            Mode::Shared => lockkeeper_core::Mode::Shared,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
