//! Hooks for the simulation, which replaces network, randomness, clocks and threads for everything that runs on its
//! thread. Compiled only with the feature `simulation`; a thread without a [`Host`] uses the real ones.

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

/// A simulated machine, on which the running code executes.
pub trait Host {
    /// Connects to another machine.
    fn connect(&self, address: &str) -> Connecting;
    /// Opens a port.
    fn bind(&self, address: &str) -> io::Result<Box<dyn Port>>;
    /// Returns a random number.
    fn random(&self) -> u64;
    /// Its monotonic clock, in nanoseconds.
    fn clock(&self) -> u64;
    /// Its wall clock, in nanoseconds. It may jump; no decision depends on it.
    fn wall_clock(&self) -> u64;
}

/// A listening port.
pub trait Port: Send {
    /// Its address.
    fn address(&self) -> SocketAddr;
    /// Polls for the next connection.
    fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Stream>>;
}

thread_local! {
    static HOST: RefCell<Option<Rc<dyn Host>>> = const { RefCell::new(None) };
}

/// The host that executes on this thread, if it belongs to a simulation.
pub fn host() -> Option<Rc<dyn Host>> {
    HOST.with_borrow(Clone::clone)
}

/// Executes a closure on a host.
pub fn on<T>(host: Rc<dyn Host>, act: impl FnOnce() -> T) -> T {
    let before = HOST.replace(Some(host));
    let result = act();
    HOST.set(before);
    result
}
