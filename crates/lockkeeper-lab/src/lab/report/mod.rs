//! Reports of the results.

pub mod html;
pub mod matrix;
mod svg;
pub mod text;
