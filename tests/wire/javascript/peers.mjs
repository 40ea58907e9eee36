/** Two peers over a WebSocket; the second time after the broker was killed. Prints a line for each part. */

import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";

const { PeerClient, Backoff, TakenOver } = await import(pathToFileURL(`${process.env.FIVEWIRE_DIST}/index.js`).href);
const [url, secret] = process.argv.slice(2);
const options = { url, secret, token: "dev-key", backoff: new Backoff(20, 200) };
const alice = await PeerClient.connect({ ...options, name: "js-alice" });
const bob = await PeerClient.connect({ ...options, name: "js-bob", prefetch: 10 });

async function exchange(from, count) {
  await Promise.all(Array.from({ length: count }, (_, n) => alice.send("js-bob", { n: from + n }, { confirm: n === count - 1 })));
  const numbers = [];
  while (numbers.length < count) {
    const message = await bob.receive();
    assert.equal(message.sender, "js-alice");
    numbers.push(message.body.n);
    message.ack();
  }
  await bob.peers(); // the acknowledgements are stored
  assert.deepEqual(numbers, Array.from({ length: count }, (_, n) => from + n));
}

await exchange(0, 200); // 20 times what bob has room for
assert.deepEqual((await alice.peers()).filter((name) => name.startsWith("js-")).sort(), ["js-alice", "js-bob"]);
console.log("exchanged");
await Promise.all([alice, bob].map((peer) => new Promise((resolve) => peer.once("connected", resolve))));
console.log("again");
await exchange(1000, 50);
const other = await PeerClient.connect({ ...options, name: "js-alice" });
await assert.rejects(async () => {
  for (;;) await alice.receive();
}, TakenOver);
await Promise.all([other.close(), bob.close()]);
console.log("taken over");
process.exit(0);
