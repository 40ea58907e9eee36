// Programs with @fivewire/client, over BlipMQ.

import { BlipMQClient } from "@fivewire/client";
import { arrived, begin, inTasks, note, oneByOne, run, watchIdle, windows, work } from "./work.mjs";

const { host, port, key, topic, subscription } = work.at;
const connect = () => BlipMQClient.connect({ host, port, key });
const { prefetch } = work;

await run({
  async publish() {
    const client = await connect();
    begin();
    for (const bodies of windows()) {
      for (const body of bodies) await client.publish(topic, body);
      await client.flush();
    }
    await client.close();
  },
  async consume() {
    const client = await connect();
    begin();
    for await (const message of client.messages(subscription, { prefetch })) {
      message.ack();
      if (note(message.body)) break;
    }
    await client.close();
  },
  async confirm() {
    const client = await connect();
    await inTasks((body) => client.publish(topic, body, { confirm: true }));
    await client.close();
  },
  async alone() {
    const [client, consuming] = [await connect(), await connect()];
    void (async () => {
      for await (const message of consuming.messages(subscription, { prefetch })) {
        arrived();
        message.ack();
      }
    })();
    await oneByOne((body) => client.publish(topic, body, { confirm: true }));
  },
  async idle() {
    for (let n = 0; n < work.consumers; n++) {
      const client = await connect();
      void (async () => {
        for await (const message of client.messages(subscription)) message.ack();
      })();
    }
    await watchIdle();
  },
});
