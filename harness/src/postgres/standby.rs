//! A second server that follows the first by streaming, and takes its place when asked to.

use std::thread;
use std::time::{Duration, Instant};

use super::{Options, PATIENCE_WITH_START, Postgres};
use crate::Error;
use crate::server::random;

const POLL: Duration = Duration::from_millis(20);

impl Postgres {
    /// Starts a server that holds all of the primary's databases, follows its commits, and can be
    /// read but not written to. Either may be killed: started again, they find each other.
    pub fn start_standby_of(primary: &Self) -> Result<Self, Error> {
        let options = primary.ours.as_ref().map_or_else(Options::default, |ours| ours.options);
        let mut standby = Self::prepare(options)?;
        standby.copy(primary)?;
        standby.launch_on_some_port()?;
        standby.wait_until("following", "SELECT status = 'streaming' FROM pg_stat_wal_receiver")?;
        // The copy has the primary's settings, and once in its place it has no standby to wait for.
        standby.require_standby(false)?;
        Ok(standby)
    }

    /// Makes the standby a primary of its own: it stops following, and takes writes.
    pub fn promote(&mut self) -> Result<(), Error> {
        self.ours()?;
        let seconds = PATIENCE_WITH_START.as_secs();
        let promoted = self.psql(&self.admin_url(), &format!("SELECT pg_promote(true, {seconds})"))?;
        match promoted.as_str() {
            "t" => Ok(()),
            _ => Err(Error::new("the standby did not become a primary in time")),
        }
    }

    /// Whether commits wait until a standby has them on its disk: for ever, while there is none.
    /// Otherwise a standby lags behind by as much as it happens to. What waits is let go by `false`.
    pub fn require_standby(&self, required: bool) -> Result<(), Error> {
        if self.ours.is_none() {
            return Err(Error::not_ours());
        }
        let admin = self.admin_url();
        let names = if required { "*" } else { "" };
        self.psql(&admin, &format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'"))?;
        self.psql(&admin, "SELECT pg_reload_conf()")?;
        let question = format!("SELECT current_setting('synchronous_standby_names') = '{names}'");
        self.wait_until("told of its standbys", &question)?;
        // The process that makes checkpoints is also the one that lets all others know, and it reads
        // what is new before it makes one.
        self.psql(&admin, "CHECKPOINT").map(drop)
    }

    /// With the files comes a slot, so that the primary keeps what a killed standby has yet to read.
    fn copy(&mut self, primary: &Self) -> Result<(), Error> {
        let mut copy = self.binaries.command("pg_basebackup");
        let ours = self.ours()?;
        copy.arg("--dbname").arg(primary.admin_url()).arg("--pgdata").arg(ours.server.folder().join("data"));
        copy.args(["--checkpoint=fast", "--wal-method=stream", "--no-sync", "--write-recovery-conf"])
            .args(["--create-slot", &format!("--slot=standby_{:016x}", random())]);
        ours.server.run(copy)
    }

    /// Asks until the answer is true.
    fn wait_until(&self, state: &str, question: &str) -> Result<(), Error> {
        let deadline = Instant::now() + PATIENCE_WITH_START;
        while self.psql(&self.admin_url(), question)? != "t" {
            if Instant::now() > deadline {
                return Err(Error::new(format!("PostgreSQL was not {state} within {PATIENCE_WITH_START:?}")));
            }
            thread::sleep(POLL);
        }
        Ok(())
    }
}
