//! Entries of the audit log, for callers of the API and for commands on the server's machine.

use serde_json::Value;
use wharfinger_catalog::AuditEntry;
use wharfinger_lifecycle::UnixMs;
use wharfinger_lifecycle::id::TenantId;

use super::Caller;

/// The actor of a command. Its user has access to the settings and the database anyway.
const COMMAND: &str = "cli";

/// What was done, to what.
pub struct AuditedAction<'a> {
    pub name: &'static str,
    /// None: it concerns no single tenant.
    pub tenant: Option<&'a TenantId>,
    pub subject: String,
    /// An object.
    pub detail: Value,
}

impl AuditedAction<'_> {
    pub fn by(self, caller: &Caller, at: UnixMs) -> AuditEntry {
        self.entry(caller.actor(), at)
    }

    pub fn by_command(self, at: UnixMs) -> AuditEntry {
        self.entry(COMMAND.to_owned(), at)
    }

    fn entry(self, actor: String, at: UnixMs) -> AuditEntry {
        AuditEntry {
            at,
            actor,
            action: self.name,
            tenant: self.tenant.cloned(),
            subject: self.subject,
            detail: self.detail.to_string(),
        }
    }
}
