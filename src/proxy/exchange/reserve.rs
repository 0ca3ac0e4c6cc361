//! The steps before a permit begins: reserve a connection or stream upstream, spend the token.

use crate::fencing::permit::Permit;
use crate::proxy::refusal::Refusal;
use crate::proxy::upstream::{Reserved, Upstream};

/// Reserves a connection or stream upstream. The permit delays newer tokens meanwhile, so the wait
/// ends as soon as one is known.
pub(super) async fn reserve(upstream: &Upstream, permit: &Permit) -> Result<Reserved, Refusal> {
    let reserved = tokio::select! {
        // Biased: mostly a connection is there, and nothing else need be waited for.
        biased;
        reserved = upstream.reserve(permit.incarnation()) => reserved?,
        () = permit.superseded().cancelled() => return Err(superseded(permit)),
        () = permit.cutoff().cancelled() => return Err(Refusal::cut_off()),
    };
    if permit.cutoff().is_cancelled() {
        return Err(Refusal::cut_off());
    }
    if permit.superseded().is_cancelled() {
        return Err(superseded(permit));
    }
    Ok(reserved)
}

fn superseded(permit: &Permit) -> Refusal {
    let superseded = permit.fencing().superseded(permit.key(), permit.token());
    superseded.into()
}

/// Spends the permit's token (`reuse: once`) under `name`. If the store does not answer, the token
/// counts as spent, and the answer to the client says so.
pub(super) async fn spend(permit: &Permit, name: &str) -> Result<(), Refusal> {
    let spent = permit.fencing().spend(permit, name).await;
    spent.map_err(|refused| {
        let mut refusal = Refusal::from(refused);
        if let Refusal::StoreUnavailable { spent, .. } = &mut refusal {
            *spent = true;
        }
        refusal
    })?;
    if permit.superseded().is_cancelled() {
        // The token is stale now, spent or not.
        return Err(superseded(permit));
    }
    Ok(())
}
