//! Values of one word: durations (`250ms`, `5s`, `1m`), sizes (`512KiB`, `1MiB`, plain bytes),
//! counts, `none` for no limit, `off` for a feature that is not wanted.
//!
//! A field has such a type, so that a wrong value is refused when it is read, with its hint.
//! humantime and bytesize read durations and sizes.

use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::json;

use super::yaml::{shown, wrong};

/// No duration is longer, so that every deadline can be computed.
const LONGEST: Duration = Duration::from_hours(365 * 24);

/// Lets a type be that of a field: `$parse` reads the field's text. Its error is a message, and
/// after a line break a hint. Without a name and a schema, the schema is that of a text.
macro_rules! word {
    ($type:ty, $parse:expr) => {
        word!({} $type, $parse, "Text", { "type": "string" });
    };
    ($({$($generic:tt)*})? $type:ty, $name:expr, $schema:tt) => {
        word!({$($($generic)*)?} $type, <$type>::parse, $name, $schema);
    };
    ({$($generic:tt)*} $type:ty, $parse:expr, $name:expr, $schema:tt) => {
        impl<'de, $($generic)*> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
                let parsed = $parse(String::deserialize(input)?.trim());
                parsed.map_err(|error: String| serde::de::Error::custom(error))
            }
        }

        impl<$($generic)*> schemars::JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                $name.into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!($schema)
            }
        }
    };
}
pub(super) use word;

/// A duration with its unit; if `POSITIVE`, not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span<const POSITIVE: bool>(pub Duration);

/// A duration that may be zero.
pub type Time = Span<false>;

/// A duration that is not zero.
pub type Positive = Span<true>;

word!({const POSITIVE: bool} Span<POSITIVE>, "Duration", {
    "type": "string",
    "description": "A duration with its unit: 250ms, 5s, 1m, 1h.",
    "pattern": r"^\s*([0-9]+\s*[a-zA-Z]+\s*)+$",
});

impl<const POSITIVE: bool> Span<POSITIVE> {
    #[must_use]
    pub const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let given = shown(text);
        match humantime::parse_duration(text) {
            // To humantime M is a month. A settle time of 5M would hold up a resource until next
            // spring.
            Ok(_) if text.contains('M') => Err(format!(
                "{given} is not a duration\na minute is a small m: is it {}?",
                text.replace('M', "m")
            )),
            Ok(Duration::ZERO) if POSITIVE => Err("must be greater than zero\nsuch as 5s".into()),
            Ok(duration) if duration <= LONGEST => Ok(Self(duration)),
            Ok(_) => Err(format!("{given} is longer than a year")),
            Err(_) if text.parse::<u64>().is_ok() => {
                Err(format!("{given} has no unit\nis it {text}s?"))
            }
            Err(_) => Err(format!(
                "{given} is not a duration\nwrite a number and its unit: 250ms, 5s, 1m, 1h"
            )),
        }
    }
}

/// Writes a default for the schema, in seconds.
impl<const POSITIVE: bool> Serialize for Span<POSITIVE> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}s", self.0.as_secs_f64()))
    }
}

/// Checks the number in `text`. `bounds`: the least and the greatest one, and as they are written.
fn bounded<T: fmt::Display>(text: &str, number: u64, bounds: [(u64, T); 2]) -> Result<u64, String> {
    let [(least, least_written), (most, written)] = bounds;
    match number {
        0 if least == 1 => Err("must be greater than zero".to_owned()),
        number if (least..=most).contains(&number) => Ok(number),
        _ if least > 1 => Err(format!(
            "{text} is out of range\n{least_written} to {written}"
        )),
        _ => Err(format!("{text} is too large\n{written} at most")),
    }
}

/// A number of bytes, from `LEAST` (0 or 1) to `MOST`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size<const LEAST: u64 = 0, const MOST: u64 = { u64::MAX }>(pub u64);

word!({const LEAST: u64, const MOST: u64} Size<LEAST, MOST>, format!("Size{LEAST}To{MOST}"), {
    "type": ["string", "integer"],
    "description": "Bytes, plain or with a unit: 1048576, 512KiB, 1MiB.",
    "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*[a-zA-Z]*\s*$",
    "minimum": LEAST,
    "maximum": MOST,
});

impl<const LEAST: u64, const MOST: u64> Size<LEAST, MOST> {
    pub fn bytes(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let size = text.parse::<bytesize::ByteSize>().map_err(|_| {
            format!(
                "{} is not a size\nwrite bytes as a plain number, or with a unit: 512KiB, 1MiB",
                shown(text)
            )
        })?;
        let bounds = [LEAST, MOST].map(|bound| (bound, Self(bound)));
        bounded(text, size.as_u64(), bounds).map(Self)
    }
}

/// In a unit that it is a multiple of.
impl<const LEAST: u64, const MOST: u64> fmt::Display for Size<LEAST, MOST> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        let is_whole = |(bytes, _): &(u64, _)| self.0 > 1024 && self.0.is_multiple_of(*bytes);
        let (bytes, unit) = units.into_iter().find(is_whole).unwrap_or((1, ""));
        write!(f, "{}{unit}", self.0 / bytes)
    }
}

