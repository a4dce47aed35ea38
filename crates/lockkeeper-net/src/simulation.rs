//! What a simulation puts in the place of the network, of chance, of clocks and of threads, for all that runs on
//! its thread. Only compiled with the feature `simulation`; a thread that has no [`Host`] works as ever.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::net::{Duplex, Stream};

/// A connection that is being opened.
pub type Connecting = Pin<Box<dyn Future<Output = io::Result<Box<dyn Duplex>>> + Send>>;

/// The machine on which the code that runs now believes to be.
pub trait Host {
    /// Connects to another one.
    fn connect(&self, address: &str) -> Connecting;
    /// Opens a port.
    fn bind(&self, address: &str) -> io::Result<Box<dyn Port>>;
    /// The next number of chance.
    fn random(&self) -> u64;
    /// Nanoseconds on its clock since some moment.
    fn clock(&self) -> u64;
    /// The same on a clock that people set, forward and back. Nothing may depend on it.
    fn wall_clock(&self) -> u64;
}

/// An open port.
pub trait Port: Send {
    /// Its address.
    fn address(&self) -> SocketAddr;
    /// The next connection.
    fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Stream>>;
}

thread_local! {
    static HOST: RefCell<Option<Rc<dyn Host>>> = const { RefCell::new(None) };
}

/// The host on which this thread is now, if it is in a simulation.
pub fn host() -> Option<Rc<dyn Host>> {
    HOST.with_borrow(Clone::clone)
}

/// Does something on a host.
pub fn on<T>(host: Rc<dyn Host>, act: impl FnOnce() -> T) -> T {
    let before = HOST.replace(Some(host));
    let result = act();
    HOST.set(before);
    result
}
