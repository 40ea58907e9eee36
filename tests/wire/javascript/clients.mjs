/** What a program does with each client of the package, one after another; prints a line for each. */

import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";

const { BlipMQClient, OverhopClient, SspqClient, Worker, Retry, QueueNotFound, Unencodable } = await import(
  pathToFileURL(`${process.env.FIVEWIRE_DIST}/index.js`).href
);
const [overhop, blipmq, sspq] = process.argv.slice(2).map((port) => ({ port: Number(port) }));

const blip = await BlipMQClient.connect({ ...blipmq, key: "dev-key" });
const subscription = await blip.subscribe("tour");
await Promise.all(Array.from({ length: 2000 }, (_, n) => blip.publish("tour", `${n}`, { confirm: true })));
const bodies = [];
for await (const message of blip.messages(subscription)) {
  bodies.push(`${message.body}`);
  message.ack();
  if (bodies.length === 2000) break;
}
assert.deepEqual(bodies, Array.from({ length: 2000 }, (_, n) => `${n}`));
await blip.flush();
await blip.close();
console.log("blipmq");

const simple = await SspqClient.connect(sspq);
await simple.send("hello");
for await (const message of simple.messages()) {
  assert.equal(`${message.payload} ${message.retries}`, "hello 3");
  simple.confirm();
  break;
}
await simple.close();
console.log("sspq");

const client = await OverhopClient.connect(overhop);
await assert.rejects(client.enqueue("emails", {}), QueueNotFound);
await client.createQueue("emails");
await assert.rejects(client.enqueue("emails", { price: 1.5 }), (error) => error instanceof Unencodable && /price/.test(error.path));
const jids = await client.enqueueMany("emails", Array.from({ length: 500 }, (_, n) => ({ n })));
const seen = new Set();
const worker = new Worker({
  ...overhop,
  concurrency: 20,
  handlers: {
    async emails(job) {
      if (job.payload.n === 7 && job.attempt === 1) throw new Retry(1);
      seen.add(job.payload.n);
      if (seen.size === 500) worker.stop();
      return { twice: 2 * job.payload.n };
    },
  },
});
await worker.run();
assert.deepEqual((await client.job(jids[7])).result, { twice: 14 });
await client.close();
console.log("overhop");
