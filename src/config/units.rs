//! Units in the configuration: durations (`250ms`, `5s`, `1m`), sizes (`512KiB`, `1MiB`, plain
//! bytes), `none` for no limit, `off` for a feature that is not wanted.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use super::problems::shown;

/// No duration is longer, so that every deadline can be computed.
const LONGEST: Duration = Duration::from_hours(365 * 24);

/// A duration with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time(pub Duration);

impl Time {
    fn parse<E: Error>(text: &str) -> Result<Self, E> {
        let spelled = "write a number and its unit: 250ms, 5s, 1m, 1h";
        if text.bytes().all(|b| b.is_ascii_digit()) && text != "0" && !text.is_empty() {
            return Err(E::custom(format_args!(
                "{} has no unit\nis it {text}s?",
                shown(text)
            )));
        }
        match humantime::parse_duration(text) {
            Ok(duration) if duration <= LONGEST => Ok(Self(duration)),
            Ok(_) => Err(E::custom(format_args!(
                "{} is longer than a year",
                shown(text)
            ))),
            Err(_) => Err(E::custom(format_args!(
                "{} is not a duration\n{spelled}",
                shown(text)
            ))),
        }
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&text(deserializer, "a duration such as 5s")?)
    }
}

impl JsonSchema for Time {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "A duration with its unit: 250ms, 5s, 1m, 1h.",
            "pattern": r"^\s*([0-9]+\s*[a-zA-Z]+\s*)+$",
        })
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl Size {
    fn parse<E: Error>(text: &str) -> Result<Self, E> {
        text.parse::<bytesize::ByteSize>()
            .map(|size| Self(size.as_u64()))
            .map_err(|_| {
                E::custom(format_args!(
                    "{} is not a size\nwrite bytes as a plain number, or with a unit: 512KiB, 1MiB",
                    shown(text)
                ))
            })
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&text(deserializer, "a size such as 1MiB")?)
    }
}

impl JsonSchema for Size {
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": ["string", "integer"],
            "description": "Bytes, plain or with a unit: 1048576, 512KiB, 1MiB.",
            "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*[a-zA-Z]*\s*$",
            "minimum": 0,
        })
    }
}

/// The mode of a file: `0660`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileMode(pub u32);

impl<'de> Deserialize<'de> for FileMode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = text(deserializer, "a mode such as 0660")?;
        let octal = matches!(text.len(), 3 | 4) && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
        match u32::from_str_radix(&text, 8) {
            Ok(mode) if octal && mode <= 0o777 => Ok(Self(mode)),
            _ => Err(D::Error::custom(format_args!(
                "{} is not a mode\nwrite three octal digits, or four with a 0 before them: 0660",
                shown(&text)
            ))),
        }
    }
}

impl JsonSchema for FileMode {
    fn schema_name() -> Cow<'static, str> {
        "FileMode".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": ["string", "integer"],
            "description": "The mode of a file, in octal digits: 0660.",
            "pattern": "^0?[0-7]{3}$",
            "minimum": 0,
        })
    }
}

/// A number of bytes, or `none` for as many as come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit(pub Option<u64>);

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = text(deserializer, "a size such as 10MiB, or none")?;
        if text == "none" {
            return Ok(Self(None));
        }
        Size::parse(&text).map(|size| Self(Some(size.0)))
    }
}

impl JsonSchema for Limit {
    fn schema_name() -> Cow<'static, str> {
        "SizeOrNone".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": ["string", "integer"],
            "description": "Bytes, plain or with a unit (10MiB), or none for no limit.",
            "pattern": r"^(none|\s*[0-9]+(\.[0-9]+)?\s*[a-zA-Z]*\s*)$",
            "minimum": 0,
        })
    }
}

/// How many there may be, or `none` for as many as come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountOrNone(pub Option<u64>);

