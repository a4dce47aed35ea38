//! Entries from the leader to a follower as frames straight on TCP, each behind its length: no HTTP/2 and none of its tasks are
//! between openraft and the socket. See docs/adr/0015-entries-on-tcp.md.

use std::io;
use std::pin::pin;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::{Stream, StreamExt};
use lockkeeper_proto::frame::{self, MEMBERS_GREETING};
use lockkeeper_proto::{net, peer};
use prost::Message;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::{Code, Status};

use super::MESSAGE_BYTES_MAX;
use super::dial::{CONNECT_WITHIN, Dialer, STALLED_AFTER};

/// What is read at once.
const READ_BYTES: usize = 16 << 10;
/// Most answers that go in one packet.
const MESSAGES_AT_ONCE: usize = 64;
/// A connection on which nothing goes is probed after this time, and given up if nobody answers: the next entry would
/// have to find out that the way is cut.
const SILENT_AFTER: Duration = Duration::from_secs(5);
const PROBE_EVERY: Duration = Duration::from_secs(1);

type Reader = Box<dyn AsyncRead + Send + Unpin>;
type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// Both halves of a connection, by which members have greeted each other.
pub(super) struct Direct {
    incoming: Incoming,
    outgoing: Outgoing,
}

impl Direct {
    fn new(stream: net::Stream) -> Direct {
        let (reader, writer): (Reader, Writer) = match stream {
            net::Stream::Tcp(stream) => {
                let (reader, writer) = stream.into_split();
                (Box::new(reader), Box::new(writer))
            }
            net::Stream::Other(stream) => {
                let (reader, writer) = tokio::io::split(stream);
                (Box::new(reader), Box::new(writer))
            }
        };
        let incoming = Incoming { reader, buffer: BytesMut::new() };
        Direct { incoming, outgoing: Outgoing { writer, out: BytesMut::new(), is_flushed: true } }
    }

    /// Connects to a member and greets it.
    pub(super) async fn open(dialer: &Dialer, address: &str) -> io::Result<Direct> {
        let greeted = async {
            let mut direct = Direct::new(dialer.connect(address, None, probe).await?);
            direct.greet().await?;
            direct.expect_greeting().await?;
            io::Result::Ok(direct)
        };
        timeout(CONNECT_WITHIN, greeted).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }

    /// Takes in a leader who has been recognised by its greeting.
    pub(super) async fn accept(stream: net::Stream) -> io::Result<(Incoming, Outgoing)> {
        let mut direct = Direct::new(stream);
        direct.expect_greeting().await?;
        direct.greet().await?;
        Ok((direct.incoming, direct.outgoing))
    }

    async fn greet(&mut self) -> io::Result<()> {
        self.outgoing.writer.write_all(MEMBERS_GREETING).await?;
        self.outgoing.writer.flush().await
    }

    async fn expect_greeting(&mut self) -> io::Result<()> {
        let mut greeting = [0; MEMBERS_GREETING.len()];
        self.incoming.reader.read_exact(&mut greeting).await?;
        match &greeting == MEMBERS_GREETING {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::InvalidData, "a member answers with something else")),
        }
    }
}

/// The leader's end: requests go out as they come, and answers come back.
pub(super) struct Exchange<Requests> {
    direct: Direct,
    requests: Requests,
    /// Whether there may be more of them.
    goes_on: bool,
    /// Each request has one answer.
    unanswered: usize,
}

impl<Requests: Stream<Item = peer::AppendRequest> + Unpin> Exchange<Requests> {
    pub(super) fn new(direct: Direct, requests: Requests) -> Exchange<Requests> {
        Exchange { direct, requests, goes_on: true, unanswered: 0 }
    }

