//! [`Recorder`]: keeps the parts of an answer that are to be remembered, while it is relayed.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::StatusCode;
use sha2::{Digest, Sha256};

use crate::config::{FieldName, OutcomeSettings};
use crate::fencing::outcomes::Answer;
use crate::http1::names::{CONTENT_ENCODING, CONTENT_TYPE};
use crate::http1::{Fields, ResponseHead};

/// The fields of these names.
pub(super) fn kept(fields: &Fields, names: &[FieldName]) -> Fields {
    let mut all = Fields::default();
    for FieldName(name) in names {
        fields
            .get_all(name)
            .for_each(|value| all.append(name, value));
    }
    all
}

/// See the module's documentation.
pub(super) struct Recorder {
    status: StatusCode,
    fields: Fields,
    /// Only with a body.
    content: Fields,
    /// `None`: it is too long.
    body: Option<Vec<u8>>,
    limit: usize,
    digest: Sha256,
}

impl Recorder {
    pub(super) fn new(settings: &OutcomeSettings, head: &ResponseHead) -> Self {
        let content = [CONTENT_TYPE, CONTENT_ENCODING].map(|name| FieldName(name.to_owned()));
        Self {
            status: head.status,
            fields: kept(&head.fields, &settings.headers),
            content: kept(&head.fields, &content),
            body: Some(Vec::new()),
            limit: settings.body.bytes(),
            digest: Sha256::new(),
        }
    }

    /// The next bytes of the body.
    pub(super) fn feed(&mut self, data: &[u8]) {
        self.digest.update(data);
        if let Some(body) = &mut self.body {
            if body.len() + data.len() <= self.limit {
                body.extend_from_slice(data);
            } else {
                self.body = None;
            }
        }
    }

    /// The document that is recorded.
    pub(super) fn answer(self) -> String {
        let content = self.body.as_ref().is_some_and(|body| !body.is_empty());
        let more = content.then_some(&self.content);
        let lines = self
            .fields
            .iter()
            .chain(more.into_iter().flat_map(Fields::iter));
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        let answer = Answer {
            status: self.status.as_u16(),
            fields: lines
                .map(|(name, value)| (text(name), BASE64_STANDARD.encode(value)))
                .collect(),
            body: self.body.map(|body| BASE64_STANDARD.encode(body)),
            digest: BASE64_STANDARD.encode(self.digest.finalize()),
        };
        serde_json::to_string(&answer).unwrap_or_default()
    }
}
