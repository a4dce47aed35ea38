//! The rules that need no server.

use super::{Queued, Shape, earlier_units, escape, state_of, unescape};
use crate::mode::Mode;

const SHARED: Shape = Shape { mode: Mode::Shared, units: 1, capacity: u32::MAX };
const TWO_OF_THREE: Shape = Shape { mode: Mode::Exclusive, units: 2, capacity: 3 };

#[test]
fn a_shape_is_read_back_from_the_name_of_an_entry() {
    for shape in [Shape::EXCLUSIVE, SHARED, TWO_OF_THREE] {
        assert_eq!(shape.to_string().parse(), Ok(shape), "{shape}");
    }
    for text in ["", "y", "c", "cx", "c3x", "c3.x", "c.2x", "ä"] {
        assert_eq!(text.parse::<Shape>(), Err(()), "{text}");
    }
}

#[test]
fn nobody_overtakes_one_who_waits() {
    let fits = |mine: Shape, earlier: &[Shape]| {
        mine.fits_behind(earlier_units(mine, earlier.iter().copied()).unwrap())
    };
    assert!(fits(Shape::EXCLUSIVE, &[]) && fits(SHARED, &[SHARED, SHARED]));
    assert!(!fits(Shape::EXCLUSIVE, &[SHARED]) && !fits(SHARED, &[Shape::EXCLUSIVE]));
    // The writer waits behind a reader: the next reader waits behind the writer.
    assert!(!fits(SHARED, &[SHARED, Shape::EXCLUSIVE]));
    let one = Shape { units: 1, ..TWO_OF_THREE };
    assert!(fits(one, &[TWO_OF_THREE]) && !fits(TWO_OF_THREE, &[TWO_OF_THREE]));
    // Two of three wait behind two of three: one would fit, but came later.
    assert!(!fits(one, &[TWO_OF_THREE, TWO_OF_THREE]));
}

#[test]
fn another_capacity_is_refused() {
    assert_eq!(earlier_units(SHARED, [TWO_OF_THREE]).unwrap_err().code(), "invalid");
}

#[test]
fn every_name_is_one_segment_and_comes_back() {
    for name in ["a/b", ".", "..", "100%", "%2F", "größe", "a b", "?#", "\\", "\u{1F512}"] {
        let escaped = escape(name);
        assert!(escaped.is_ascii() && !escaped.contains(['/', ' ', '?', '#']), "{escaped}");
        assert!(!escaped.starts_with('.'), "{escaped}");
        assert_eq!(unescape(&escaped).as_deref(), Some(name));
    }
    // What a name begins with, its escaped form begins with.
    assert!(escape("orders/4472").starts_with(&escape("orders/")));
}

#[test]
fn a_queue_shows_holders_first_and_then_who_waits() {
    let entry = |shape, token| Queued {
        session: "s".to_owned(),
        owner: "o".to_owned(),
        shape,
        token,
        since: std::time::Duration::ZERO,
    };
    let state =
        state_of("a", &[entry(SHARED, 3), entry(SHARED, 5), entry(Shape::EXCLUSIVE, 7), entry(SHARED, 9)]);
    assert_eq!((state.holders.len(), state.waiting, state.last_token), (2, 2, 5));
    assert_eq!((state.queue[0].position, state.queue[0].mode), (1, Mode::Exclusive));
}