    /// Sends requests until there is an answer; `None` when all are answered and there are no more, or the member has ended
    /// the stream. Cancel-safe.
    pub(super) async fn next_answer(&mut self) -> Result<Option<peer::AppendAnswer>, Status> {
        let Exchange { direct: Direct { incoming, outgoing }, requests, goes_on, unanswered } = self;
        loop {
            // Not told to the member by closing our half: whatever is between us may take that for the end of both.
            if !*goes_on && *unanswered == 0 {
                return Ok(None);
            }
            let has_room = outgoing.is_written();
            tokio::select! {
                biased;
                written = outgoing.write(), if !has_room => written.map_err(gone)?,
                request = requests.next(), if has_room && *goes_on => match request {
                    Some(request) => {
                        outgoing.push(&request);
                        *unanswered += 1;
                    }
                    None => *goes_on = false,
                },
                answer = incoming.next::<peer::AppendAnswer>() => {
                    *unanswered = unanswered.saturating_sub(1);
                    return match answer.map_err(gone)? {
                        Some(last) if !last.refused.is_empty() => {
                            Err(Status::new(Code::from_i32(last.code), last.refused))
                        }
                        answer => Ok(answer),
                    };
                }
            }
        }
    }
}

/// The half that is read.
pub(super) struct Incoming {
    reader: Reader,
    buffer: BytesMut,
}

impl Incoming {
    /// The next message; `None` at the end. Cancel-safe: what was read stays in the buffer.
    pub(super) async fn next<M: Message + Default>(&mut self) -> io::Result<Option<M>> {
        loop {
            let message = frame::decode(&mut self.buffer, MESSAGE_BYTES_MAX)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            if message.is_some() {
                return Ok(message);
            }
            self.buffer.reserve(READ_BYTES);
            if self.reader.read_buf(&mut self.buffer).await? == 0 {
                return match self.buffer.is_empty() {
                    true => Ok(None),
                    false => Err(io::ErrorKind::UnexpectedEof.into()),
                };
            }
        }
    }
}

/// The half that is written.
pub(super) struct Outgoing {
    writer: Writer,
    /// Frames that are not written yet.
    out: BytesMut,
    is_flushed: bool,
}

impl Outgoing {
    /// Adds a message to what is to be written.
    pub(super) fn push(&mut self, message: &impl Message) {
        frame::encode(message, &mut self.out);
        self.is_flushed = false;
    }

    fn is_written(&self) -> bool {
        self.out.is_empty() && self.is_flushed
    }

    /// Writes these as they come. Those that are there at the same time go in one packet.
    pub(super) async fn write_all(&mut self, messages: impl Stream<Item = impl Message>) -> io::Result<()> {
        let mut messages = pin!(messages.ready_chunks(MESSAGES_AT_ONCE));
        while let Some(some) = messages.next().await {
            some.iter().for_each(|message| self.push(message));
            self.write().await?;
        }
        Ok(())
    }

