//! `/v1/rejections`: the latest refusals, one by one or by resource.

use std::collections::{BTreeMap, BTreeSet};

use axum::extract::State;
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::AdminState;
use super::api::{Json, RefusedResource, RejectionGroups, RejectionList, rejections};
use super::marks::{limit, query};
use super::problem::AdminProblem;
use crate::rejections::{KEPT, RecentRejection};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RejectionQuery {
    limit: Option<u16>,
    group: Option<RejectionGroup>,
}

/// The form of a list of groups.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RejectionGroup {
    Resource,
}

/// `GET /v1/rejections`.
pub async fn list(State(state): State<AdminState>, uri: Uri) -> Result<Response, AdminProblem> {
    let query: RejectionQuery = query(&uri)?;
    let limit = limit(query.limit)?;
    if let Some(RejectionGroup::Resource) = query.group {
        let mut groups = by_resource(state.rejections.latest(None, KEPT));
        groups.groups.truncate(limit);
        return Ok(Json(groups).into_response());
    }
    let rejections = rejections(state.rejections.latest(None, limit));
    Ok(Json(RejectionList { rejections }).into_response())
}

/// `latest`: the newest first.
fn by_resource(latest: Vec<RecentRejection>) -> RejectionGroups {
    let of = latest.len();
    let mut groups: BTreeMap<String, (RefusedResource, BTreeSet<String>)> = BTreeMap::new();
    for one in latest {
        let Some(resource) = one.resource.as_ref().map(ToString::to_string) else {
            continue;
        };
        let (group, clients) = groups.entry(resource.clone()).or_insert_with(|| {
            let group = RefusedResource {
                resource,
                refused: 0,
                outcomes: BTreeMap::new(),
                clients: 0,
                latest: one.clone().into(),
            };
            (group, BTreeSet::new())
        });
        group.refused += 1;
        *group.outcomes.entry(one.outcome.to_string()).or_default() += 1;
        clients.insert(one.peer);
        group.clients = clients.len();
    }
    let mut groups: Vec<_> = groups.into_values().map(|(group, _)| group).collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.refused));
    RejectionGroups { of, groups }
}
