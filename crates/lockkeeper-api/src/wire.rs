//! Conversions between the types of this crate and protobuf messages. Naming common fields once generates both
//! directions.

use std::time::Duration;

use lockkeeper_core::Mode;

use crate::v1;

/// A type with a representation in protobuf messages.
pub(crate) trait Wire<W>: Sized {
    fn into_wire(self) -> W;
    fn from_wire(wire: W) -> Self;
}

macro_rules! same {
    ($($plain:ty)*) => {$(
        impl Wire<$plain> for $plain {
            fn into_wire(self) -> $plain {
                self
            }
            fn from_wire(wire: $plain) -> $plain {
                wire
            }
        }
    )*};
}
same!(u8 u32 u64 bool String);

impl<W, T: Wire<W>> Wire<Vec<W>> for Vec<T> {
    fn into_wire(self) -> Vec<W> {
        self.into_iter().map(T::into_wire).collect()
    }
    fn from_wire(wire: Vec<W>) -> Vec<T> {
        wire.into_iter().map(T::from_wire).collect()
    }
}

impl<W, T: Wire<W>> Wire<Option<W>> for Option<T> {
    fn into_wire(self) -> Option<W> {
        self.map(T::into_wire)
    }
    fn from_wire(wire: Option<W>) -> Option<T> {
        wire.map(T::from_wire)
    }
}

/// Absent is the empty text.
impl Wire<String> for Option<String> {
    fn into_wire(self) -> String {
        self.unwrap_or_default()
    }
    fn from_wire(wire: String) -> Option<String> {
        (!wire.is_empty()).then_some(wire)
    }
}

/// Absent is 0.
impl Wire<u64> for Option<u64> {
    fn into_wire(self) -> u64 {
        self.unwrap_or_default()
    }
    fn from_wire(wire: u64) -> Option<u64> {
        (wire != 0).then_some(wire)
    }
}

/// Durations are milliseconds.
impl Wire<u64> for Duration {
    fn into_wire(self) -> u64 {
        u64::try_from(self.as_millis()).unwrap_or(u64::MAX)
    }
    fn from_wire(wire: u64) -> Duration {
        Duration::from_millis(wire)
    }
}

impl Wire<i32> for Mode {
    fn into_wire(self) -> i32 {
        match self {
            Mode::Exclusive => v1::Mode::Exclusive.into(),
            Mode::Shared => v1::Mode::Shared.into(),
        }
    }
    fn from_wire(wire: i32) -> Mode {
        if wire == v1::Mode::Shared as i32 { Mode::Shared } else { Mode::Exclusive }
    }
}

/// The mode as a word, for events that may have none.
impl Wire<String> for Option<Mode> {
    fn into_wire(self) -> String {
        self.map(Mode::as_str).unwrap_or_default().to_owned()
    }
    fn from_wire(wire: String) -> Option<Mode> {
        wire.parse().ok()
    }
}

/// `string_enum!(Name { Variant = "word" })` declares an enum that is a string in JSON and in protobuf messages. A string of
/// a newer version is kept as `Other`.
macro_rules! string_enum {
    ($(#[$about:meta])* $name:ident { $($(#[doc = $doc:literal])+ $variant:ident = $word:literal,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[doc = $doc])+ $variant,)*
            /// A word that this version does not know.
            Other(smol_str::SmolStr),
        }

        impl $name {
            /// The word in JSON and in protobuf messages.
            pub fn as_str(&self) -> &str {
                match self {
                    $($name::$variant => $word,)*
                    $name::Other(word) => word,
                }
            }
        }

        impl From<&str> for $name {
            fn from(word: &str) -> $name {
                match word {
                    $($word => $name::$variant,)*
                    other => $name::Other(other.into()),
                }
            }
        }

        impl $crate::wire::Wire<String> for $name {
            fn into_wire(self) -> String {
                self.as_str().to_owned()
            }
            fn from_wire(wire: String) -> $name {
                wire.as_str().into()
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }
    };
}
pub(crate) use string_enum;

/// `mirror!(Ours = v1::Theirs { same, fields; ours = theirs })` converts both ways, field by field.
macro_rules! mirror {
    ($ours:ident = $theirs:path { $($same:ident),* $(; $($own:ident = $other:ident),+)? }) => {
        impl $crate::wire::Wire<$theirs> for $ours {
            fn into_wire(self) -> $theirs {
                $theirs {
                    $($same: $crate::wire::Wire::into_wire(self.$same),)*
                    $($($other: $crate::wire::Wire::into_wire(self.$own),)+)?
                }
            }
            fn from_wire(wire: $theirs) -> $ours {
                $ours {
                    $($same: $crate::wire::Wire::from_wire(wire.$same),)*
                    $($($own: $crate::wire::Wire::from_wire(wire.$other),)+)?
                }
            }
        }

        impl From<$ours> for $theirs {
            fn from(ours: $ours) -> $theirs {
                $crate::wire::Wire::into_wire(ours)
            }
        }

        impl From<$theirs> for $ours {
            fn from(wire: $theirs) -> $ours {
                $crate::wire::Wire::from_wire(wire)
            }
        }
    };
}
pub(crate) use mirror;

/// `answers!(pattern => Type as value)` converts an answer to the type that a call returns.
macro_rules! answers {
    ($($pattern:pat => $type:ty as $value:expr;)*) => {$(
        impl TryFrom<$crate::request::Answer> for $type {
            type Error = $crate::request::WrongAnswer;

            fn try_from(answer: $crate::request::Answer) -> Result<$type, $crate::request::WrongAnswer> {
                match answer {
                    $pattern => Ok($value),
                    other => Err(other.into()),
                }
            }
        }
    )*};
}
pub(crate) use answers;
