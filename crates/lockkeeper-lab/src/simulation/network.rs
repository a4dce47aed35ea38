//! The network between simulated machines: byte streams that can be late, cut, reset or silent, like TCP.
//!
//! A stream keeps the order of its bytes and loses none. A lost packet delays itself and all later ones. A cut holds back the
//! bytes in flight until it is healed. By then the other side may have reconnected and be far ahead, but the old bytes still
//! arrive. So requests can arrive twice, late and out of order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lockkeeper_net::net::{Duplex, Stream};
use lockkeeper_net::simulation::{Connecting, Port};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use super::CLIENTS_FROM;
use super::random::Random;

/// The id of a machine.
pub(super) type MachineId = u32;

/// Maximum bytes in flight on a stream in one direction.
const WINDOW_BYTES: usize = 256 * 1024;
/// Retransmission delay of a lost packet.
const RETRANSMIT_MS: (u64, u64) = (200, 600);
/// The port of every node.
pub(super) const PORT: u16 = 7420;

/// The quality of the network.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quality {
    /// Minimum delay of a packet.
    pub(super) delay_min_ms: u64,
    /// Maximum delay of a packet.
    pub(super) delay_max_ms: u64,
    /// One in this many packets is lost; 0 for none.
    pub(super) lost_once_in: u64,
}

/// A disturbance of a single stream.
#[derive(Debug, Clone, Copy)]
pub(super) enum Disturbance {
    /// Nothing arrives for this duration.
    Freeze(Duration),
    /// All packets are delayed by this much from now on.
    Slow(Duration),
    /// Both ends get a reset.
    Break,
}

/// The network. Clones share it.
#[derive(Clone)]
pub(super) struct Network {
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    now: Duration,
    random: Random,
    quality: Quality,
    /// Added to the delay between two nodes.
    distance: Duration,
    /// One-way cuts.
    cut: BTreeSet<(MachineId, MachineId)>,
    /// One-way delays that are added to the usual ones.
    slow: BTreeMap<(MachineId, MachineId), Duration>,
    ports: BTreeMap<MachineId, Backlog>,
    calls: Vec<Call>,
    pipes: BTreeMap<u64, Pipe>,
    pipes_made: u64,
}

/// Connections waiting to be accepted.
#[derive(Default)]
struct Backlog {
    waiting: VecDeque<PipeIds>,
    acceptor: Option<Waker>,
}

/// A connection that is being opened.
struct Call {
    from: MachineId,
    to: MachineId,
    due: Duration,
    answer: oneshot::Sender<io::Result<PipeIds>>,
}

/// One direction of a stream.
struct Pipe {
    from: MachineId,
    to: MachineId,
    in_flight: VecDeque<(Duration, Packet)>,
    bytes_in_flight: usize,
    /// Packets sent so far.
    packets: u64,
    arrived: VecDeque<u8>,
    /// Whether the end of the stream has arrived.
    ended: bool,
    /// Whether one of the machines has reset the stream.
    broken: bool,
    /// Whether one of the machines disappeared silently: nothing arrives any more.
    dead: bool,
    /// Nothing arrives on this stream until then, as in retransmission backoff. Other streams are not affected.
    frozen_until: Duration,
    /// Added to the delay of every packet of this stream.
    slow: Duration,
    reader: Option<Waker>,
    writer: Option<Waker>,
    has_reader: bool,
    has_writer: bool,
}

enum Packet {
    Bytes(Vec<u8>),
    End,
}

impl Pipe {
    fn new(from: MachineId, to: MachineId) -> Pipe {
        Pipe {
            from,
            to,
            in_flight: VecDeque::new(),
            bytes_in_flight: 0,
            packets: 0,
            arrived: VecDeque::new(),
            ended: false,
            broken: false,
            dead: false,
            frozen_until: Duration::ZERO,
            slow: Duration::ZERO,
            reader: None,
            writer: None,
            has_reader: true,
            has_writer: true,
        }
    }

    fn wake(&mut self) {
        self.reader.take().into_iter().chain(self.writer.take()).for_each(Waker::wake);
    }

    fn reset(&mut self) {
        self.broken = true;
        self.in_flight.clear();
        self.wake();
    }
}

