//! Readers of arguments that several subcommands take.

use http::{HeaderName, HeaderValue, Uri};

/// The target of a request: its path with the query.
pub(super) fn path_and_query(text: &str) -> Result<Uri, String> {
    if !text.starts_with('/') {
        return Err("it is a path that begins with `/`, such as /orders/7".into());
    }
    // `Uri` would cut it silently.
    if text.contains('#') {
        return Err("a fragment (`#…`) is never sent; leave it out, or write `%23`".into());
    }
    text.parse()
        .map_err(|error| format!("{error}; escape it as in a URL"))
}

/// A header field, as curl's `-H` takes it.
pub(super) fn field(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("write `Name: value`")?;
    let name = name
        .trim()
        .parse()
        .map_err(|_| format!("`{name}` is not a field name"))?;
    let value = HeaderValue::from_str(value.trim())
        .map_err(|_| "the value has characters that no header may have".to_owned())?;
    Ok((name, value))
}
