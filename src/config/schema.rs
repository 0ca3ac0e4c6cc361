//! The JSON Schema of the file, for editors and for whoever generates files.

use schemars::Schema;

use super::file::File;

/// The schema (JSON Schema 2020-12) of the configuration file.
#[must_use]
pub fn schema() -> Schema {
    schemars::schema_for!(File)
}
