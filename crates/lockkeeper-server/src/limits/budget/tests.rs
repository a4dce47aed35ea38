use super::*;

#[test]
fn unread_bytes_stop_the_reads_of_their_connection_only() {
    let budgets = Budgets::default();
    let (one, other) = (ConnectionBudget::default(), ConnectionBudget::default());
    let greedy = budgets.of(&one, Some("a".into()));
    let mut charge = greedy.charge(CONNECTION_BYTES_MAX);
    assert!(greedy.check_read().is_err());
    assert!(budgets.of(&other, Some("a".into())).check_read().is_ok());
    charge.shrink(1);
    assert!(greedy.check_read().is_ok());
}

#[test]
fn unread_bytes_on_all_connections_stop_the_reads_of_their_identity_only() {
    let budgets = Budgets::default();
    let fill = |_| budgets.of(&ConnectionBudget::default(), None).charge(1 << 20);
    let charges: Vec<Charge> = (0..IDENTITY_BYTES_MAX >> 20).map(fill).collect();
    let fresh = ConnectionBudget::default();
    assert!(budgets.of(&fresh, None).check_read().is_err());
    assert!(budgets.of(&fresh, Some("other".into())).check_read().is_ok());
    drop(charges);
    assert!(budgets.of(&fresh, None).check_read().is_ok());
}

#[tokio::test(start_paused = true)]
async fn client_that_reads_nothing_is_stalled_and_one_that_reads_slowly_is_not() {
    let connection = ConnectionBudget::default();
    let idle = tokio::time::timeout(STALLED_FOR * 10, connection.stalled()).await;
    assert!(idle.is_err(), "nothing is queued");
    let mut charge = Budgets::default().of(&connection, None).charge(100);
    let slow = async {
        for _ in 0..20 {
            tokio::time::sleep(STALLED_FOR / 2).await;
            charge.shrink(1);
        }
    };
    tokio::select! {
        () = slow => {}
        () = connection.stalled() => panic!("the client reads"),
    }
    let stalled = tokio::time::timeout(STALLED_FOR * 2, connection.stalled()).await;
    assert!(stalled.is_ok(), "the client has stopped reading");
}

#[tokio::test(start_paused = true)]
async fn client_that_sends_requests_and_reads_nothing_is_stalled() {
    let connection = ConnectionBudget::default();
    let budget = Budgets::default().of(&connection, None);
    let _answer = budget.charge(100);
    let requests = async {
        loop {
            let mut request = budget.begin_request();
            budget.charge_request(&mut request, 10).unwrap();
            tokio::time::sleep(STALLED_FOR / 10).await;
        }
    };
    tokio::select! {
        () = requests => {}
        () = connection.stalled() => {}
        () = tokio::time::sleep(STALLED_FOR * 2) => panic!("the client reads nothing"),
    }
}

#[test]
fn streams_of_reflection_are_limited() {
    let (budgets, connection) = (Budgets::default(), ConnectionBudget::default());
    let budget = budgets.of(&connection, None);
    let admit = |_| budget.admit_reflection().unwrap();
    let seats: Vec<_> = (0..REFLECTIONS_PER_CONNECTION_MAX).map(admit).collect();
    assert!(budget.admit_reflection().is_err());
    drop(seats);
    assert!(budget.admit_reflection().is_ok());
    let everywhere = |_| budgets.of(&ConnectionBudget::default(), None).admit_reflection().unwrap();
    let _seats: Vec<_> = (0..IDENTITY_BYTES_MAX / REFLECTION_BYTES).map(everywhere).collect();
    assert!(budget.admit_reflection().is_err(), "all connections together have a limit, too");
}
