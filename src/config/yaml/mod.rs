//! Reads YAML into typed fields and reports every problem at once, each with its line and a hint.
//!
//! serde-saphyr, as every deserializer of serde, stops at the first thing that it cannot take. An
//! operator would then correct a file once per mistake. So reading has three parts:
//!
//! - [`tree`]: serde-saphyr parses the text into a [`YamlNode`], in which every key and value knows
//!   its line and every scalar stays the text that was written. Flags and environment variables are
//!   put into the same tree.
//! - [`deserializer`]: serde reads typed fields from the tree. A value that it cannot take is
//!   reported and crossed out, and the tree is read again, until it reads.
//! - [`problems`]: [`Report`] collects what is wrong, for this reader and for the checks after it.
//!
//! It does not judge what values mean together: the checks of the blocks do. It knows
//! no anchors across files, no merge keys and no tags; text that is not YAML at all is one problem.

mod deserializer;
mod problems;
mod tree;

pub(super) use deserializer::read;
pub use problems::{ConfigPlace, ConfigProblem, Problems, Severity, Warning};
pub(super) use problems::{Report, Wrong, nearest, shown};
pub(super) use tree::{MapEntry, NodeKind, YamlNode, member};
