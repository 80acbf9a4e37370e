// No-op jobs through BullMQ, graphile-worker and pg-boss: added in bulk, then processed. Prints a line of JSON for each.
// Usage: node peers.mjs <folder with node_modules> <redis url> <postgres url> <jobs>
import { createRequire } from "node:module";
import { join } from "node:path";

const [folder, redisUrl, postgresUrl, count] = process.argv.slice(2);
const jobs = Number(count);
const require = createRequire(join(folder, "peers.js"));
const say = (peer, enqueueMs, drainMs) => console.log(JSON.stringify({ peer, jobs, enqueueMs, drainMs }));
const chunks = (size) =>
  Array.from({ length: Math.ceil(jobs / size) }, (_, n) => Math.min(size, jobs - n * size));

async function bullmq() {
  const { Queue, Worker } = require("bullmq");
  const url = new URL(redisUrl);
  const connection = { host: url.hostname, port: Number(url.port), db: Number(url.pathname.slice(1) || 0), maxRetriesPerRequest: null };
  const queue = new Queue("bench", { connection });
  let started = performance.now();
  for (const size of chunks(1000)) {
    await queue.addBulk(Array.from({ length: size }, () => ({ name: "noop", data: {}, opts: { removeOnComplete: true } })));
  }
  const enqueued = performance.now() - started;
  started = performance.now();
  let done = 0;
  await new Promise((resolve, reject) => {
    const worker = new Worker("bench", async () => {}, { connection, concurrency: 100 });
    worker.on("completed", () => { if (++done === jobs) worker.close().then(resolve, reject); });
    worker.on("error", reject);
  });
  say("BullMQ", enqueued, performance.now() - started);
  await queue.close();
}

async function graphile() {
  const { makeWorkerUtils, run } = require("graphile-worker");
  const { Pool } = require("pg");
  const pool = new Pool({ connectionString: postgresUrl, max: 20 });
  const utils = await makeWorkerUtils({ pgPool: pool });
  await utils.migrate();
  let started = performance.now();
  for (const size of chunks(500)) {
    await pool.query(
      "select graphile_worker.add_jobs(array(select row('noop', '{}'::json, null, now(), 25, null, null, null)::graphile_worker.job_spec from generate_series(1, $1)))",
      [size],
    );
  }
  const enqueued = performance.now() - started;
  started = performance.now();
  let done = 0;
  const logger = new (require("graphile-worker").Logger)(() => () => {});
  const runner = await run({
    pgPool: pool, logger, concurrency: 24, noHandleSignals: true,
    preset: { worker: { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } },
    taskList: { noop: async () => { done += 1; } },
  });
  while (done < jobs) await new Promise((resolve) => setTimeout(resolve, 5));
  await runner.stop();
  say("graphile-worker", enqueued, performance.now() - started);
  await utils.release();
  await pool.end();
}

async function pgboss() {
  const PgBoss = require("pg-boss").PgBoss ?? require("pg-boss");
  const boss = new PgBoss({ connectionString: postgresUrl, max: 20, supervise: false, schedule: false });
  boss.on("error", (error) => { throw error; });
  await boss.start();
  await boss.createQueue("noop");
  let started = performance.now();
  for (const size of chunks(500)) {
    // Older versions expect the queue name in each job, newer ones as an argument.
    const added = Array.from({ length: size }, () => ({ name: "noop", data: {} }));
    await boss.insert(added).catch(() => boss.insert("noop", added.map(({ data }) => ({ data }))));
  }
  const enqueued = performance.now() - started;
  started = performance.now();
  const worker = async () => {
    for (;;) {
      const batch = await boss.fetch("noop", { batchSize: 200 });
      if (!batch || batch.length === 0) return;
      await boss.complete("noop", batch.map((job) => job.id));
    }
  };
  await Promise.all([worker(), worker(), worker(), worker()]);
  say("pg-boss", enqueued, performance.now() - started);
  await boss.stop({ graceful: false });
}

for (const peer of [bullmq, graphile, pgboss]) {
  try {
    await peer();
  } catch (error) {
    console.log(JSON.stringify({ peer: peer.name, error: String(error) }));
  }
}
process.exit(0);
