use lockkeeper_core::Token;

use super::*;

fn next_frame(connection: &Connection) -> v1::ServerFrame {
    let mut context = Context::from_waker(Waker::noop());
    match connection.poll_frame(&mut context) {
        Poll::Ready(Some(frame)) => frame,
        other => panic!("no frame: {other:?}"),
    }
}

fn value(bytes: usize) -> v1::answer::Kind {
    v1::answer::Kind::Value(v1::Value { value: vec![1; bytes], ..Default::default() })
}

#[test]
fn frames_stay_below_the_size_that_clients_accept() {
    let connection = Connection::default();
    for id in 0..200 {
        connection.send(id, value(64 * 1024));
    }
    let mut seen = 0;
    while seen < 200 {
        let frame = next_frame(&connection);
        assert!(frame.encoded_len() <= FRAME_BYTES_MAX + 1024, "{}", frame.encoded_len());
        assert_eq!(frame.answers[0].id, seen, "in order");
        seen += frame.answers.len() as u64;
    }
}

#[test]
fn unread_bytes_stop_the_intake() {
    let connection = Connection::default();
    for id in 0..31 {
        connection.send(id, value(64 * 1024));
        assert!(matches!(connection.intake(), Intake::Open { .. }), "{id}");
    }
    connection.send(31, value(64 * 1024));
    assert_eq!(connection.intake(), Intake::Behind);
    next_frame(&connection);
    assert!(matches!(connection.intake(), Intake::Open { .. }));
    while !matches!(connection.intake(), Intake::Open { bytes_queued: 0 }) {
        next_frame(&connection);
    }
}

#[test]
fn answer_larger_than_a_frame_is_sent_alone() {
    let connection = Connection::default();
    connection.send(1, value(FRAME_BYTES_MAX + 1));
    connection.send(2, value(1));
    assert_eq!(next_frame(&connection).answers.len(), 1);
    assert_eq!(next_frame(&connection).answers.len(), 1);
}

#[test]
fn an_event_does_not_overtake_the_answers_before_it() {
    let connection = Connection::default();
    for id in 0..(ITEMS_PER_FRAME_MAX as u64 + 1) {
        connection.send(id, v1::answer::Kind::Done(v1::Done {}));
    }
    assert_eq!(connection.intake(), Intake::Behind);
    connection.grant_lost(SessionId(1), &"db".into(), Token(1), Freed::Forced);
    let (first, second) = (next_frame(&connection), next_frame(&connection));
    assert_eq!((first.answers.len(), first.events.len()), (ITEMS_PER_FRAME_MAX, 0));
    assert_eq!((second.answers.len(), second.events.len()), (1, 1));
}

/// Ten times as many unread answers cost at most twelve times as much to write. Moving the rest of a queue for each frame
/// would allocate it again.
#[test]
fn frames_of_a_long_queue_cost_what_they_contain() {
    // The last frame takes the queue as it is, and costs nothing.
    const FEW: u64 = 10 * ITEMS_PER_FRAME_MAX as u64;
    let bytes = |count: u64| {
        let connection = Connection::default();
        for id in 0..count {
            connection.send(id, v1::answer::Kind::Done(v1::Done {}));
        }
        let mut written = 0;
        let counted = allocation_counter::measure(|| {
            while written < count {
                written += next_frame(&connection).answers.len() as u64;
            }
        });
        assert!(counted.bytes_total > 0, "nothing was counted");
        counted.bytes_total
    };
    let (few, many) = (bytes(FEW), bytes(10 * FEW));
    assert!(many <= 12 * few, "{few} bytes allocated for {FEW} answers, {many} for ten times as many");
}
