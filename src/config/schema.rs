//! The JSON Schema of the file, for editors and for whoever generates files.

use schemars::Schema;
use schemars::transform::transform_subschemas;

use super::file::File;

/// The schema (JSON Schema 2020-12) of the configuration file.
#[must_use]
pub fn schema() -> Schema {
    let mut schema = schemars::schema_for!(File);
    // Every field may be absent, which is no default to tell of.
    drop_null_default(&mut schema);
    schema
}

fn drop_null_default(schema: &mut Schema) {
    if schema
        .get("default")
        .is_some_and(serde_json::Value::is_null)
    {
        schema.remove("default");
    }
    transform_subschemas(&mut drop_null_default, schema);
}
