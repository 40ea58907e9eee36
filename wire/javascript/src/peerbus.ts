/** peerbus: signed messages between programs by name. */

import WebSocket, { type ClientOptions } from "ws";
import { Backoff } from "./backoff.js";
import type { ConnectionEvents } from "./connection.js";
import { asError, ConnectionLost, ReplyTimeout } from "./errors.js";
import { Events } from "./events.js";
import { MAX_FRAME, NoAnswer, PeerCore, type Json, type PeerMessage } from "./peerbus-core.js";

export interface PeerOptions {
  url: string;
  token: string;
  name: string;
  /** The one that all peers share, 32 bytes or more. With null all that arrive are taken unverified. */
  secret: string | Uint8Array | null;
  /** Milliseconds for connecting and for each answer. */
  timeout?: number;
  dedupeSize?: number;
  /** The most messages that wait here to be taken. */
  prefetch?: number;
  tls?: ClientOptions;
  backoff?: Backoff;
}

export class PeerClient extends Events<ConnectionEvents> {
  private readonly core: PeerCore;
  private readonly timeout: number;
  private socket: WebSocket | undefined;
  private closed = false;
  private started = false;
  private scheduled = false;

  constructor(private readonly options: PeerOptions) {
    super();
    this.timeout = options.timeout ?? 10_000;
    this.core = new PeerCore(options.token, options.name, options.secret, options.dedupeSize ?? 10_000);
    this.core.wake = () => this.schedule();
  }

  static async connect(options: PeerOptions): Promise<PeerClient> {
    const client = new PeerClient(options);
    await client.connect();
    return client;
  }

  /** Connects and registers, once. A connection that is lost later is made again. */
  async connect(): Promise<void> {
    await this.open();
    this.started = true;
    this.tell("connected", false);
  }

  get name(): string {
    return this.core.name;
  }
  get dropped(): ReadonlyMap<string, number> {
    return this.core.dropped;
  }
  get unconfirmed(): number {
    return this.core.unconfirmed;
  }

  /**
   * Sends a message to a peer and returns its id; with `confirm` it is stored then. Without a connection it is sent
   * when there is one again; the broker takes an id once, so nothing comes twice by that.
   */
  async send(to: string, body: Json, options: { id?: string; source?: string; confirm?: boolean } = {}): Promise<string> {
    const { id, text } = this.core.write(to, body, options.id, options.source);
    this.check();
    if (this.core.congested) await this.until(() => !this.core.congested, this.timeout);
    this.core.send(text);
    if (options.confirm) await this.flush();
    return id;
  }

  broadcast(body: Json, options: { id?: string; source?: string; confirm?: boolean } = {}): Promise<string> {
    return this.send("*", body, options);
  }

  /** Resolves when everything sent is stored. */
  async flush(timeout = this.timeout): Promise<void> {
    const target = this.core.sent;
    if (this.core.confirmedCount >= target) return;
    await Promise.resolve(); // sends of one turn share a question
    if (this.core.askedCount < target) this.core.ask();
    await this.until(() => this.core.confirmedCount >= target, timeout);
  }

  /** Returns the names of the connected peers. */
  async peers(): Promise<string[]> {
    this.check();
    const answer = this.core.ask();
    await this.until(() => answer.names !== undefined, this.timeout);
    return answer.names ?? [];
  }

  /** Returns the next message, or undefined after `timeout` milliseconds; `ack` it when it is consumed. */
  async receive(timeout = Infinity): Promise<PeerMessage | undefined> {
    const deadline = performance.now() + timeout;
    while (this.core.inbox.length === 0) {
      this.check();
      const left = deadline - performance.now();
      if (left <= 0) return undefined;
      await this.core.changed.wait(left);
    }
    const message = this.core.inbox.shift();
    this.makeRoom();
    return message;
  }

  /** Iterates over messages; each is acknowledged when the next one is asked for. */
  async *messages(options: { timeout?: number } = {}): AsyncGenerator<PeerMessage, void> {
    for (let message; (message = await this.receive(options.timeout)); message.ack()) yield message;
  }

