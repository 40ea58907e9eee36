/** A worker that is begun before its broker, and stopped when that is gone; prints a line for each. */

import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const { Worker, Backoff } = await import(pathToFileURL(`${process.env.FIVEWIRE_DIST}/index.js`).href);
const handlers = { early: (job) => console.log("job", job.payload.n) };
const worker = new Worker({ port: Number(process.argv[2]), reconnect: new Backoff(20, 100), handlers });
worker.once("reconnecting", () => console.log("waiting"));
worker.on("disconnected", () => console.log("gone"));
createInterface({ input: process.stdin }).once("line", () => worker.stop());
console.log("ready");
await worker.run();
console.log("stopped");
process.exit(0);
