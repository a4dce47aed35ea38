//! The embedded engine, with a folder. There are no servers to kill and no connections to cut.

use std::net::SocketAddr;

use lockkeeper::Keeper;
use tempfile::TempDir;

use super::Site;

pub(crate) struct Embedded {
    folder: TempDir,
}

impl Site for Embedded {
    const ANSWERS_REPEATS_LOCALLY: bool = false;

    fn start() -> Embedded {
        Embedded { folder: tempfile::tempdir().unwrap() }
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        Vec::new()
    }

    fn url_at(&self, _: &[SocketAddr]) -> String {
        format!("embedded:{}", self.folder.path().display())
    }

    /// The engine ends with the last keeper.
    fn kill(&mut self) {}

    fn restart(&mut self) {}

    /// Reads the status with another keeper, on another thread, because this one may be the only thread of its runtime.
    fn left_behind(&self) -> Vec<String> {
        let url = self.url();
        let read = async move {
            let keeper = Keeper::connect(&url).await.unwrap();
            let status = keeper.status().await.unwrap();
            keeper.close().await.unwrap();
            let counts =
                [("sessions", status.sessions), ("grants", status.locks_held), ("waiting", status.waiting)];
            counts.into_iter().filter(|(_, count)| *count > 0).map(|count| format!("{count:?}")).collect()
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        std::thread::spawn(move || runtime.block_on(read)).join().unwrap()
    }
}
