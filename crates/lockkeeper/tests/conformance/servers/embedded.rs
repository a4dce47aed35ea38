//! The lock table of this process, in a folder: there is no server to be killed and no connection to be cut.

use std::net::SocketAddr;

use lockkeeper::Keeper;
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

    /// A keeper of its own looks, on another thread: this one may be the only one of its runtime.
    fn left_behind(&self) -> Vec<String> {
        let url = self.url();
        let looks = async move {
            let keeper = Keeper::connect(&url).await.unwrap();
            let status = keeper.status().await.unwrap();
            keeper.close().await.unwrap();
            let figures =
                [("sessions", status.sessions), ("grants", status.locks_held), ("waiting", status.waiting)];
            figures.into_iter().filter(|(_, count)| *count > 0).map(|it| format!("{it:?}")).collect()
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        std::thread::spawn(move || runtime.block_on(looks)).join().unwrap()
    }
}
