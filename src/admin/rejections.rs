//! `/v1/rejections`: the latest refusals, one by one or by resource.

use std::collections::BTreeMap;

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

/// How the refusals are put together.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RejectionGroup {
    Resource,
}

/// `GET /v1/rejections`.
pub async fn list(State(state): State<AdminState>, uri: Uri) -> Result<Response, AdminProblem> {
    let query: RejectionQuery = query(&uri)?;
    let limit = limit(query.limit)?.into();
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
    let mut found: BTreeMap<String, Vec<RecentRejection>> = BTreeMap::new();
    for rejection in latest {
        if let Some(resource) = &rejection.resource {
            found
                .entry(resource.to_string())
                .or_default()
                .push(rejection);
        }
    }
    let mut groups: Vec<_> = found
        .into_iter()
        .filter_map(|(resource, all)| {
            let mut outcomes = BTreeMap::new();
            let mut clients: Vec<&str> = all.iter().map(|one| one.peer.as_str()).collect();
            clients.sort_unstable();
            clients.dedup();
            for one in &all {
                *outcomes.entry(one.outcome.as_str().to_owned()).or_default() += 1;
            }
            Some(RefusedResource {
                resource,
                refused: all.len(),
                outcomes,
                clients: clients.len(),
                latest: all.first()?.clone().into(),
            })
        })
        .collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.refused));
    RejectionGroups { of, groups }
}
