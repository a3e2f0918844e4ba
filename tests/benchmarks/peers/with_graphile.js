// Drives graphile-worker: install URL, enqueue URL COUNT, trickle URL COUNT, worker URL [quick].

const fs = require("fs");
const { performance } = require("perf_hooks");
const { Logger, makeWorkerUtils, run, runMigrations } = require("graphile-worker");

const SLOTS = 10;
const LOCAL_QUEUE = 500;
const AT_ONCE = 1000;

const silent = new Logger(() => (level, message) => {
  if (level === "error") console.error(message);
});
const now = () => (performance.timeOrigin + performance.now()) / 1000;
const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));
const pause = (number) => 0.06 + ((number * 37) % 80) / 1000;

// The same file that Tally in tally.py writes: the count, and when the first handler began.
class Tally {
  constructor(path) {
    this.file = fs.openSync(path, "r+");
    this.notes = fs.openSync(path.replace(/\.tally$/, ".notes"), "a");
    this.count = 0;
    this.buffer = Buffer.alloc(16);
    setInterval(() => this.write(), 5).unref();
  }

  hit() {
    if (++this.count === 1) {
      this.buffer.writeDoubleLE(now(), 8);
      this.write();
    }
  }

  note(number) {
    fs.writeSync(this.notes, `${number} ${now().toFixed(6)}\n`);
    this.hit();
  }

  write() {
    this.buffer.writeBigUInt64LE(BigInt(this.count), 0);
    fs.writeSync(this.file, this.buffer, 0, 16, 0);
  }
}

async function enqueue(utils, count) {
  const payload = JSON.parse(process.env.BENCH_PAYLOAD);
  for (; count > 0; count -= AT_ONCE) {
    const some = Math.min(count, AT_ONCE);
    await utils.addJobs(Array.from({ length: some }, () => ({ identifier: "mail", payload })));
  }
}

async function trickle(utils, count) {
  const times = [];
  for (let number = 0; number < count; number++) {
    await sleep(pause(number));
    const called = now();
    await utils.addJob("mail", { number });
    times.push([number, called, now()]);
  }
  console.log(JSON.stringify(times));
}

async function work(connectionString, quick) {
  const tally = new Tally(process.env.BENCH_TALLY);
  const settings = quick
    ? {
        concurrentJobs: SLOTS,
        maxPoolSize: SLOTS + 1,
        localQueue: { size: LOCAL_QUEUE, refetchDelay: { durationMs: 10 } },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
      }
    : {};
  const mail = quick ? async () => tally.hit() : async (payload) => tally.note(payload.number);
  const runner = await run({ preset: { worker: { connectionString, ...settings } }, logger: silent, taskList: { mail } });
  await runner.promise;
}

async function main() {
  const [command, connectionString, argument] = process.argv.slice(2);
  if (command === "install") return runMigrations({ connectionString, logger: silent });
  if (command === "worker") return work(connectionString, argument === "quick");
  const utils = await makeWorkerUtils({ connectionString, logger: silent });
  await { enqueue, trickle }[command](utils, Number(argument));
  await utils.release();
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