/// Writes a default for the schema.
impl<const LEAST: u64, const MOST: u64> Serialize for Size<LEAST, MOST> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A number from `LEAST` (at least 1) to `MOST`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Count<const MOST: u64 = { u32::MAX as u64 }, const LEAST: u64 = 1>(pub u64);

/// A status of HTTP or gRPC.
pub type Status<const LEAST: u64, const MOST: u64> = Count<MOST, LEAST>;

word!({const MOST: u64, const LEAST: u64} Count<MOST, LEAST>, format!("Count{LEAST}To{MOST}"), {
    "type": "integer",
    "minimum": LEAST,
    "maximum": MOST,
});

impl<const MOST: u64, const LEAST: u64> Count<MOST, LEAST> {
    pub fn get(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    /// A status as it is written in an answer.
    pub fn status(self) -> u16 {
        u16::try_from(self.0).unwrap_or(u16::MAX)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let number = text.parse();
        let number =
            number.map_err(|_| format!("{} is not a number\nwrite a whole number", shown(text)))?;
        bounded(text, number, [LEAST, MOST].map(|bound| (bound, bound))).map(Self)
    }
}

/// A part of a whole: 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Share(pub f64);

word!(Share, "Share", {
    "type": "number",
    "description": "A part of a whole: 0 is none, 0.01 one in a hundred, 1 all.",
    "minimum": 0,
    "maximum": 1,
});

impl Share {
    fn parse(text: &str) -> Result<Self, String> {
        let hint = "write a number from 0 (none) to 1 (all): 0.01 is one in a hundred";
        match text.parse::<f64>() {
            Ok(share) if (0.0..=1.0).contains(&share) => Ok(Self(share)),
            _ => wrong(text, "is not a share", hint),
        }
    }
}

/// A value, or `none` for no limit. The name is the word in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename = "none")]
#[schemars(rename = "{T}OrNone", transform = or_word("none"))]
pub struct OrNone<T>(pub Option<T>);

impl<T: Serialize> Serialize for OrNone<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Some(value) => value.serialize(serializer),
            None => serializer.serialize_str("none"),
        }
    }
}

/// A block of fields, or `off`, which is `None`. The name is the word in its place.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename = "off")]
#[schemars(rename = "{T}OrOff", transform = or_word("off"))]
pub struct OffOr<T>(pub Option<T>);

/// Puts a word in the place of null.
fn or_word(word: &'static str) -> impl FnMut(&mut Schema) {
    move |schema| {
        if let Some(null) = schema.pointer_mut("/anyOf/1") {
            *null = json!({ "const": word });
        }
    }
}

/// A value that may hold a secret. Debug output never shows it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Hidden<T = String>(pub T);

impl<T> fmt::Debug for Hidden<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hidden(…)")
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::super::yaml::{self, Report};
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        for (text, milliseconds) in [("250ms", 250), ("1m 30s", 90_000), ("0s", 0)] {
            let time = Duration::from_millis(milliseconds);
            assert_eq!(Time::parse(text), Ok(Span(time)));
        }
        assert!(Time::parse("5").is_err_and(|error| error.contains("is it 5s?")));
        assert!(Time::parse("5M").is_err_and(|error| error.contains("is it 5m?")));
        for bad in [
            "",
            "-1s",
            "5 parsecs",
            "s",
            "1.5.s",
            "99999999999999999999s",
            "2y",
        ] {
            assert!(Time::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_bytes_or_have_a_unit() {
        for (text, bytes) in [
            ("1048576", 1 << 20),
            ("1MiB", 1 << 20),
            ("512KiB", 512 << 10),
            ("1MB", 1_000_000),
        ] {
            assert_eq!(<Size>::parse(text), Ok(Size(bytes)));
        }
        for bad in ["", "-1", "none", "1 mile", "MiB"] {
            assert!(<Size>::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_limit_may_be_none() {
        #[derive(Deserialize, JsonSchema)]
        #[serde(default, bound = "T: DeserializeOwned")]
        struct Block<T> {
            limit: Option<OrNone<T>>,
        }
        impl<T> Default for Block<T> {
            fn default() -> Self {
                Self { limit: None }
            }
        }
        fn read<T: DeserializeOwned + JsonSchema>(text: &str) -> Option<OrNone<T>> {
            let (tree, report) = (&mut json!({ "limit": text }), &mut Report::default());
            yaml::read::<Block<T>>(tree, report).limit
        }
        assert_eq!(read::<Size>("none"), Some(OrNone(None)));
        assert_eq!(read::<Size>("0"), Some(OrNone(Some(Size(0)))));
        assert_eq!(read::<Count>(" none "), Some(OrNone(None)));
        assert_eq!(read::<Count>("7"), Some(OrNone(Some(Count(7)))));
        assert_eq!(read::<Count>("1MiB"), None);
    }

    #[test]
    fn a_share_is_from_0_to_1() {
        for (text, share) in [("0", 0.0), ("1", 1.0), ("0.01", 0.01), ("1e-3", 0.001)] {
            assert_eq!(Share::parse(text), Ok(Share(share)));
        }
        for bad in ["", "1%", "1.1", "-0.1", "NaN", "inf", "0,5"] {
            assert!(Share::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_hidden_text_is_not_in_its_debug_output() {
        assert!(!format!("{:?}", Hidden("sesame")).contains("sesame"));
    }
}
