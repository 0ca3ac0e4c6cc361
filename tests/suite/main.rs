//! The suite: one binary. Real servers, real stores, a scripted upstream that can stall.

mod support {
    pub mod postgres;
}

mod contract;
