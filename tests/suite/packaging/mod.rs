//! Chart, manifests, image, release, tutorial, documents, and the layout of the source.

pub mod again;
pub mod chart;
pub mod compose;
pub mod documents;
pub mod guide;
pub mod house;
pub mod image;
pub mod kubernetes;
pub mod layers;
pub mod pods;
pub mod release;
