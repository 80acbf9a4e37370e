//! What embeddings promise: one sound vector for each text in its order, or an error that says what helps; and that
//! the key goes to one server and into no text.

mod bad_answers;
mod embedding;
mod limits;
mod refusals;
mod site;
