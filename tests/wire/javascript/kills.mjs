/** Publishes with confirmation and consumes, whatever happens to the broker; prints what was confirmed and what came. */

import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const { BlipMQClient, Backoff } = await import(pathToFileURL(`${process.env.FIVEWIRE_DIST}/index.js`).href);
const options = { port: Number(process.argv[2]), key: "dev-key", resend: true, reconnect: new Backoff(20, 200), timeout: 5000 };
const [publisher, consumer] = await Promise.all([BlipMQClient.connect(options), BlipMQClient.connect(options)]);
const subscription = await consumer.subscribe("kills");
const confirmed = new Set();
const seen = new Set();
let duplicates = 0;
let stopping = false;

consumer.on("connected", (again) => again && console.log("again"));
createInterface({ input: process.stdin }).once("line", () => (stopping = true));
console.log("ready");

async function publish(lane) {
  for (let n = 0; !stopping; n++) {
    const body = `${lane}-${n}`;
    await publisher.publish("kills", body, { confirm: true });
    confirmed.add(body);
    if (confirmed.size % 1000 === 0) console.log("thousand");
  }
}
const published = Promise.all(Array.from({ length: 20 }, (_, lane) => publish(lane)));
let all = false;
published.then(() => (all = true));
for await (const message of consumer.messages(subscription, { timeout: 20_000 })) {
  const body = `${message.body}`;
  if (seen.has(body)) duplicates += 1;
  seen.add(body);
  message.ack();
  if (all && [...confirmed].every((each) => seen.has(each))) break;
}
const lost = [...confirmed].filter((each) => !seen.has(each)).length;
console.log(JSON.stringify({ confirmed: confirmed.size, lost, duplicates }));
process.exit(lost);
