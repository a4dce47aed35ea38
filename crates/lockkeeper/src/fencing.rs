//! Whether an engine can fence, as a type: code that needs a token does not compile with an engine that has none.

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Fenced {}
    impl Sealed for super::Unfenced {}
}

/// Implemented by [`Fenced`] and [`Unfenced`] alone.
pub trait Fencing: sealed::Sealed + Send + Sync + Unpin + 'static {}

/// Guards have a token that rises with every grant: fit for correctness.
#[derive(Debug, Clone, Copy)]
pub enum Fenced {}

/// Guards have no token, so nothing can stop a holder that was paused: fit for efficiency only.
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
/// The same with an engine that can fence, found out at run time, once:
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
