//! The lease token that a worker gets: the fencing number, and a MAC over job, number and owner. It cannot be guessed,
//! and another worker cannot use it (test `only_the_worker_that_took_a_lease_can_use_its_token`).

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use wharfinger_lifecycle::checksum::to_hex;
use wharfinger_lifecycle::id::JobId;

use crate::core::Caller;

/// Shared by all processes on one catalog.
pub struct LeaseKey(Vec<u8>);

impl LeaseKey {
    pub fn new(key: Vec<u8>) -> LeaseKey {
        LeaseKey(key)
    }

    /// The token for a worker's lease.
    pub fn token(&self, job: JobId, number: i64, owner: &Caller) -> String {
        format!("{number}.{}", to_hex(&self.lease(job, number, owner).finalize().into_bytes()))
    }

    /// The number in the token, or None if it is not a token of this worker for this job.
    pub fn number(&self, job: JobId, token: &str, owner: &Caller) -> Option<i64> {
        let (number, shown) = token.split_once('.')?;
        let number: i64 = number.parse().ok()?;
        verify(self.lease(job, number, owner), shown).then_some(number)
    }

    /// Signs the URL of a large input.
    pub fn input_signature(&self, job: JobId, number: i64) -> String {
        to_hex(&self.input(job, number).finalize().into_bytes())
    }

    pub fn is_input_signature(&self, job: JobId, number: i64, shown: &str) -> bool {
        verify(self.input(job, number), shown)
    }

    fn lease(&self, job: JobId, number: i64, owner: &Caller) -> Hmac<Sha256> {
        let Caller { tenant, user, role } = owner;
        // With the lengths, so that two owners never have the same text.
        let (tenant, user) = (tenant.as_str(), user.as_str());
        let role = role.as_str();
        self.over(&format!("lease {job} {number} {role} {} {tenant} {} {user}", tenant.len(), user.len()))
    }

    fn input(&self, job: JobId, number: i64) -> Hmac<Sha256> {
        self.over(&format!("input {job} {number}"))
    }

    fn over(&self, text: &str) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("any length will do");
        mac.update(text.as_bytes());
        mac
    }
}

/// Compares in constant time.
fn verify(mac: Hmac<Sha256>, shown: &str) -> bool {
    let Some(bytes) = from_hex(shown) else { return false };
    mac.verify_slice(&bytes).is_ok()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = |at: usize| text.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    let is_hex = text.len().is_multiple_of(2) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_hex {
        return None;
    }
    (0..text.len()).step_by(2).map(digits).collect()
}

#[cfg(test)]
mod tests {
    use wharfinger_lifecycle::id::{TenantId, UserId};

    use super::*;
    use crate::core::Role;

    fn worker(tenant: &str, user: &str) -> Caller {
        Caller {
            tenant: TenantId::new(tenant).expect("a tenant"),
            user: UserId::new(user).expect("a user"),
            role: Role::Worker,
        }
    }

    #[test]
    fn only_the_worker_that_took_a_lease_can_use_its_token() {
        let key = LeaseKey::new(vec![7; 32]);
        let (job, other): (JobId, JobId) = (
            "01a1ddbc-8001-7c3e-9a55-0b6f2d4e8c71".parse().expect("an id"),
            "01a1ddbc-8001-7c3e-9a55-0b6f2d4e8c72".parse().expect("an id"),
        );
        let ada = worker("ops", "ada");
        let token = key.token(job, 3, &ada);
        assert_eq!(key.number(job, &token, &ada), Some(3));
        assert_eq!(key.number(other, &token, &ada), None, "another job");
        for thief in
            [worker("ops", "bob"), worker("op", "s ada"), Caller { role: Role::Operator, ..ada.clone() }]
        {
            assert_eq!(key.number(job, &token, &thief), None, "{thief:?}");
        }
        let mac = token.split_once('.').expect("two parts").1;
        for wrong in [
            "",
            "3",
            "3.",
            ".",
            "3.zz",
            &format!("4.{mac}"),
            &format!("03.{mac}x"),
            &token[..token.len() - 2],
        ] {
            assert_eq!(key.number(job, wrong, &ada), None, "{wrong}");
        }
        assert_eq!(LeaseKey::new(vec![8; 32]).number(job, &token, &ada), None, "another catalog");
        let signature = key.input_signature(job, 3);
        assert!(key.is_input_signature(job, 3, &signature) && !key.is_input_signature(job, 4, &signature));
        assert_ne!(signature, mac);
    }
}