impl Inner {
    /// The delay of a packet. It depends only on the packet, because the order in which tokio wakes tasks must not change the
    /// run.
    fn delay(&self, from: MachineId, to: MachineId, packet: u64) -> Duration {
        let quality = self.quality;
        let mut random = self.random.clone();
        for part in [u64::from(from), u64::from(to), self.now.as_micros() as u64, packet] {
            random = Random::new(random.next() ^ part);
        }
        let mut delay = random.between_ms(quality.delay_min_ms, quality.delay_max_ms);
        if quality.lost_once_in > 0 && random.once_in(quality.lost_once_in) {
            delay += random.between_ms(RETRANSMIT_MS.0, RETRANSMIT_MS.1);
        }
        if from < CLIENTS_FROM && to < CLIENTS_FROM {
            delay += self.distance;
        }
        delay + self.slow.get(&(from, to)).copied().unwrap_or_default()
    }

    fn is_cut(&self, from: MachineId, to: MachineId) -> bool {
        self.cut.contains(&(from, to))
    }

    fn send(&mut self, pipe: u64, packet_data: Packet) {
        let Some((from, to, packet)) = self.pipes.get(&pipe).map(|pipe| (pipe.from, pipe.to, pipe.packets))
        else {
            return;
        };
        let due = self.now + self.delay(from, to, packet);
        let Some(pipe) = self.pipes.get_mut(&pipe) else { return };
        let due = due + pipe.slow;
        pipe.packets += 1;
        if pipe.broken {
            return;
        }
        if let Packet::Bytes(bytes) = &packet_data {
            pipe.bytes_in_flight += bytes.len();
        }
        let due = pipe.in_flight.back().map_or(due, |(last, _)| due.max(*last));
        pipe.in_flight.push_back((due, packet_data));
    }

    fn deliver_calls(&mut self) {
        let mut later = Vec::new();
        for mut call in std::mem::take(&mut self.calls) {
            if call.due > self.now || self.is_cut(call.from, call.to) || self.is_cut(call.to, call.from) {
                later.push(call);
                continue;
            }
            if call.answer.is_closed() {
                continue;
            }
            if !self.ports.contains_key(&call.to) {
                let _ = call.answer.send(Err(io::ErrorKind::ConnectionRefused.into()));
                continue;
            }
            let (there, back) = (self.pipes_made, self.pipes_made + 1);
            self.pipes_made += 2;
            self.pipes.insert(there, Pipe::new(call.from, call.to));
            self.pipes.insert(back, Pipe::new(call.to, call.from));
            if let Some(backlog) = self.ports.get_mut(&call.to) {
                backlog.waiting.push_back(PipeIds { read: there, write: back });
                if let Some(acceptor) = backlog.acceptor.take() {
                    acceptor.wake();
                }
            }
            call.due = self.now;
            let _ = call.answer.send(Ok(PipeIds { read: back, write: there }));
        }
        self.calls = later;
    }

    fn deliver_bytes(&mut self) {
        let Inner { now, cut, ports, pipes, .. } = self;
        let mut refused = Vec::new();
        for (id, pipe) in pipes.iter_mut() {
            if cut.contains(&(pipe.from, pipe.to)) || pipe.frozen_until > *now {
                continue;
            }
            let mut woken = false;
            while pipe.in_flight.front().is_some_and(|(due, _)| due <= now) {
                let Some((_, packet_data)) = pipe.in_flight.pop_front() else { break };
                if pipe.dead || !pipe.has_reader {
                    // The machine does not know the stream, and resets it if the reverse link is not cut.
                    if !cut.contains(&(pipe.to, pipe.from)) && (!pipe.dead || ports.contains_key(&pipe.to)) {
                        refused.push(*id);
                    }
                    continue;
                }
                match packet_data {
                    Packet::Bytes(bytes) => {
                        pipe.bytes_in_flight -= bytes.len();
                        pipe.arrived.extend(bytes);
                    }
                    Packet::End => pipe.ended = true,
                }
                woken = true;
            }
            if woken {
                pipe.wake();
            }
        }
        for id in refused {
            self.break_stream(id);
        }
        self.pipes.retain(|_, pipe| pipe.has_reader || pipe.has_writer);
    }

    /// Freezes both directions of a stream until then.
    fn freeze_stream(&mut self, id: u64, until: Duration) {
        for id in [id & !1, id | 1] {
            if let Some(pipe) = self.pipes.get_mut(&id) {
                pipe.frozen_until = pipe.frozen_until.max(until);
            }
        }
    }

