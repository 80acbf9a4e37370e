//! What the scanner promises: that what is infected is found however it arrives, and that nothing is called clean
//! but what clamd, or the built-in list, called so.

mod builtin;
mod outages;
mod scripted;
mod site;
mod verdicts;
