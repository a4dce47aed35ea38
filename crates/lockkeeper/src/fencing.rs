//! Fencing as a type: code that needs a token does not compile with an engine that has none.

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Fenced {}
    impl Sealed for super::Unfenced {}
}

/// Whether guards have a fencing token. Implemented by [`Fenced`] and [`Unfenced`] only.
pub trait Fencing: sealed::Sealed + Send + Sync + Unpin + 'static {}

/// Marker: guards have a token that increases with every grant. Suitable for correctness.
#[derive(Debug, Clone, Copy)]
pub enum Fenced {}

/// Marker: guards have no token, so nothing stops a paused holder that wakes up. Suitable for efficiency only.
///
/// ```compile_fail,E0599
/// # async fn example() -> Result<(), lockkeeper::Error> {
/// use lockkeeper::prelude::*;
/// let keeper = Keeper::connect_unfenced("redlock://r1:6379,r2:6379,r3:6379").await?;
/// let guard = keeper.lock("report").acquire().await?;
/// guard.token(); // there is no such method: Redlock cannot fence
/// # Ok(()) }
/// ```
///
/// With an engine chosen at run time, [`Keeper::fenced`](crate::Keeper::fenced) checks once whether it can fence:
///
/// ```no_run
/// # async fn example(url: &str) -> Result<(), lockkeeper::Error> {
/// use lockkeeper::prelude::*;
/// let keeper = Keeper::connect_unfenced(url).await?.fenced()?;
/// let guard = keeper.lock("report").acquire().await?;
/// guard.token();
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy)]
pub enum Unfenced {}

impl Fencing for Fenced {}
impl Fencing for Unfenced {}