    /// The streams between two machines, by the lower number of their pipes.
    fn streams_between(&self, one: MachineId, other: MachineId) -> Vec<u64> {
        let between = |pipe: &Pipe| [(one, other), (other, one)].contains(&(pipe.from, pipe.to));
        let ids: BTreeSet<u64> =
            self.pipes.iter().filter(|(_, pipe)| between(pipe)).map(|(id, _)| id & !1).collect();
        ids.into_iter().collect()
    }

    /// Resets both directions of a stream, which have adjacent numbers.
    fn break_stream(&mut self, id: u64) {
        for id in [id & !1, id | 1] {
            if let Some(pipe) = self.pipes.get_mut(&id) {
                pipe.reset();
            }
        }
    }
}

impl Network {
    /// A network without machines.
    pub(super) fn new(random: Random, quality: Quality) -> Network {
        let inner = Inner {
            now: Duration::ZERO,
            random,
            quality,
            distance: Duration::ZERO,
            cut: BTreeSet::new(),
            slow: BTreeMap::new(),
            ports: BTreeMap::new(),
            calls: Vec::new(),
            pipes: BTreeMap::new(),
            pipes_made: 0,
        };
        Network { inner: Arc::new(Mutex::new(inner)) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Advances the time and delivers due packets.
    pub(super) fn advance(&self, now: Duration) {
        let mut inner = self.inner();
        inner.now = now;
        inner.deliver_calls();
        inner.deliver_bytes();
    }

    /// Cuts the link in one direction.
    pub(super) fn cut(&self, from: MachineId, to: MachineId) {
        self.inner().cut.insert((from, to));
    }

    /// Sets the additional one-way delay between nodes.
    pub(super) fn set_distance(&self, one_way: Duration) {
        self.inner().distance = one_way;
    }

    /// Slows the link in one direction.
    pub(super) fn slow(&self, from: MachineId, to: MachineId, delay: Duration) {
        self.inner().slow.insert((from, to), delay);
    }

    /// Heals the links between two machines. Held-back bytes arrive now or later; some streams have timed out and are reset.
    pub(super) fn heal(&self, one: MachineId, other: MachineId) {
        let mut inner = self.inner();
        inner.slow.remove(&(one, other));
        inner.slow.remove(&(other, one));
        let was_cut = inner.cut.remove(&(one, other)) | inner.cut.remove(&(other, one));
        if !was_cut {
            return;
        }
        let now = inner.now;
        let between = inner.streams_between(one, other);
        let mut random = Random::new(inner.random.clone().next() ^ now.as_micros() as u64);
        for id in between {
            let more = random.between_ms(0, 400);
            let back_off = random.between_ms(400, 3_000);
            if random.once_in(4) {
                inner.break_stream(id);
            } else if random.once_in(3) {
                inner.freeze_stream(id, now + back_off);
            } else {
                inner.freeze_stream(id, now + more);
            }
        }
    }

    /// Heals the links between two machines for new streams. Open streams stay frozen for this duration, as in retransmission
    /// backoff.
    pub(super) fn heal_for_new(&self, one: MachineId, other: MachineId, back_off: Duration) {
        let mut inner = self.inner();
        let until = inner.now + back_off;
        for id in inner.streams_between(one, other) {
            inner.freeze_stream(id, until);
        }
        inner.cut.remove(&(one, other));
        inner.cut.remove(&(other, one));
    }

    /// Disturbs one stream between two machines.
    pub(super) fn disturb_one(&self, one: MachineId, other: MachineId, how: Disturbance) {
        let mut inner = self.inner();
        let streams = inner.streams_between(one, other);
        if streams.is_empty() {
            return;
        }
        let now = inner.now;
        let mut random = Random::new(inner.random.clone().next() ^ now.as_micros() as u64);
        let id = *random.one_of(&streams);
        match how {
            Disturbance::Freeze(lasts) => inner.freeze_stream(id, now + lasts),
            Disturbance::Break => inner.break_stream(id),
            Disturbance::Slow(delay) => {
                for id in [id, id + 1] {
                    if let Some(pipe) = inner.pipes.get_mut(&id) {
                        pipe.slow = delay;
                    }
                }
            }
        }
    }

    /// Resets every stream between two machines, like a firewall that loses its state.
    pub(super) fn reset(&self, one: MachineId, other: MachineId) {
        let mut inner = self.inner();
        for pipe in inner.pipes.values_mut() {
            if [(one, other), (other, one)].contains(&(pipe.from, pipe.to)) {
                pipe.reset();
            }
        }
    }

    /// Ends the machine's process. If its operating system still runs, it resets the streams to all reachable machines.
    pub(super) fn lose(&self, machine: MachineId, sends_resets: bool) {
        let mut inner = self.inner();
        inner.ports.remove(&machine);
        let Inner { cut, pipes, .. } = &mut *inner;
        for pipe in pipes.values_mut().filter(|pipe| pipe.from == machine || pipe.to == machine) {
            let other = if pipe.from == machine { pipe.to } else { pipe.from };
            pipe.dead = true;
            if pipe.from == machine {
                pipe.in_flight.clear();
            }
            if sends_resets && !cut.contains(&(machine, other)) {
                pipe.reset();
            }
        }
    }

    /// Opens a stream from a machine to an address such as `node-1:7420`.
    pub(super) fn connect(&self, from: MachineId, address: &str) -> Connecting {
        let Some(to) = machine_of(address) else {
            return Box::pin(std::future::ready(Err(io::Error::other(format!(
                "{address} is not a machine"
            )))));
        };
        let (answer, wire) = oneshot::channel();
        {
            let mut inner = self.inner();
            let due = inner.now + inner.delay(from, to, 0) + inner.delay(to, from, 0);
            inner.calls.push(Call { from, to, due, answer });
        }
        let network = self.clone();
        Box::pin(async move {
            let wire = wire.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
            Ok(Box::new(End { network, wire }) as Box<dyn Duplex>)
        })
    }

    /// Opens the port of a machine.
    pub(super) fn bind(&self, machine: MachineId) -> io::Result<Box<dyn Port>> {
        self.inner().ports.insert(machine, Backlog::default());
        Ok(Box::new(OpenPort { network: self.clone(), machine }))
    }
}

/// The address of a node.
pub(super) fn address_of(machine: MachineId) -> String {
    format!("node-{machine}:{PORT}")
}

fn machine_of(address: &str) -> Option<MachineId> {
    address.strip_prefix("node-")?.split(':').next()?.parse().ok()
}

/// The pipes of one end of a stream.
#[derive(Clone, Copy)]
struct PipeIds {
    read: u64,
    write: u64,
}

struct OpenPort {
    network: Network,
    machine: MachineId,
}

impl Port for OpenPort {
    fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::new(127, 0, 0, self.machine as u8), PORT))
    }

    fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Stream>> {
        let mut inner = self.network.inner();
        let Some(backlog) = inner.ports.get_mut(&self.machine) else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        match backlog.waiting.pop_front() {
            Some(wire) => {
                drop(inner);
                Poll::Ready(Ok(Stream::Other(Box::new(End { network: self.network.clone(), wire }))))
            }
            None => {
                backlog.acceptor = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// One end of a stream.
struct End {
    network: Network,
    wire: PipeIds,
}

impl AsyncRead for End {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut inner = self.network.inner();
        let Some(pipe) = inner.pipes.get_mut(&self.wire.read) else {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        };
        if pipe.arrived.is_empty() {
            if pipe.broken {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            if pipe.ended {
                return Poll::Ready(Ok(()));
            }
            pipe.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        let count = buffer.remaining().min(pipe.arrived.len());
        for byte in pipe.arrived.drain(..count) {
            buffer.put_slice(&[byte]);
        }
        if let Some(writer) = pipe.writer.take() {
            writer.wake();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for End {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut inner = self.network.inner();
        let Some(pipe) = inner.pipes.get_mut(&self.wire.write) else {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        };
        if pipe.broken {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = WINDOW_BYTES.saturating_sub(pipe.bytes_in_flight + pipe.arrived.len());
        if room == 0 {
            pipe.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        let count = room.min(bytes.len());
        inner.send(self.wire.write, Packet::Bytes(bytes[..count].to_vec()));
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.network.inner().send(self.wire.write, Packet::End);
        Poll::Ready(Ok(()))
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let mut inner = self.network.inner();
        inner.send(self.wire.write, Packet::End);
        if let Some(pipe) = inner.pipes.get_mut(&self.wire.write) {
            pipe.has_writer = false;
        }
        if let Some(pipe) = inner.pipes.get_mut(&self.wire.read) {
            pipe.has_reader = false;
        }
    }
}
