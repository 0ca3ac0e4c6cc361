//! The JSON Schema of the file, for editors and for programs that write configurations.

use schemars::Schema;
use schemars::transform::transform_subschemas;
use serde_json::{Map, Value, json};

use super::settings::Settings;

/// The schema (JSON Schema 2020-12) of the configuration file.
#[must_use]
pub fn schema() -> Schema {
    let mut schema = schemars::schema_for!(Settings);
    adapt(&mut schema);
    schema
}

/// An optional field has no default to tell of. And any field but `routes` may be empty
/// (`wait:`), which is the same as leaving it out.
fn adapt(schema: &mut Schema) {
    if schema.get("default").is_some_and(Value::is_null) {
        schema.remove("default");
    }
    if let Some(Value::Object(fields)) = schema.get_mut("properties") {
        let fields = fields.values_mut().filter_map(Value::as_object_mut);
        fields.for_each(allow_null);
    }
    transform_subschemas(&mut adapt, schema);
}

fn allow_null(field: &mut Map<String, Value>) {
    if let Some(reference) = field.remove("$ref") {
        field.insert(
            "anyOf".to_owned(),
            json!([{ "$ref": reference }, { "type": "null" }]),
        );
    }
    if let Some(Value::String(only)) = field.get("type") {
        let types = json!([only, "null"]);
        field.insert("type".to_owned(), types);
    }
}
