//! The lock table of this process, in a folder: there is no server to be killed and no connection to be cut.

use std::net::SocketAddr;

use tempfile::TempDir;

use super::Site;

pub(crate) struct Embedded {
    folder: TempDir,
}

impl Site for Embedded {
    const KNOWS_REQUESTS: bool = false;

    fn start() -> Embedded {
        Embedded { folder: tempfile::tempdir().unwrap() }
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        Vec::new()
    }

    fn url_at(&self, _: &[SocketAddr]) -> String {
        format!("embedded:{}", self.folder.path().display())
    }

    /// It ends with the last keeper.
    fn kill(&mut self) {}

    fn restart(&mut self) {}
}
