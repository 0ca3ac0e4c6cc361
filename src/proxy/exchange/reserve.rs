//! The steps before a permit begins: reserve a connection or stream upstream, spend the token.

use super::HeadTx;
use crate::fencing::Fencing;
use crate::fencing::permit::Permit;
use crate::proxy::refusal::Refusal;
use crate::proxy::upstream::{Reserved, Upstream};

/// The steps that come before a permit begins.
pub(super) struct Ready<'a> {
    pub upstream: &'a Upstream,
    /// See [`FenceTerms::spend`](super::FenceTerms::spend).
    pub spend: Option<&'a str>,
}

impl Ready<'_> {
    /// Reserves a connection or stream upstream, and spends the token. The permit delays newer
    /// tokens meanwhile, so the wait ends as soon as one is known.
    pub(super) async fn wait(
        self,
        permit: &Permit,
        fencing: &Fencing,
        head: &mut HeadTx,
    ) -> Result<Reserved, Refusal> {
        let (superseded, cutoff) = (permit.superseded(), permit.cutoff());
        let refused = || Refusal::from(fencing.superseded(permit.key(), permit.token()));
        let gone = || Refusal::ClientGone("The client has left".into());
        let reserved = tokio::select! {
            // Biased: mostly a connection is there, and nothing else need be waited for.
            biased;
            reserved = self.upstream.reserve(permit.incarnation()) => reserved?,
            () = superseded.cancelled() => return Err(refused()),
            () = cutoff.cancelled() => return Err(Refusal::cut_off()),
            () = head.closed() => return Err(gone()),
        };
        if head.is_closed() {
            return Err(gone());
        }
        if cutoff.is_cancelled() {
            return Err(Refusal::cut_off());
        }
        if superseded.is_cancelled() {
            return Err(refused());
        }
        if let Some(name) = self.spend {
            spend(fencing, permit, name).await?;
            if superseded.is_cancelled() {
                // The token is stale now, spent or not.
                return Err(refused());
            }
        }
        Ok(reserved)
    }
}

/// Spends the permit's token (`reuse: once`) under `name`. If the store does not answer, the token
/// counts as spent, and the answer to the client says so.
async fn spend(fencing: &Fencing, permit: &Permit, name: &str) -> Result<(), Refusal> {
    let spent = fencing.spend(permit, name).await;
    spent.map_err(|refused| {
        let mut refusal = Refusal::from(refused);
        if let Refusal::StoreUnavailable { spent, .. } = &mut refusal {
            *spent = true;
        }
        refusal
    })
}
