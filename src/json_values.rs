//! Values in the admin API's JSON: tokens as strings, since numbers lose digits there; moments as
//! RFC 3339 in UTC, in milliseconds.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::routing::{ResourceKey, Token, TokenFormat};

impl Serialize for Token {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let token = TokenFormat::Decimal.parse(text.as_bytes());
        token.map_err(D::Error::custom)
    }
}

impl Serialize for ResourceKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ResourceKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// The wall clock, which jumps: for operators to read, and nothing in fencing may rest on it.
pub fn wall_clock() -> SystemTime {
    #[expect(clippy::disallowed_methods, reason = "the one place that may")]
    SystemTime::now()
}

/// A moment in milliseconds since the epoch. Years outside 1970 to 9999 are clamped.
pub fn rfc3339_ms(ms_since_epoch: i64) -> String {
    const LAST: u64 = 253_402_300_799_999;
    let ms = u64::try_from(ms_since_epoch).unwrap_or(0).min(LAST);
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(ms)).to_string()
}

/// As [`rfc3339_ms`].
pub fn rfc3339(at: SystemTime) -> String {
    let since_epoch = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    rfc3339_ms(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
}

/// For `serde(with)`: a time, as RFC 3339.
pub mod time {
    use std::time::SystemTime;

    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(at: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::rfc3339(*at))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<SystemTime, D::Error> {
        humantime::parse_rfc3339(&String::deserialize(d)?).map_err(D::Error::custom)
    }
}

/// For `serde(with)`: milliseconds since the epoch, as RFC 3339.
pub mod moment {
    use std::time::UNIX_EPOCH;

    use serde::{Deserializer, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    pub fn serialize<S: Serializer>(ms: &i64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::rfc3339_ms(*ms))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
        let since_epoch = super::time::deserialize(deserializer)?.duration_since(UNIX_EPOCH);
        let ms = since_epoch.unwrap_or_default().as_millis();
        Ok(i64::try_from(ms).unwrap_or(i64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        assert_eq!(rfc3339_ms(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339_ms(1_700_000_000_123), "2023-11-14T22:13:20.123Z");
        assert_eq!(rfc3339_ms(-5), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339_ms(i64::MAX), "9999-12-31T23:59:59.999Z");
    }
}