  /** Flushes and disconnects. */
  async close(): Promise<void> {
    try {
      if (this.core.unconfirmed > 0 && this.core.established) await this.flush();
    } finally {
      this.closed = true;
      this.core.changed.notify();
      const socket = this.socket;
      if (socket && socket.readyState !== WebSocket.CLOSED) {
        await new Promise<void>((resolve) => {
          socket.once("close", () => resolve());
          this.push();
          socket.close(1000);
          socket.resume();
        });
      }
      this.tell("closed");
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  private check(): void {
    if (this.core.error) throw this.core.error;
    if (this.closed || !this.started) throw new ConnectionLost(this.closed ? "the connection is closed" : "not connected");
  }

  private async until(condition: () => boolean, timeout: number): Promise<void> {
    const deadline = performance.now() + timeout;
    while (!condition()) {
      this.check();
      const left = deadline - performance.now();
      if (left <= 0) {
        this.socket?.terminate(); // a silent broker: connect again
        throw new NoAnswer(`no answer for ${timeout} ms`);
      }
      await this.core.changed.wait(left);
    }
  }

  private open(): Promise<void> {
    return new Promise((resolve, reject) => {
      const socket = new WebSocket(this.options.url, {
        perMessageDeflate: false, maxPayload: MAX_FRAME, handshakeTimeout: this.timeout, ...this.options.tls,
      });
      this.socket = socket;
      let failure: Error | undefined;
      const timer = setTimeout(() => {
        failure = new ReplyTimeout(`no answer to the register for ${this.timeout} ms`);
        socket.terminate();
      }, this.timeout);
      socket.on("error", (error) => (failure ??= error));
      socket.on("open", () => socket.send(this.core.register()));
      socket.on("message", (data, isBinary) => {
        try {
          if (!isBinary) this.core.received(String(data));
        } catch (error) {
          failure = asError(error);
          socket.terminate();
        }
        if (this.core.established) {
          clearTimeout(timer);
          resolve();
        }
        if (this.core.inbox.length >= (this.options.prefetch ?? 10_000) && !this.core.awaiting) socket.pause();
      });
      socket.on("close", (code, reason) => {
        clearTimeout(timer);
        const wasEstablished = this.core.established;
        const rejection = this.core.disconnected(code, String(reason));
        const error = rejection ?? failure ?? new ConnectionLost(String(reason) || "the broker closed the connection");
        reject(error);
        if (wasEstablished) this.disconnected(error);
      });
    });
  }

  private disconnected(error: Error): void {
    this.core.changed.notify();
    if (this.closed) return;
    this.tell("disconnected", error);
    if (!this.core.error) void this.reconnect(error);
  }

  private async reconnect(error: Error): Promise<void> {
    for (const delay of (this.options.backoff ?? new Backoff()).delays()) {
      this.tell("reconnecting", delay, error);
      const end = performance.now() + delay;
      while (!this.closed && performance.now() < end) await this.core.changed.wait(end - performance.now());
      if (this.closed) return;
      try {
        const again = this.core.unconfirmed;
        await this.open();
        this.tell("connected", true);
        if (again > 0) this.tell("resent", again);
        return;
      } catch (failure) {
        error = asError(failure);
        if (this.core.error) return this.core.changed.notify();
      }
    }
  }

  private makeRoom(): void {
    if (this.socket?.isPaused && this.core.inbox.length < (this.options.prefetch ?? 10_000) / 2) this.socket.resume();
  }

  private schedule(): void {
    if (this.socket?.isPaused && this.core.awaiting) this.socket.resume(); // an answer may be behind messages
    if (this.scheduled) return;
    this.scheduled = true;
    setImmediate(() => {
      this.scheduled = false;
      this.push();
    });
  }

  private push(): void {
    if (!this.core.established || this.socket?.readyState !== WebSocket.OPEN) return;
    const outgoing = this.core.outgoing;
    this.core.outgoing = [];
    for (const text of outgoing) this.socket.send(text);
  }
}
