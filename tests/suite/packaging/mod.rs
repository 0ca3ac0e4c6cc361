//! Chart, manifests, image, release, documents, and the layout of the source.

pub mod book;
pub mod chart;
pub mod commands;
pub mod documents;
pub mod guide;
pub mod house;
pub mod image;
pub mod kubernetes;
pub mod layers;
pub mod readme;
pub mod release;
