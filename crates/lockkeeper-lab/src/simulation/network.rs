//! The network between simulated machines: streams of bytes that are late, cut, broken or silent, as TCP can be.
//!
//! A stream keeps the order of its bytes and loses none, but everything else can happen to it: a lost packet is one
//! that comes late, with all that is behind it; a cut holds back what is under way until it is healed, and by then the
//! other side may have given up, come back on a new stream and be far ahead: the old bytes arrive all the same.
//! That is how requests come twice, late and in another order.

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

/// A machine.
pub(super) type MachineId = u32;

/// What may be under way on a stream in one direction.
const WINDOW_BYTES: usize = 256 * 1024;
/// A lost packet is sent again after this time.
const SENT_AGAIN_MS: (u64, u64) = (200, 600);
/// The port of every node.
pub(super) const PORT: u16 = 7420;

/// How good the network is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quality {
    /// The shortest way of a packet.
    pub(super) delay_min_ms: u64,
    /// The longest.
    pub(super) delay_max_ms: u64,
    /// One in so many packets is lost; 0: none.
    pub(super) lost_once_in: u64,
}

/// What can happen to a single stream.
#[derive(Debug, Clone, Copy)]
pub(super) enum Disturbance {
    /// Nothing arrives for so long.
    Freeze(Duration),
    /// Everything on it is later by so much, from now on.
    Slow(Duration),
    /// Both ends are told that it is gone.
    Break,
}

