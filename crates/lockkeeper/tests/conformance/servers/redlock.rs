//! Five independent Redis instances.

use std::net::SocketAddr;

use super::Site;
use super::redis::Redis;

pub(crate) struct Redlock {
    pub(crate) instances: Vec<Redis>,
}

impl Site for Redlock {
    fn start() -> Redlock {
        Redlock { instances: (0..5).map(|_| Redis::start()).collect() }
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.instances.iter().map(|instance| instance.address).collect()
    }

    fn url_at(&self, addresses: &[SocketAddr]) -> String {
        let hosts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        // The default of 50 ms is too short on a busy machine.
        format!("redlock://{}?timeout_ms=300", hosts.join(","))
    }

    fn kill(&mut self) {
        self.instances.iter_mut().for_each(Site::kill);
    }

    fn restart(&mut self) {
        self.instances.iter_mut().for_each(Site::restart);
    }

    fn connections(&self) -> Option<usize> {
        self.instances.iter().map(|instance| instance.connections()).sum()
    }

    fn left_behind(&self) -> Vec<String> {
        self.instances.iter().flat_map(Redis::left_behind).collect()
    }
}
