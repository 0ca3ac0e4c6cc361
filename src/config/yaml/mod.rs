//! Reads YAML into typed fields and reports every problem at once, each with its line and a hint.
//!
//! serde-saphyr, as every deserializer of serde, stops at the first thing that it cannot take. An
//! operator would then correct a file once per mistake. So reading has three parts:
//!
//! - [`tree`]: serde-saphyr parses the text into a JSON value in which every scalar stays the text
//!   that was written, and the line of everything goes to the report. Flags and environment
//!   variables are put into the same tree.
//! - [`reader`]: serde reads typed fields from the tree. A value that it cannot take is reported and
//!   crossed out, and the tree is read again, until it reads.
//! - [`problems`]: [`Report`] collects what is wrong, for this reader and for the checks after it.
//!
//! It does not judge what values mean together: the checks of the blocks do. It knows
//! no anchors across files, no merge keys and no tags; text that is not YAML at all is one problem.

mod problems;
mod reader;
mod tree;

pub use problems::{ConfigPlace, ConfigProblem, Problems, Severity, Warning};
pub(super) use problems::{Report, Wrong, nearest, shown};
pub(super) use reader::{is_given, read};
pub(super) use tree::{at, member, parse, set};
