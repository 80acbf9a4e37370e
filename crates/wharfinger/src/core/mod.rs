//! What every verb needs, below all subsystems.

mod caller;
mod verb_error;

pub use caller::{Caller, Role};
pub use verb_error::{FieldProblem, FileOutcome, VerbError};
