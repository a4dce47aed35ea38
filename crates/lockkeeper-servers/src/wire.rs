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
    is_cut: bool,
    has_ended: bool,
    streams: Vec<TcpStream>,
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
        let state = State { server, is_cut: false, has_ended: false, streams: Vec::new() };
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
        locked(&self.state).is_cut = true;
    }

    /// New connections come through; those from before are closed.
    pub fn heal(&self) {
        let mut state = locked(&self.state);
        state.is_cut = false;
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
    if state.is_cut {
        return Ok(());
    }
    let server = TcpStream::connect_timeout(&state.server, Duration::from_secs(1));
    let Ok(server) = server else {
        return client.shutdown(Shutdown::Both);
    };
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    state.streams.push(server.try_clone()?);
    pump(client.try_clone()?, server.try_clone()?, Arc::clone(shared));
    pump(server, client, Arc::clone(shared));
    Ok(())
}

fn pump(mut from: TcpStream, mut to: TcpStream, state: Arc<Mutex<State>>) {
    std::thread::spawn(move || {
        let mut buffer = [0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            // What is on its way when the wire is cut is lost.
            if locked(&state).is_cut {
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
