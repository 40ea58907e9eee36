// Programs with amqplib, on a quorum queue of RabbitMQ.

import amqplib from "amqplib";
import { arrived, begin, inTasks, note, oneByOne, run, watchIdle, windows, work } from "./work.mjs";

const { host, port, user, password, vhost, queue } = work.at;
const login = { hostname: host, port, username: user || "guest", password: password || "guest", vhost };
const connect = () => amqplib.connect(login);

const published = (channel, body) =>
  new Promise((resolve, reject) => {
    channel.sendToQueue(queue, body, { persistent: true }, (error) => (error ? reject(error) : resolve()));
  });

async function consuming(handle) {
  const connection = await connect();
  const channel = await connection.createChannel();
  await channel.prefetch(work.prefetch);
  await channel.consume(queue, (message) => handle(channel, message));
  return connection;
}

await run({
  async publish() {
    const connection = await connect();
    const channel = await connection.createConfirmChannel();
    begin();
    for (const bodies of windows()) {
      for (const body of bodies) channel.sendToQueue(queue, body, { persistent: true });
      await channel.waitForConfirms();
    }
    await connection.close();
  },
  async consume() {
    let connection;
    await new Promise((resolve) => {
      begin();
      connection = consuming((channel, message) => {
        channel.ack(message);
        if (note(message.content)) resolve(channel.close());
      });
    });
    await (await connection).close();
  },
  async confirm() {
    const connection = await connect();
    const channel = await connection.createConfirmChannel();
    await inTasks((body) => published(channel, body));
    await connection.close();
  },
  async alone() {
    const channel = await (await connect()).createConfirmChannel();
    await consuming((consumer, message) => {
      arrived();
      consumer.ack(message);
    });
    await oneByOne((body) => published(channel, body));
  },
  async idle() {
    const connection = await connect();
    for (let n = 0; n < work.consumers; n++) {
      const channel = await connection.createChannel();
      await channel.prefetch(work.prefetch);
      await channel.consume(queue, (message) => channel.ack(message));
    }
    await watchIdle();
  },
});
