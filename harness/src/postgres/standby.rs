//! A standby: a second server that replicates from the first by streaming and can be promoted.

use std::thread;
use std::time::{Duration, Instant};

use super::{Options, Postgres, START_TIMEOUT};
use crate::Error;
use crate::server::random;

const POLL: Duration = Duration::from_millis(20);

impl Postgres {
    /// Starts a standby with all databases of the primary. It follows the primary's commits and is read-only. After a
    /// kill and a restart of either server, they connect again.
    pub fn start_standby_of(primary: &Self) -> Result<Self, Error> {
        let options = primary.started.as_ref().map_or_else(Options::default, |started| started.options);
        let mut standby = Self::prepare(options)?;
        standby.copy_from(primary)?;
        standby.launch_on_free_port()?;
        standby.wait_until("following", "SELECT status = 'streaming' FROM pg_stat_wal_receiver")?;
        // The copy has the primary's settings. After a promotion there is no standby to wait for.
        standby.require_standby(false)?;
        Ok(standby)
    }

    /// Promotes the standby: it stops replicating and accepts writes.
    pub fn promote(&mut self) -> Result<(), Error> {
        self.started()?;
        let seconds = START_TIMEOUT.as_secs();
        let promoted = self.psql(&self.admin_url(), &format!("SELECT pg_promote(true, {seconds})"))?;
        match promoted.as_str() {
            "t" => Ok(()),
            _ => Err(Error::new("the standby did not become a primary in time")),
        }
    }

    /// With `true`, commits wait until a standby has them on its disk, for as long as that takes. With `false`, the
    /// waiting commits return, and a standby may lag.
    pub fn require_standby(&self, required: bool) -> Result<(), Error> {
        if self.started.is_none() {
            return Err(Error::not_started_here());
        }
        let admin = self.admin_url();
        let names = if required { "*" } else { "" };
        self.psql(&admin, &format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'"))?;
        self.psql(&admin, "SELECT pg_reload_conf()")?;
        let query = format!("SELECT current_setting('synchronous_standby_names') = '{names}'");
        self.wait_until("configured for its standby", &query)?;
        // The checkpointer tells all other processes about the new setting. It reads the setting before it makes a
        // checkpoint.
        self.psql(&admin, "CHECKPOINT").map(drop)
    }

    /// Also creates a replication slot, so that the primary keeps the log that a killed standby still needs.
    fn copy_from(&mut self, primary: &Self) -> Result<(), Error> {
        let mut copy = self.binaries.command("pg_basebackup");
        let started = self.started()?;
        copy.arg("--dbname")
            .arg(primary.admin_url())
            .arg("--pgdata")
            .arg(started.server.folder().join("data"));
        copy.args(["--checkpoint=fast", "--wal-method=stream", "--no-sync", "--write-recovery-conf"])
            .args(["--create-slot", &format!("--slot=standby_{:016x}", random())]);
        started.server.run(copy)
    }

    /// Repeats the query until its answer is true.
    fn wait_until(&self, state: &str, query: &str) -> Result<(), Error> {
        let deadline = Instant::now() + START_TIMEOUT;
        while self.psql(&self.admin_url(), query)? != "t" {
            if Instant::now() > deadline {
                return Err(Error::new(format!("PostgreSQL was not {state} within {START_TIMEOUT:?}")));
            }
            thread::sleep(POLL);
        }
        Ok(())
    }
}
