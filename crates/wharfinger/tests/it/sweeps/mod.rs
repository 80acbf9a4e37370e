//! What the healers find and mend, with a clock that is moved.

mod stuck_calls;
mod stuck_files;
