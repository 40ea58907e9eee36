// Programs with nats.js, on a stream of NATS JetStream and a pull consumer.

import { jetstream, jetstreamManager } from "@nats-io/jetstream";
import { connect as connectTo } from "@nats-io/transport-node";
import { arrived, begin, inTasks, note, oneByOne, run, watchIdle, windows, work } from "./work.mjs";

const { host, port, user, password, stream, consumer } = work.at;
const connect = () => connectTo({ servers: `${host}:${port}`, ...(user ? { user, pass: password } : {}) });

// A server that syncs every message has a whole window to answer first.
const PATIENCE = { timeout: 120_000 };

async function messages(connection) {
  const manager = await jetstreamManager(connection, PATIENCE);
  const { config } = await manager.consumers.info(stream, consumer);
  if (config.deliver_subject) {
    await manager.consumers.delete(stream, consumer);
    await manager.consumers.add(stream, {
      durable_name: consumer, ack_policy: "explicit", max_ack_pending: work.prefetch,
    });
  }
  const pull = await jetstream(connection, PATIENCE).consumers.get(stream, consumer);
  return pull.consume({ max_messages: work.prefetch });
}

await run({
  async publish() {
    const connection = await connect();
    const js = jetstream(connection, PATIENCE);
    begin();
    for (const bodies of windows()) await Promise.all(bodies.map((body) => js.publish(stream, body, PATIENCE)));
    await connection.close();
  },
  async consume() {
    const connection = await connect();
    const coming = await messages(connection);
    begin();
    for await (const message of coming) {
      message.ack();
      if (note(message.data)) break;
    }
    await connection.drain();
  },
  async confirm() {
    const connection = await connect();
    const js = jetstream(connection, PATIENCE);
    await inTasks((body) => js.publish(stream, body, PATIENCE));
    await connection.close();
  },
  async alone() {
    const [connection, consuming] = [await connect(), await connect()];
    const coming = await messages(consuming);
    void (async () => {
      for await (const message of coming) {
        arrived();
        message.ack();
      }
    })();
    const js = jetstream(connection, PATIENCE);
    await oneByOne((body) => js.publish(stream, body, PATIENCE));
  },
  async idle() {
    const connection = await connect();
    for (let n = 0; n < work.consumers; n++) {
      const coming = await messages(connection);
      void (async () => {
        for await (const message of coming) message.ack();
      })();
    }
    await watchIdle();
  },
});
