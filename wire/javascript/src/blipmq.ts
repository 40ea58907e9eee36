/** BlipMQ: topics with durable subscriptions. */

import { BlipMQCore, type BlipMQMessage } from "./blipmq-core.js";
import { Connection, type ConnectionEvents, type Options } from "./connection.js";
import { Events } from "./events.js";
import { Signal } from "./framing.js";

export { NackError, type BlipMQMessage } from "./blipmq-core.js";

export interface BlipMQOptions extends Options {
  key: string;
  /**
   * Send publishes that were not confirmed once more after a reconnect. Consumers may then get a message twice.
   * Without it they are refused with ConnectionLost.
   */
  resend?: boolean;
}

export interface MessagesOptions {
  /** The most messages that wait in the client. Fewer do when the program is slow. */
  prefetch?: number;
  /** End after so many milliseconds without a message. */
  timeout?: number;
}

/** Milliseconds of work that are fetched ahead: well below the ack timeout of a queue, 100 ms by default. */
const AHEAD = 20;
const FIRST_PAUSE = 1;
const LONGEST_PAUSE = 100;

export class BlipMQClient extends Events<ConnectionEvents> {
  private readonly core: BlipMQCore;
  private readonly connection: Connection;
  private readonly subscriptions = new Map<string, Promise<number>>();

  constructor(options: BlipMQOptions) {
    super();
    this.core = new BlipMQCore(options.key, options.resend ?? false);
    this.connection = new Connection(this.core, options, 5555);
    relay(this.connection, this);
    this.core.onResent = (count) => this.tell("resent", count);
  }

  static async connect(options: BlipMQOptions): Promise<BlipMQClient> {
    const client = new BlipMQClient(options);
    await client.connect();
    return client;
  }

  connect(): Promise<void> {
    return this.connection.connect();
  }

  /**
   * Publishes a message. Resolves when it is on its way, with `confirm` when it is durable; rejects with NackError
   * or ConnectionLost then. Publishes of one turn of the event loop share a write, their confirmations one answer.
   */
  publish(topic: string, body: Uint8Array | string, options: { qos?: 0 | 1; confirm?: boolean } = {}): Promise<void> {
    if (!this.connection.isOpen || this.core.isCongested) return this.publishLater(topic, body, options);
    const confirmed = this.core.publish(topic, body, options.qos ?? 1, options.confirm ?? false);
    return options.confirm ? confirmed : this.connection.ready();
  }

  /** Resolves when everything published before is durable. Rejects with NackError for the first refusal. */
  async flush(): Promise<void> {
    if (!this.core.hasUnconfirmed) await this.connection.ready();
    await this.core.flush();
  }

  /** Makes a subscription and returns its id. Keep the id: each call makes another one. */
  async subscribe(topic: string, qos: 0 | 1 = 1): Promise<number> {
    await this.connection.ready();
    return this.core.subscribe(topic, qos);
  }

  /** Returns the next message, or undefined after `timeout` milliseconds without one. */
  async poll(subscription: number, timeout = 0): Promise<BlipMQMessage | undefined> {
    for await (const message of this.messages(subscription, { prefetch: 1, timeout })) return message;
    return undefined;
  }

  /**
   * Iterates over the messages of a subscription, or of a topic, which this client subscribes to once. Fetches ahead
   * of the program. A message that is not acknowledged in time comes again, and so do those that were not yielded.
   */
  async *messages(source: number | string, options: MessagesOptions = {}): AsyncGenerator<BlipMQMessage, void> {
    const subscription = typeof source === "number" ? source : await this.subscribed(source);
    const puller = new Puller(this.core, this.connection, subscription, options.prefetch ?? 1000);
    let idleSince = performance.now();
    for (;;) {
      const message = puller.buffer.shift();
      if (message) {
        puller.refill();
        yield message;
        idleSince = performance.now();
        continue;
      }
      const left = (options.timeout ?? Infinity) - (performance.now() - idleSince);
      if (left <= 0 && puller.hasAsked) return;
      this.connection.check();
      await puller.wait(left);
    }
  }

