// What `manage.py bench clients --javascript` gives its programs to do, and what they print: see
// brokersite/rigs/clients/program.py, which does the same for Python.

import { writeFileSync } from "node:fs";

const WIDTH = 8;
const WARM_ALONE = 20;
const WATCHED = 3000;

export const [role, work] = [process.argv[2], JSON.parse(process.argv[3])];
export const end = WIDTH * work.count;
const column = Buffer.allocUnsafe(2 * end + WIDTH);
let size = 0;
let began = 0;
let usage = process.cpuUsage();
const figures = {};

process.stdin.on("end", () => process.exit(1)).resume(); // the command has ended

const seconds = () => Number(process.hrtime.bigint()) / 1e9;

/** Says that all is set up: the measurement begins. */
export function begin() {
  process.stdout.write("ready\n");
  usage = process.cpuUsage();
  began = seconds();
}

/** The bodies of the messages, by windows. */
export function* windows() {
  for (let first = 0; first < work.count; first += work.window) {
    const bodies = [];
    for (let n = first; n < Math.min(first + work.window, work.count); n++) {
      const body = Buffer.alloc(work.size, "x");
      body.writeUInt32BE(work.run * 65536, 0);
      body.writeUInt32BE(n, 4);
      bodies.push(body);
    }
    yield bodies;
  }
}

function* bodies() {
  for (const window of windows()) yield* window;
}

/** Notes a message; whether each has come, repetitions aside. */
export function note(body) {
  if (size < column.length) column.set(body.subarray(0, WIDTH), size);
  size += WIDTH;
  if (size < end) return false;
  const came = column.subarray(0, size);
  const seen = new Set();
  for (let at = 0; at < came.length; at += WIDTH) seen.add(came.readUInt32BE(at + 4));
  if (seen.size < work.count) return false;
  writeFileSync(work.column, came);
  return true;
}

/** Publishes all messages by so many tasks, each of which awaits its confirm. */
export async function inTasks(publish) {
  const all = bodies();
  const loop = async () => {
    for (let next = all.next(); !next.done; next = all.next()) await publish(next.value);
  };
  begin();
  await Promise.all(Array.from({ length: work.tasks }, loop));
}

/** Publishes one message after the other, each when the one before has come to the handler, which calls `arrived`. */
export async function oneByOne(publish) {
  const [confirmed, delivered] = [[], []];
  begin();
  for (const body of bodies()) {
    const sent = performance.now();
    const handled = new Promise((resolve) => (arrived = () => resolve(performance.now())));
    await publish(body);
    confirmed.push(performance.now() - sent);
    delivered.push((await handled) - sent);
  }
  figures.confirm_p50_us = 1000 * median(confirmed);
  figures.deliver_p50_us = 1000 * median(delivered);
}

/** Is called by the handler of the one message. */
export let arrived = () => undefined;

function median(values) {
  const sorted = values.slice(values.length > WARM_ALONE ? WARM_ALONE : 0).sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)];
}

/** Consumers wait for messages that do not come. */
export async function watchIdle() {
  begin();
  await new Promise((resolve) => setTimeout(resolve, WATCHED));
}

/** Runs the program of the role, and prints what was measured. */
export async function run(programs) {
  await programs[role]();
  const used = process.cpuUsage(usage);
  const memory = process.memoryUsage.rss();
  const said = { began, ended: seconds(), cpu: (used.user + used.system) / 1e6, memory, ...figures };
  process.stdout.write(`${JSON.stringify(said)}\n`, () => process.exit(0));
}
