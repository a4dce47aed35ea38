//! Small values with fenced writes.

use std::fmt;
use std::marker::PhantomData;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use lockkeeper_core::value::StoredValue;
use lockkeeper_core::{Command, Fence as CoreFence, Refusal, Token, limits};
use serde::de::{Deserializer, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Serialize};

use crate::request::{Answer, Call, Done, Request};
use crate::v1;
use crate::wire::answers;

/// A JSON object. Serde's derived implementation for structs would also accept an array.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(transparent))]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Object<T>, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}

/// A fencing condition of a write: the token must be the last one granted for the lock.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Fence {
    /// The lock.
    pub lock: String,
    /// Its token.
    pub token: u64,
}

fn fence(fence: Option<Object<Fence>>) -> Result<Option<CoreFence>, Refusal> {
    let Some(Object(fence)) = fence else { return Ok(None) };
    // A lock with an invalid name has no token.
    limits::check_name("name of the lock", &fence.lock)?;
    Ok(Some(CoreFence { lock: fence.lock.into(), token: Token(fence.token) }))
}

impl From<v1::Fence> for CoreFence {
    fn from(fence: v1::Fence) -> CoreFence {
        CoreFence { lock: fence.lock.into(), token: Token(fence.token) }
    }
}

/// Request to write a value, given as text or in base64.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PutValue {
    /// Its key.
    pub key: String,
    /// Its content as text.
    pub value: Option<String>,
    /// Its content in base64 with padding (RFC 4648).
    pub value_base64: Option<String>,
    /// Write only while this token is the last one of its lock.
    pub fence: Option<Object<Fence>>,
    /// Write only if the value has this version; 0 means that it must not exist.
    pub if_version: Option<u64>,
}

/// The answer to a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Written {
    /// Its new version.
    pub version: u64,
}

crate::wire::mirror!(Written = v1::PutValueResponse { version });

impl Call for PutValue {
    type Answer = Written;
    const EXAMPLE: Option<(&'static str, &'static str)> = Some((
        r#"{"key": "orders/4472/state", "value": "paid", "fence": {"lock": "orders/4472", "token": 42}}"#,
        r#"{"version": 1}"#,
    ));

    fn into_request(self) -> Result<Request, Refusal> {
        let bytes = match (self.value, self.value_base64) {
            (Some(text), None) => text.into_bytes(),
            (None, Some(text)) => BASE64
                .decode(&text)
                .map_err(|_| Refusal::invalid("value_base64 is not base64 with padding (RFC 4648)"))?,
            (None, None) => {
                return Err(Refusal::invalid("missing field `value`: a string, or value_base64"));
            }
            (Some(_), Some(_)) => {
                return Err(Refusal::invalid("value and value_base64 are both given: leave one out"));
            }
        };
        let (key, fence) = (self.key.into(), fence(self.fence)?);
        Ok(Command::PutValue { key, value: bytes.into(), fence, if_version: self.if_version }.into())
    }
}

impl From<v1::PutValueRequest> for Request {
    fn from(request: v1::PutValueRequest) -> Request {
        let v1::PutValueRequest { key, value, fence, if_version } = request;
        let fence = fence.map(CoreFence::from);
        Command::PutValue { key: key.into(), value: value.into(), fence, if_version }.into()
    }
}

/// Request to delete a value.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeleteValue {
    /// Its key.
    pub key: String,
    /// Delete only while this token is the last one of its lock.
    pub fence: Option<Object<Fence>>,
    /// Delete only if the value has this version.
    pub if_version: Option<u64>,
}

impl Call for DeleteValue {
    type Answer = Done;
    const EXAMPLE: Option<(&'static str, &'static str)> =
        Some((r#"{"key": "orders/4472/state", "if_version": 1}"#, "{}"));

    fn into_request(self) -> Result<Request, Refusal> {
        let (key, fence) = (self.key.into(), fence(self.fence)?);
        Ok(Command::DeleteValue { key, fence, if_version: self.if_version }.into())
    }
}

impl From<v1::DeleteValueRequest> for Request {
    fn from(request: v1::DeleteValueRequest) -> Request {
        let v1::DeleteValueRequest { key, fence, if_version } = request;
        let fence = fence.map(CoreFence::from);
        Command::DeleteValue { key: key.into(), fence, if_version }.into()
    }
}

/// Request to read a value.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GetValue {
    /// Its key.
    pub key: String,
}

fn get(key: String) -> Result<Request, Refusal> {
    limits::check_name("key", &key)?;
    Ok(Request::Value(key))
}

impl Call for GetValue {
    type Answer = ValueAsText;

    fn into_request(self) -> Result<Request, Refusal> {
        get(self.key)
    }
}

impl TryFrom<v1::GetValueRequest> for Request {
    type Error = Refusal;

    fn try_from(request: v1::GetValueRequest) -> Result<Request, Refusal> {
        get(request.key)
    }
}

/// A value. A missing value has version 0, so that the version of every read can be used as `if_version`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Value {
    /// Its key.
    pub key: String,
    /// Its content.
    pub bytes: Vec<u8>,
    /// Rises with each write; 0 if there is no such value.
    pub version: u64,
    /// The highest token that wrote it; 0 if none.
    pub token: u64,
}

crate::wire::mirror!(Value = v1::Value { key, version, token; bytes = value });

impl Value {
    /// The value that the lock table stores for a key.
    pub fn new(key: String, stored: Option<&StoredValue>) -> Value {
        let Some(stored) = stored else { return Value { key, ..Value::default() } };
        Value { key, bytes: stored.bytes.to_vec(), version: stored.version, token: stored.token.0 }
    }
}

/// A value in JSON: as text, or in base64.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Value"))]
pub struct ValueAsText {
    /// Its key.
    pub key: String,
    /// Its content; null if the value is missing or not UTF-8.
    pub value: Option<String>,
    /// Its content in base64 if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_base64: Option<String>,
    /// Rises with each write; 0 if there is no such value.
    pub version: u64,
    /// The highest token that wrote it; 0 if none.
    pub token: u64,
}

impl From<Value> for ValueAsText {
    fn from(stored: Value) -> ValueAsText {
        let Value { key, bytes, version, token } = stored;
        let (value, value_base64) = match (version, String::from_utf8(bytes)) {
            (0, _) => (None, None),
            (_, Ok(text)) => (Some(text), None),
            (_, Err(other)) => (None, Some(BASE64.encode(other.as_bytes()))),
        };
        ValueAsText { key, value, value_base64, version, token }
    }
}

answers! {
    Answer::Written(written) => Written as written;
    Answer::Value(value) => ValueAsText as value.into();
    Answer::Done => v1::DeleteValueResponse as Self {};
    Answer::Written(written) => v1::PutValueResponse as written.into();
    Answer::Value(value) => v1::Value as value.into();
    Answer::Value(value) => Value as value;
}
