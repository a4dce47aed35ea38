//! A wire that can be cut: everything goes through it to a server, until it does not.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    is_cut: bool,
    has_ended: bool,
    streams: Vec<TcpStream>,
}

impl Proxy {
    pub(crate) fn start(server: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state: Arc<Mutex<State>> = Arc::default();
        let of_thread = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                let mut state = of_thread.lock().unwrap();
                if state.has_ended {
                    return;
                }
                // Whoever connects while it is cut hears nothing, as with a network that drops packets.
                state.streams.push(client.try_clone().unwrap());
                if state.is_cut {
                    continue;
                }
                let Ok(server) = TcpStream::connect(server) else {
                    let _ = client.shutdown(Shutdown::Both);
                    continue;
                };
                state.streams.push(server.try_clone().unwrap());
                pump(client.try_clone().unwrap(), server.try_clone().unwrap(), Arc::clone(&of_thread));
                pump(server, client, Arc::clone(&of_thread));
            }
        });
        Proxy { address, state }
    }

    /// Nothing comes through any more, and nobody is told.
    pub(crate) fn cut(&self) {
        self.state.lock().unwrap().is_cut = true;
    }

    /// New connections come through; those from before are closed.
    pub(crate) fn heal(&self) {
        let mut state = self.state.lock().unwrap();
        state.is_cut = false;
        for stream in state.streams.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, state: Arc<Mutex<State>>) {
    let _ = from.set_read_timeout(Some(Duration::from_secs(60)));
    std::thread::spawn(move || {
        let mut buffer = [0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            // What is on its way when the wire is cut is lost.
            if state.lock().unwrap().is_cut {
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

impl Drop for Proxy {
    fn drop(&mut self) {
        self.heal();
        self.state.lock().unwrap().has_ended = true;
        let _ = TcpStream::connect(self.address);
    }
}
