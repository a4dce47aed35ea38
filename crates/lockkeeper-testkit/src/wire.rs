//! A TCP proxy between clients and a server that can be cut, healed and redirected.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::ServerError;

/// A proxy for any number of connections.
#[derive(Debug)]
pub struct Wire {
    /// The address for clients.
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    server: SocketAddr,
    forwarding: Forwarding,
    is_closed: bool,
    streams: Vec<TcpStream>,
}

/// The traffic that the proxy forwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Forwarding {
    Everything,
    Requests,
    Nothing,
}

/// The direction of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Request,
    Answer,
}

impl Forwarding {
    fn allows(self, direction: Direction) -> bool {
        match self {
            Forwarding::Everything => true,
            Forwarding::Requests => direction == Direction::Request,
            Forwarding::Nothing => false,
        }
    }
}

impl Wire {
    /// Starts a proxy to a server.
    ///
    /// # Errors
    ///
    /// If no port can be opened.
    pub fn to(server: SocketAddr) -> Result<Wire, ServerError> {
        let failed = || ServerError::io("failed to open a port for a TCP proxy");
        let listener = TcpListener::bind("127.0.0.1:0").map_err(failed())?;
        let address = listener.local_addr().map_err(failed())?;
        let state =
            State { server, forwarding: Forwarding::Everything, is_closed: false, streams: Vec::new() };
        let state = Arc::new(Mutex::new(state));
        let for_thread = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                if locked(&for_thread).is_closed {
                    return;
                }
                // Either end may close at any time.
                let _ = connect(client, &for_thread);
            }
        });
        Ok(Wire { address, state })
    }

    /// Drops all traffic silently.
    pub fn cut(&self) {
        locked(&self.state).forwarding = Forwarding::Nothing;
    }

    /// Closes all connections. New ones get no answer.
    pub fn sever(&self) {
        let mut state = locked(&self.state);
        state.forwarding = Forwarding::Nothing;
        close(&mut state);
    }

    /// Forwards requests, but silently drops their answers.
    pub fn lose_answers(&self) {
        locked(&self.state).forwarding = Forwarding::Requests;
    }

    /// Forwards new connections, and closes the existing ones.
    pub fn heal(&self) {
        let mut state = locked(&self.state);
        state.forwarding = Forwarding::Everything;
        close(&mut state);
    }

    /// Redirects new connections to another server, and closes the existing ones.
    pub fn lead_to(&self, server: SocketAddr) {
        let mut state = locked(&self.state);
        state.server = server;
        close(&mut state);
    }
}

fn close(state: &mut State) {
    for stream in state.streams.drain(..) {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn connect(client: TcpStream, shared: &Arc<Mutex<State>>) -> std::io::Result<()> {
    let mut state = locked(shared);
    state.streams.push(client.try_clone()?);
    // A connection while cut gets no answer, as with a network that drops packets.
    if state.forwarding == Forwarding::Nothing {
        return Ok(());
    }
    let server = TcpStream::connect_timeout(&state.server, Duration::from_secs(1));
    let Ok(server) = server else {
        return client.shutdown(Shutdown::Both);
    };
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    state.streams.push(server.try_clone()?);
    pump(client.try_clone()?, server.try_clone()?, Direction::Request, Arc::clone(shared));
    pump(server, client, Direction::Answer, Arc::clone(shared));
    Ok(())
}

fn pump(mut from: TcpStream, mut to: TcpStream, direction: Direction, state: Arc<Mutex<State>>) {
    std::thread::spawn(move || {
        let mut buffer = [0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            // Traffic in flight at a cut is lost.
            if !locked(&state).forwarding.allows(direction) {
                continue;
            }
            if to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    });
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.heal();
        locked(&self.state).is_closed = true;
        let _ = TcpStream::connect(self.address);
    }
}
