/** SSPQ: one work queue for the smallest clients. Nothing that is sent is confirmed. */

import { relay } from "./blipmq.js";
import { Connection, type ConnectionEvents, type Options } from "./connection.js";
import { Events } from "./events.js";
import { SspqCore, type SspqMessage } from "./sspq-core.js";

export { Declined, NothingHeld, SlotBusy, type SspqMessage } from "./sspq-core.js";

export interface SspqOptions extends Options {
  /** Bytes of the largest message that is accepted. */
  maxPayload?: number;
}

export class SspqClient extends Events<ConnectionEvents> {
  private readonly core: SspqCore;
  private readonly connection: Connection;

  constructor(options: SspqOptions = {}) {
    super();
    this.core = new SspqCore(options.maxPayload);
    this.connection = new Connection(this.core, options, 8888);
    relay(this.connection, this);
  }

  static async connect(options: SspqOptions = {}): Promise<SspqClient> {
    const client = new SspqClient(options);
    await client.connect();
    return client;
  }

  connect(): Promise<void> {
    return this.connection.connect();
  }

  /** Sends a message that may be redelivered `retries` times; 255 is without limit. Nothing is answered. */
  async send(payload: Uint8Array | string, retries = 3): Promise<void> {
    await this.connection.ready();
    this.core.send(payload, retries);
  }

  /** Returns the next message: process it and `confirm`. Undefined after `timeout` ms; the request stands then. */
  async receive(timeout = Infinity): Promise<SspqMessage | undefined> {
    await this.connection.ready();
    return this.core.receiveMessage(false, timeout);
  }

  /** Returns the next dead letter, as `receive` returns a message. */
  async deadReceive(timeout = Infinity): Promise<SspqMessage | undefined> {
    await this.connection.ready();
    return this.core.receiveMessage(true, timeout);
  }

  /** Removes the message held from the queue; then the next can be received. */
  confirm(): void {
    this.core.confirm();
  }

  /**
   * Iterates over messages, confirming each after its loop body, until none comes for `timeout` milliseconds. A body
   * that leaves the loop leaves its message unconfirmed: `confirm` it before, or close to give it back.
   */
  async *messages(options: { timeout?: number; dead?: boolean } = {}): AsyncGenerator<SspqMessage, void> {
    for (;;) {
      await this.connection.ready();
      const message = await this.core.receiveMessage(options.dead ?? false, options.timeout ?? Infinity);
      if (!message) return;
      yield message;
      if (this.core.held === message) this.core.confirm(); // goes out in one packet with the next receive
    }
  }

  /** Disconnects; a message held goes back. */
  close(): Promise<void> {
    return this.connection.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}
