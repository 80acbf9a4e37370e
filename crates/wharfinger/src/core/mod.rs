//! What every verb needs, below all subsystems.

mod blobs;
mod caller;
mod open;
mod verb_error;

pub use blobs::open_blobs;
pub use caller::{Caller, Role};
pub use open::{OpenError, Opening, named};
pub use verb_error::{FieldProblem, FileOutcome, VerbError};