    /// Writes all of it. Cancel-safe: what was written is gone from the buffer.
    pub(super) async fn write(&mut self) -> io::Result<()> {
        while !self.out.is_empty() {
            if self.writer.write_buf(&mut self.out).await? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        self.writer.flush().await?;
        self.is_flushed = true;
        Ok(())
    }
}

fn gone(error: io::Error) -> Status {
    Status::unavailable(format!("the connection is gone: {error}"))
}

/// Has the system find out that the way is cut while nothing goes on it.
fn probe(stream: &TcpStream) {
    let probed = sockopt::set_socket_keepalive(stream, true)
        .and_then(|()| sockopt::set_tcp_keepidle(stream, SILENT_AFTER))
        .and_then(|()| sockopt::set_tcp_keepintvl(stream, PROBE_EVERY))
        .and_then(|()| sockopt::set_tcp_keepcnt(stream, STALLED_AFTER.as_secs() as u32));
    if let Err(error) = probed {
        tracing::debug!(%error, "a connection is not probed");
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::FutureExt;
    use tokio::io::DuplexStream;
    use tokio::sync::mpsc;
    use tokio_stream::wrappers::ReceiverStream;

    use super::*;

    type Requests = ReceiverStream<peer::AppendRequest>;

    fn request(body: &[u8]) -> peer::AppendRequest {
        peer::AppendRequest { body: Bytes::copy_from_slice(body), ..Default::default() }
    }

    fn answer(body: &'static [u8]) -> peer::AppendAnswer {
        peer::AppendAnswer { body: Bytes::from_static(body), ..Default::default() }
    }

    fn on(stream: DuplexStream) -> Direct {
        Direct::new(net::Stream::Other(Box::new(stream)))
    }

    /// A leader with its requests, and its follower, with room for so many bytes between them.
    fn pair(room: usize) -> (mpsc::Sender<peer::AppendRequest>, Exchange<Requests>, Incoming, Outgoing) {
        let (one, other) = tokio::io::duplex(room);
        let (sender, requests) = mpsc::channel(8);
        let Direct { incoming, outgoing } = on(other);
        (sender, Exchange::new(on(one), ReceiverStream::new(requests)), incoming, outgoing)
    }

    #[tokio::test]
    async fn requests_go_out_before_the_first_is_answered_and_answers_come_in_order() {
        let (sender, mut leader, mut incoming, mut outgoing) = pair(1 << 16);
        for body in [b"one", b"two"] {
            sender.send(request(body)).await.unwrap();
        }
        assert!(leader.next_answer().now_or_never().is_none(), "nothing is answered yet");
        for body in [&b"one"[..], b"two"] {
            assert_eq!(incoming.next::<peer::AppendRequest>().await.unwrap().unwrap().body, body);
        }
        outgoing.push(&answer(b"first"));
        outgoing.write().await.unwrap();
        assert_eq!(leader.next_answer().await.unwrap(), Some(answer(b"first")));
        // The end of the requests ends the stream, but not before all are answered: until then the member sees no end.
        drop(sender);
        assert!(leader.next_answer().now_or_never().is_none());
        assert!(incoming.next::<peer::AppendRequest>().now_or_never().is_none());
        outgoing.push(&answer(b"second"));
        outgoing.write().await.unwrap();
        assert_eq!(leader.next_answer().await.unwrap(), Some(answer(b"second")));
        assert_eq!(leader.next_answer().await.unwrap(), None);
        drop(leader);
        assert!(incoming.next::<peer::AppendRequest>().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_follower_that_does_not_read_is_sent_one_request_and_no_more_are_taken() {
        let (sender, mut leader, mut incoming, _outgoing) = pair(64);
        for _ in 0..3 {
            sender.send(request(&[7; 1_000])).await.unwrap();
        }
        assert!(leader.next_answer().now_or_never().is_none());
        assert_eq!(sender.capacity(), 6, "one is on its way, two wait");
        // Broken off in the middle of a frame again and again, it goes on where it was.
        for _ in 0..3 {
            let request = loop {
                assert!(leader.next_answer().now_or_never().is_none());
                if let Some(request) = incoming.next::<peer::AppendRequest>().now_or_never() {
                    break request.unwrap().unwrap();
                }
            };
            assert_eq!(request.body, vec![7; 1_000]);
        }
    }

    /// openraft's stream of answers ends right behind one that says that the leader is deposed, and must not be asked again.
    #[tokio::test]
    async fn answers_go_together_and_their_end_is_asked_for_once() {
        let (_sender, mut leader, _incoming, mut outgoing) = pair(1 << 16);
        let bodies = [&b"one"[..], b"two"];
        let answers = futures_util::stream::unfold(0, |place| async move {
            bodies.get(place).map(|body| (answer(body), place + 1))
        });
        outgoing.write_all(answers).await.unwrap();
        drop((_incoming, outgoing));
        for body in bodies {
            assert_eq!(leader.next_answer().await.unwrap(), Some(answer(body)));
        }
        assert_eq!(leader.next_answer().await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_refusal_arrives_with_its_code_and_its_words() {
        let (_sender, mut leader, _incoming, mut outgoing) = pair(1 << 16);
        let refused = peer::AppendAnswer {
            refused: "another cell".to_owned(),
            code: Code::FailedPrecondition as i32,
            ..Default::default()
        };
        outgoing.push(&refused);
        outgoing.write().await.unwrap();
        let status = leader.next_answer().await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, "another cell"));
    }

    #[tokio::test]
    async fn an_end_within_a_frame_is_no_end() {
        let (_sender, mut leader, _incoming, mut outgoing) = pair(1 << 16);
        outgoing.push(&answer(b"cut"));
        outgoing.out.truncate(6);
        outgoing.write().await.unwrap();
        drop((_incoming, outgoing));
        assert_eq!(leader.next_answer().await.unwrap_err().code(), Code::Unavailable);
    }

    #[tokio::test]
    async fn both_must_greet_as_members() {
        let (one, mut other) = tokio::io::duplex(64);
        other.write_all(b"LKSTRM1\n").await.unwrap();
        let refused = Direct::accept(net::Stream::Other(Box::new(one))).await.err().expect("refused");
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
    }
}
