//! What people and programs get to see.

pub mod html;
pub mod matrix;
mod svg;
pub mod text;
