//! The roles of a process. One process can have all roles, or several processes on one catalog share them.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessRole {
    /// Answers API calls, and serves the local store.
    Api,
    /// Runs the delayed checks, the pipeline and cleanups, and sends notifications.
    Worker,
    /// Runs the scheduled sweeps.
    Sweeper,
    /// Takes events.
    Ingest,
}

impl ProcessRole {
    pub const ALL: [ProcessRole; 4] =
        [ProcessRole::Api, ProcessRole::Worker, ProcessRole::Sweeper, ProcessRole::Ingest];

    pub fn as_str(self) -> &'static str {
        match self {
            ProcessRole::Api => "api",
            ProcessRole::Worker => "worker",
            ProcessRole::Sweeper => "sweeper",
            ProcessRole::Ingest => "ingest",
        }
    }
}

/// The roles of one process: at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roles(Vec<ProcessRole>);

impl Roles {
    pub fn all() -> Roles {
        Roles(ProcessRole::ALL.to_vec())
    }

    pub fn of(role: ProcessRole) -> Roles {
        Roles(vec![role])
    }

    /// Reads names separated by commas. The error shows the wrong name and the valid ones.
    pub fn parse(list: &str) -> Result<Roles, String> {
        let mut named = Vec::new();
        for word in list.split(',').map(str::trim) {
            match ProcessRole::ALL.into_iter().find(|role| role.as_str() == word) {
                Some(role) => named.push(role),
                None => return Err(format!("`{word}` is not a role. Use some of {}", Roles::all())),
            }
        }
        Ok(Roles(ProcessRole::ALL.into_iter().filter(|role| named.contains(role)).collect()))
    }

    pub fn has(&self, role: ProcessRole) -> bool {
        self.0.contains(&role)
    }

    pub fn has_any(&self, roles: &[ProcessRole]) -> bool {
        roles.iter().any(|role| self.has(*role))
    }

    pub fn names(&self) -> Vec<&'static str> {
        self.0.iter().map(|role| role.as_str()).collect()
    }
}

impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_subset_is_accepted_and_a_wrong_name_is_shown() {
        assert_eq!(Roles::parse("worker, api,api").map(|roles| roles.names()), Ok(vec!["api", "worker"]));
        assert_eq!(Roles::parse("api,worker,sweeper,ingest"), Ok(Roles::all()));
        for (list, named) in [("", "``"), ("api,", "``"), ("api,cook", "`cook`"), ("API", "`API`")] {
            assert!(Roles::parse(list).expect_err(list).contains(named), "{list}");
        }
    }
}