/// All machines and what is under way between them. Clones share it.
#[derive(Clone)]
pub(super) struct Network {
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    now: Duration,
    random: Random,
    quality: Quality,
    /// Added to the way between two nodes.
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

/// Connections that wait to be accepted.
#[derive(Default)]
struct Backlog {
    waiting: VecDeque<Wire>,
    acceptor: Option<Waker>,
}

/// A connection that is being opened.
struct Call {
    from: MachineId,
    to: MachineId,
    due: Duration,
    answer: oneshot::Sender<io::Result<Wire>>,
}

/// One direction of a stream.
struct Pipe {
    from: MachineId,
    to: MachineId,
    under_way: VecDeque<(Duration, Parcel)>,
    bytes_under_way: usize,
    /// Sent so far.
    packets: u64,
    arrived: VecDeque<u8>,
    /// The writer's end has arrived: nothing more comes.
    ended: bool,
    /// One of the machines has said that there is no such stream.
    broken: bool,
    /// One of the machines has gone without a word: nothing arrives any more.
    dead: bool,
    /// Until then nothing arrives on this stream, as in a retransmission back-off; others between the machines go on.
    frozen_until: Duration,
    /// Added to the delay of every packet of this stream.
    slow: Duration,
    reader: Option<Waker>,
    writer: Option<Waker>,
    has_reader: bool,
    has_writer: bool,
}

enum Parcel {
    Bytes(Vec<u8>),
    End,
}

impl Pipe {
    fn new(from: MachineId, to: MachineId) -> Pipe {
        Pipe {
            from,
            to,
            under_way: VecDeque::new(),
            bytes_under_way: 0,
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

    fn break_off(&mut self) {
        self.broken = true;
        self.under_way.clear();
        self.wake();
    }
}

impl Inner {
    /// How long the packet with this number on its stream is under way. Decided by the packet alone: tokio wakes those
    /// who wait for the same thing in an order of its own, and who of them is first must not change anything.
    fn delay(&self, from: MachineId, to: MachineId, packet: u64) -> Duration {
        let quality = self.quality;
        let mut random = self.random.clone();
        for part in [u64::from(from), u64::from(to), self.now.as_micros() as u64, packet] {
            random = Random::new(random.next() ^ part);
        }
        let mut delay = random.between_ms(quality.delay_min_ms, quality.delay_max_ms);
        if quality.lost_once_in > 0 && random.once_in(quality.lost_once_in) {
            delay += random.between_ms(SENT_AGAIN_MS.0, SENT_AGAIN_MS.1);
        }
        if from < CLIENTS_FROM && to < CLIENTS_FROM {
            delay += self.distance;
        }
        delay + self.slow.get(&(from, to)).copied().unwrap_or_default()
    }

    fn is_cut(&self, from: MachineId, to: MachineId) -> bool {
        self.cut.contains(&(from, to))
    }

    fn send(&mut self, pipe: u64, parcel: Parcel) {
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
        if let Parcel::Bytes(bytes) = &parcel {
            pipe.bytes_under_way += bytes.len();
        }
        let due = pipe.under_way.back().map_or(due, |(last, _)| due.max(*last));
        pipe.under_way.push_back((due, parcel));
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
                backlog.waiting.push_back(Wire { read: there, write: back });
                if let Some(acceptor) = backlog.acceptor.take() {
                    acceptor.wake();
                }
            }
            call.due = self.now;
            let _ = call.answer.send(Ok(Wire { read: back, write: there }));
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
            while pipe.under_way.front().is_some_and(|(due, _)| due <= now) {
                let Some((_, parcel)) = pipe.under_way.pop_front() else { break };
                if pipe.dead || !pipe.has_reader {
                    // Whoever is there does not know the stream, and says so, if there is a way back.
                    if !cut.contains(&(pipe.to, pipe.from)) && (!pipe.dead || ports.contains_key(&pipe.to)) {
                        refused.push(*id);
                    }
                    continue;
                }
                match parcel {
                    Parcel::Bytes(bytes) => {
                        pipe.bytes_under_way -= bytes.len();
                        pipe.arrived.extend(bytes);
                    }
                    Parcel::End => pipe.ended = true,
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

    /// Nothing arrives on a stream until then, in both directions.
    fn freeze_stream(&mut self, id: u64, until: Duration) {
        for id in [id & !1, id | 1] {
            if let Some(pipe) = self.pipes.get_mut(&id) {
                pipe.frozen_until = pipe.frozen_until.max(until);
            }
        }
    }

    /// The streams between two machines, by the lower of their two numbers.
    fn streams_between(&self, one: MachineId, other: MachineId) -> Vec<u64> {
        let between = |pipe: &Pipe| [(one, other), (other, one)].contains(&(pipe.from, pipe.to));
        let ids: BTreeSet<u64> =
            self.pipes.iter().filter(|(_, pipe)| between(pipe)).map(|(id, _)| id & !1).collect();
        ids.into_iter().collect()
    }

    /// Both directions: they have neighbouring numbers.
    fn break_stream(&mut self, id: u64) {
        for id in [id & !1, id | 1] {
            if let Some(pipe) = self.pipes.get_mut(&id) {
                pipe.break_off();
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

    /// Time passes, and what is due arrives.
    pub(super) fn advance(&self, now: Duration) {
        let mut inner = self.inner();
        inner.now = now;
        inner.deliver_calls();
        inner.deliver_bytes();
    }

    /// Cuts the way in one direction.
    pub(super) fn cut(&self, from: MachineId, to: MachineId) {
        self.inner().cut.insert((from, to));
    }

    /// Puts the nodes so far apart.
    pub(super) fn set_distance(&self, one_way: Duration) {
        self.inner().distance = one_way;
    }

    /// Makes the way in one direction slower.
    pub(super) fn slow(&self, from: MachineId, to: MachineId, delay: Duration) {
        self.inner().slow.insert((from, to), delay);
    }

    /// Heals the ways between two machines. What was held back arrives now or a little later; some streams have been
    /// given up by the system meanwhile.
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

    /// Heals the ways between two machines for new streams; those that are open stay as they are for so long, because
    /// their systems wait longer and longer before they try again.
    pub(super) fn heal_for_new(&self, one: MachineId, other: MachineId, back_off: Duration) {
        let mut inner = self.inner();
        let until = inner.now + back_off;
        for id in inner.streams_between(one, other) {
            inner.freeze_stream(id, until);
        }
        inner.cut.remove(&(one, other));
        inner.cut.remove(&(other, one));
    }

    /// Does something to one stream between two machines; the others go on.
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

    /// Breaks every stream between two machines, as a firewall does that forgets.
    pub(super) fn reset(&self, one: MachineId, other: MachineId) {
        let mut inner = self.inner();
        for pipe in inner.pipes.values_mut() {
            if [(one, other), (other, one)].contains(&(pipe.from, pipe.to)) {
                pipe.break_off();
            }
        }
    }

    /// The machine's process is gone. If its system is still there, it says so to all who can be reached.
    pub(super) fn lose(&self, machine: MachineId, says_so: bool) {
        let mut inner = self.inner();
        inner.ports.remove(&machine);
        let Inner { cut, pipes, .. } = &mut *inner;
        for pipe in pipes.values_mut().filter(|pipe| pipe.from == machine || pipe.to == machine) {
            let other = if pipe.from == machine { pipe.to } else { pipe.from };
            pipe.dead = true;
            if pipe.from == machine {
                pipe.under_way.clear();
            }
            if says_so && !cut.contains(&(machine, other)) {
                pipe.break_off();
            }
        }
    }

    /// Opens a stream from a machine to an address such as `node-1:7420`.
    pub(super) fn connect(&self, from: MachineId, address: &str) -> Connecting {
        let Some(to) = machine_of(address) else {
            return Box::pin(std::future::ready(Err(io::Error::other(format!("{address} is no machine")))));
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

/// The numbers of a stream's pipes, as one of its ends sees them.
#[derive(Clone, Copy)]
struct Wire {
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
    wire: Wire,
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
        let room = WINDOW_BYTES.saturating_sub(pipe.bytes_under_way + pipe.arrived.len());
        if room == 0 {
            pipe.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        let count = room.min(bytes.len());
        inner.send(self.wire.write, Parcel::Bytes(bytes[..count].to_vec()));
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.network.inner().send(self.wire.write, Parcel::End);
        Poll::Ready(Ok(()))
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let mut inner = self.network.inner();
        inner.send(self.wire.write, Parcel::End);
        if let Some(pipe) = inner.pipes.get_mut(&self.wire.write) {
            pipe.has_writer = false;
        }
        if let Some(pipe) = inner.pipes.get_mut(&self.wire.read) {
            pipe.has_reader = false;
        }
    }
}
