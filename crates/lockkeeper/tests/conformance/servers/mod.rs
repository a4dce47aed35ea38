//! Real servers, each on free ports and in a temporary folder, gone at the end of the test whatever happens.

pub(crate) mod cell;
pub(crate) mod consul;
pub(crate) mod embedded;
pub(crate) mod etcd;
pub(crate) mod pgbouncer;
pub(crate) mod postgres;
pub(crate) mod proxy;
pub(crate) mod redis;
pub(crate) mod redlock;
pub(crate) mod zookeeper;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// An engine with its servers.
pub(crate) trait Site: Sized + Send + 'static {
    /// A time to live that is short for it.
    const TTL: Duration = Duration::from_secs(1);

    /// A request id that is known already is answered without a round trip.
    const KNOWS_REQUESTS: bool = true;

    /// Starts the servers and waits until they answer.
    fn start() -> Self;

    /// Where they listen.
    fn addresses(&self) -> Vec<SocketAddr>;

    /// The URL if they listened elsewhere.
    fn url_at(&self, addresses: &[SocketAddr]) -> String;

    fn url(&self) -> String {
        self.url_at(&self.addresses())
    }

    /// Ends the servers with SIGKILL.
    fn kill(&mut self);

    /// Starts them again, with what they kept on disk.
    fn restart(&mut self);

    /// How many connections the servers have from others than us, if they can tell.
    fn connections(&self) -> Option<usize> {
        None
    }

    /// What is left on the servers that was not there at first, if they can tell.
    fn left_behind(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A process that ends with this value, and with the thread that started it.
pub(crate) struct Process {
    child: Child,
}

impl Process {
    /// `setpriv` (util-linux) has the kernel end the process when our thread ends in any way.
    pub(crate) fn start(program: &str, arguments: &[&str], log: &Path) -> Process {
        Process::start_as(None, program, arguments, log)
    }

    pub(crate) fn start_as(user: Option<&str>, program: &str, arguments: &[&str], log: &Path) -> Process {
        let out = std::fs::File::create(log).unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        if let Some(user) = user {
            command.args(["--reuid", user, "--regid", user, "--clear-groups"]);
        }
        command.arg(program).args(arguments).stdin(Stdio::null());
        let child = command.stdout(out.try_clone().unwrap()).stderr(out).spawn();
        let child =
            child.unwrap_or_else(|error| panic!("{program} cannot be started: {error}; ./test installs it"));
        Process { child }
    }

    /// Waits until it listens; fails with its own words if it ended.
    pub(crate) fn until_it_listens(mut self, address: SocketAddr, log: &Path) -> Process {
        let until = Instant::now() + Duration::from_secs(90);
        while TcpStream::connect(address).is_err() {
            let text = || std::fs::read_to_string(log).unwrap_or_default();
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("the server ended with {status}:\n{}", text());
            }
            assert!(Instant::now() < until, "the server does not listen at {address}:\n{}", text());
            std::thread::sleep(Duration::from_millis(5));
        }
        self
    }

    pub(crate) fn until_it_ended(mut self) {
        let until = Instant::now() + Duration::from_secs(10);
        while self.child.try_wait().unwrap().is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that nobody listens at now.
pub(crate) fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Several at once, so that no two are the same.
pub(crate) fn free_addresses<const N: usize>() -> [SocketAddr; N] {
    let listeners: [TcpListener; N] = std::array::from_fn(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap())
}

/// Where a program is: Debian has some outside the usual path.
pub(crate) fn find_program(name: &str, elsewhere: &[&str]) -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut places: Vec<PathBuf> = std::env::split_paths(&path).collect();
    places.extend(elsewhere.iter().map(PathBuf::from));
    places
        .iter()
        .map(|place| place.join(name))
        .find(|program| program.exists())
        .unwrap_or_else(|| panic!("{name} is not installed: run ./test, which installs it"))
        .to_string_lossy()
        .into_owned()
}