impl<'de> Deserialize<'de> for CountOrNone {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = text(deserializer, "a number such as 100, or none")?;
        if text == "none" {
            return Ok(Self(None));
        }
        let count = text.parse().map_err(|_| {
            D::Error::custom(format_args!(
                "{} is not a number\nwrite a whole number, or none",
                shown(&text)
            ))
        })?;
        Ok(Self(Some(count)))
    }
}

impl JsonSchema for CountOrNone {
    fn schema_name() -> Cow<'static, str> {
        "CountOrNone".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": ["string", "integer"],
            "description": "A whole number, or none for no limit.",
            "pattern": r"^(none|[0-9]+)$",
            "minimum": 0,
        })
    }
}

/// A block of fields, or `off`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OffOr<T> {
    Off,
    On(T),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OffOr<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OffOrVisitor(PhantomData))
    }
}

struct OffOrVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for OffOrVisitor<T> {
    type Value = OffOr<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("off or a map of fields")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<OffOr<T>, E> {
        if text == "off" {
            return Ok(OffOr::Off);
        }
        Err(E::invalid_type(serde::de::Unexpected::Str(text), &self))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<OffOr<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(OffOr::On)
    }
}

impl<T: JsonSchema> JsonSchema for OffOr<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("{}OrOff", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let on = generator.subschema_for::<T>();
        json_schema!({ "anyOf": [{ "const": "off" }, on] })
    }
}

/// A text that may hold a password. It is never shown.
#[derive(Clone, PartialEq, Eq, serde::Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Hidden(pub String);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hidden(…)")
    }
}

/// Takes a scalar as its text.
fn text<'de, D: Deserializer<'de>>(
    deserializer: D,
    expected: &'static str,
) -> Result<String, D::Error> {
    struct TextVisitor(&'static str);

    impl Visitor<'_> for TextVisitor {
        type Value = String;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }

        fn visit_str<E>(self, text: &str) -> Result<String, E> {
            Ok(text.trim().to_owned())
        }
    }

    deserializer.deserialize_str(TextVisitor(expected))
}

#[cfg(test)]
mod tests {
    use serde::de::IntoDeserializer;
    use serde::de::value::{Error as ValueError, StrDeserializer};

    use super::*;

    fn take<'de, T: Deserialize<'de>>(text: &'de str) -> Result<T, String> {
        let text: StrDeserializer<'de, ValueError> = text.into_deserializer();
        T::deserialize(text).map_err(|error| error.to_string())
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(take("250ms"), Ok(Time(Duration::from_millis(250))));
        assert_eq!(take("1m 30s"), Ok(Time(Duration::from_secs(90))));
        assert_eq!(take("0s"), Ok(Time(Duration::ZERO)));
        assert!(take::<Time>("5").is_err_and(|error| error.contains("is it 5s?")));
        for bad in [
            "",
            "-1s",
            "5 parsecs",
            "s",
            "1.5.s",
            "99999999999999999999s",
            "2y",
        ] {
            assert!(take::<Time>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_bytes_or_have_a_unit() {
        assert_eq!(take("1048576"), Ok(Size(1 << 20)));
        assert_eq!(take("1MiB"), Ok(Size(1 << 20)));
        assert_eq!(take("512KiB"), Ok(Size(512 << 10)));
        assert_eq!(take("1MB"), Ok(Size(1_000_000)));
        assert_eq!(take("none"), Ok(Limit(None)));
        assert_eq!(take("0"), Ok(Limit(Some(0))));
        assert_eq!(take("7"), Ok(CountOrNone(Some(7))));
        assert_eq!(take("none"), Ok(CountOrNone(None)));
        assert!(take::<CountOrNone>("1MiB").is_err());
        for bad in ["", "-1", "none", "1 mile", "MiB"] {
            assert!(take::<Size>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_hidden_text_is_not_in_its_debug_output() {
        assert!(!format!("{:?}", Hidden("sesame".into())).contains("sesame"));
    }
}