  /** Publishes, confirms and disconnects. */
  async close(): Promise<void> {
    try {
      if (this.core.hasUnconfirmed && this.connection.isOpen) await this.core.flush();
    } finally {
      await this.connection.close();
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  private async publishLater(topic: string, body: Uint8Array | string, options: { qos?: 0 | 1; confirm?: boolean }): Promise<void> {
    do {
      await this.connection.ready();
      if (this.core.isCongested) await this.core.relieved.wait();
    } while (this.core.isCongested || !this.connection.isOpen);
    await this.publish(topic, body, options);
  }

  private subscribed(topic: string): Promise<number> {
    let subscription = this.subscriptions.get(topic);
    if (!subscription) {
      subscription = this.subscribe(topic);
      this.subscriptions.set(topic, subscription);
      subscription.catch(() => this.subscriptions.delete(topic));
    }
    return subscription;
  }
}

/** Polls a subscription ahead of the program: as much as it processes in AHEAD milliseconds. */
class Puller {
  buffer: Queue<BlipMQMessage> = new Queue();
  hasAsked = false;
  private window = 1;
  private polling = false;
  private pause = 0;
  private nextPoll = 0;
  private begun = performance.now();
  private taken = 0;
  private failure: Error | undefined;
  private readonly news = new Signal();

  constructor(
    private readonly core: BlipMQCore,
    private readonly connection: Connection,
    private readonly subscription: number,
    private readonly prefetch: number,
  ) {}

  /** Asks for more when half of the window is processed. */
  refill(): void {
    this.taken += 1;
    if (!this.polling && this.buffer.length <= this.window / 2 && this.connection.isOpen) void this.poll();
  }

  /** Waits for messages: polls, with growing pauses while there are none. */
  async wait(left: number): Promise<void> {
    if (this.failure) throw this.failure;
    const now = performance.now();
    if (!this.connection.isOpen) await Promise.race([this.connection.ready(), this.news.wait(left)]);
    else if (!this.polling && now >= this.nextPoll) void this.poll();
    else await this.news.wait(this.polling ? Infinity : Math.min(this.nextPoll - now, left));
  }

  private async poll(): Promise<void> {
    this.polling = true;
    this.adapt();
    try {
      const messages = await this.core.poll(this.subscription, this.window);
      for (const message of messages) this.buffer.push(message);
      this.pause = messages.length > 0 ? 0 : Math.min(Math.max(2 * this.pause, FIRST_PAUSE), LONGEST_PAUSE);
      this.nextPoll = performance.now() + this.pause;
    } catch (error) {
      if (this.connection.isOpen) this.failure = error as Error;
    }
    this.polling = false;
    this.hasAsked = true;
    this.news.notify();
  }

  private adapt(): void {
    const now = performance.now();
    if (this.taken >= this.window / 2) {
      const each = Math.max((now - this.begun) / this.taken, 0.001);
      this.window = Math.max(1, Math.min(this.prefetch, 4 * this.window, Math.floor(AHEAD / each)));
    }
    this.begun = now;
    this.taken = 0;
  }
}

/** A queue whose `shift` does not move the rest. */
class Queue<T> {
  private items: (T | undefined)[] = [];
  private at = 0;

  get length(): number {
    return this.items.length - this.at;
  }

  push(item: T): void {
    this.items.push(item);
  }

  shift(): T | undefined {
    const item = this.items[this.at];
    if (this.at < this.items.length) this.items[this.at++] = undefined;
    if (this.at === this.items.length) {
      this.items = [];
      this.at = 0;
    }
    return item;
  }
}

/** Passes the events of a connection on to its client. */
export function relay(from: Connection, to: Events<ConnectionEvents>): void {
  from.on("connected", (again) => to.tell("connected", again));
  from.on("disconnected", (error) => to.tell("disconnected", error));
  from.on("reconnecting", (milliseconds, error) => to.tell("reconnecting", milliseconds, error));
  from.on("closed", () => to.tell("closed"));
}
