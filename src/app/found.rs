//! Logs the state of the store at the start. A store without marks accepts every resource's first
//! token, however old it is, and nothing else would tell it from the store that was there before.

use crate::json_values::rfc3339_ms;
use crate::store::MarkStore;
use crate::store::sqlite::Opened;

/// Says what the file held.
pub(super) fn say_file(opened: &Opened, namespace: &str) {
    let path = opened.path.display();
    if opened.created {
        tracing::warn!(
            "created a new store at {path}: it has no marks, and every resource's first token is \
             accepted, however old it is"
        );
    } else if let Some(latest) = opened.latest_ms {
        let marks = number(opened.marks);
        let at = rfc3339_ms(latest);
        tracing::info!("opened {path}: {marks}, latest change at {at}");
    } else {
        tracing::warn!("opened {path}: the namespace {namespace} is new: it has no marks");
    }
}

/// Says what the shared store held, as far as that is counted quickly.
pub(super) async fn say_namespace(store: &dyn MarkStore, namespace: &str) {
    match store.count_marks().await {
        Ok(count) if count.marks == 0 => tracing::warn!(
            "the namespace {namespace} is new: it has no marks, and every resource's first token is \
             accepted, however old it is"
        ),
        Ok(count) => {
            let least = if count.more { "at least " } else { "" };
            let marks = number(count.marks);
            tracing::info!("the namespace {namespace} has {least}{marks}");
        }
        Err(error) => tracing::warn!(%error, "the marks of {namespace} could not be counted"),
    }
}

fn number(marks: u64) -> String {
    let plural = if marks == 1 { "" } else { "s" };
    format!("{marks} mark{plural}")
}
