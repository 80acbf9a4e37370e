//! Tests of the scanner. Infected files are found, however their bytes arrive. Only files that were scanned completely
//! are clean.

mod builtin;
mod outages;
mod scripted;
mod site;
mod verdicts;
