//! A wire that can be cut and laid elsewhere: everything goes through it to a server, until it does not.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::ServerError;

/// One wire, for any number of connections.
#[derive(Debug)]
pub struct Wire {
    /// Where clients go.
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    server: SocketAddr,
    passes: Passes,
    has_ended: bool,
    streams: Vec<TcpStream>,
}

/// What comes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Passes {
    Everything,
    Requests,
    Nothing,
}

/// Which way something goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Request,
    Answer,
}

impl Passes {
    fn lets(self, way: Way) -> bool {
        match self {
            Passes::Everything => true,
            Passes::Requests => way == Way::Request,
            Passes::Nothing => false,
        }
    }
}

impl Wire {
    /// Lays a wire to a server.
    ///
    /// # Errors
    ///
    /// If no port can be had.
    pub fn to(server: SocketAddr) -> Result<Wire, ServerError> {
        let failed = || ServerError::io("no port for a wire can be opened");
        let listener = TcpListener::bind("127.0.0.1:0").map_err(failed())?;
        let address = listener.local_addr().map_err(failed())?;
        let state = State { server, passes: Passes::Everything, has_ended: false, streams: Vec::new() };
        let state = Arc::new(Mutex::new(state));
        let of_thread = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                if locked(&of_thread).has_ended {
                    return;
                }
                // Either end may go away at any time: then there is nothing to carry.
                let _ = connect(client, &of_thread);
            }
        });
        Ok(Wire { address, state })
    }

    /// Nothing comes through any more, and nobody is told.
    pub fn cut(&self) {
        locked(&self.state).passes = Passes::Nothing;
    }

    /// Connections are closed, and new ones hear nothing.
    pub fn sever(&self) {
        let mut state = locked(&self.state);
        state.passes = Passes::Nothing;
        close(&mut state);
    }

    /// Requests come through and are worked on, but their answers are lost, and nobody is told.
    pub fn lose_answers(&self) {
        locked(&self.state).passes = Passes::Requests;
    }

    /// New connections come through; those from before are closed.
    pub fn heal(&self) {
        let mut state = locked(&self.state);
        state.passes = Passes::Everything;
        close(&mut state);
    }

    /// From now on it leads to another server; connections to the old one are closed.
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
    // Whoever connects while it is cut hears nothing, as with a network that drops packets.
    if state.passes == Passes::Nothing {
        return Ok(());
    }
    let server = TcpStream::connect_timeout(&state.server, Duration::from_secs(1));
    let Ok(server) = server else {
        return client.shutdown(Shutdown::Both);
    };
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    state.streams.push(server.try_clone()?);
    pump(client.try_clone()?, server.try_clone()?, Way::Request, Arc::clone(shared));
    pump(server, client, Way::Answer, Arc::clone(shared));
    Ok(())
}

fn pump(mut from: TcpStream, mut to: TcpStream, way: Way, state: Arc<Mutex<State>>) {
    std::thread::spawn(move || {
        let mut buffer = [0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            // What is on its way when the wire is cut is lost.
            if !locked(&state).passes.lets(way) {
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
        locked(&self.state).has_ended = true;
        let _ = TcpStream::connect(self.address);
    }
}
