/** The common parts of the protocol cores: bytes to send, frames cut out of a stream, promises to settle. No I/O. */

import { ProtocolViolation } from "./errors.js";

/** A protocol's client side without I/O; `Connection` moves its bytes. */
export interface ProtocolCore {
  /** Bytes to be sent. */
  readonly outgoing: Outgoing;
  /** Whether the broker owes an answer. */
  readonly awaiting: boolean;
  /** A connection is open: begin the handshake. Resolves when requests may be sent. */
  handshake(): Promise<void>;
  /** The handshake is over: resume subscriptions and send again what may be sent again. */
  resume(): Promise<void>;
  /** Take bytes as they arrived. Throws ProtocolViolation for what a broker never sends. */
  receive(data: Buffer): void;
  /** The connection has ended; `final`: there is no further one. */
  lost(error: Error, final: boolean): void;
}

/** Bytes to be sent, gathered until they are taken. `wake` is called when there are the first. */
export class Outgoing {
  wake: () => void = () => undefined;
  size = 0;
  private parts: Buffer[] = [];

  push(part: Buffer): void {
    this.size += part.length;
    this.parts.push(part);
    if (this.parts.length === 1) this.wake();
  }

  take(): Buffer {
    const all = this.parts.length === 1 ? (this.parts[0] as Buffer) : Buffer.concat(this.parts, this.size);
    this.clear();
    return all;
  }

  clear(): void {
    this.parts = [];
    this.size = 0;
  }
}

/** Cuts a stream into frames. `sizeOf` returns the bytes of the frame that begins at `at`, 0 while that is unknown. */
export class FrameReader {
  private parts: Buffer[] = [];
  private held = 0;
  private need = 0;

  constructor(private readonly sizeOf: (data: Buffer, at: number) => number) {}

  /** Calls `take` for each whole frame. Joins the parts of a frame once, however many there are. */
  feed(data: Buffer, take: (frame: Buffer) => void): void {
    if (this.held > 0) {
      this.parts.push(data);
      this.held += data.length;
      if (this.held < this.need) return;
      data = Buffer.concat(this.parts, this.held);
      this.parts = [];
      this.held = 0;
    }
    let at = 0;
    for (let size; (size = this.sizeOf(data, at)) > 0 && at + size <= data.length; at += size) {
      take(data.subarray(at, at + size));
    }
    if (at < data.length) {
      this.parts = [data.subarray(at)];
      this.held = data.length - at;
      this.need = this.sizeOf(data, at);
    }
  }

  clear(): void {
    this.parts = [];
    this.held = 0;
  }
}

/** A frame's size from a length field of four bytes. */
export function lengthPrefixed(least: number, most: number): (data: Buffer, at: number) => number {
  return (data, at) => {
    if (data.length - at < 4) return 0;
    const length = data.readUInt32BE(at);
    if (length < least || length > most) throw new ProtocolViolation(`a frame of ${length} bytes`);
    return 4 + length;
  };
}

/** A promise with its two ends. A rejection that nobody awaits is not an unhandled one. */
export class Deferred<T> {
  readonly promise: Promise<T>;
  resolve!: (value: T) => void;
  reject!: (error: Error) => void;

  constructor() {
    this.promise = new Promise<T>((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
    this.promise.catch(() => undefined);
  }
}

/** Wakes all that wait for a change. */
export class Signal {
  private waiting = new Set<() => void>();

  notify(): void {
    const waiting = this.waiting;
    this.waiting = new Set();
    for (const wake of waiting) wake();
  }

  /** Resolves at the next change, or after so many milliseconds. */
  async wait(milliseconds = Infinity): Promise<void> {
    if (milliseconds <= 0) return;
    let timer: NodeJS.Timeout | undefined;
    let wake: () => void = () => undefined;
    await new Promise<void>((resolve) => {
      wake = resolve;
      this.waiting.add(resolve);
      if (milliseconds < 2 ** 31) timer = setTimeout(resolve, milliseconds);
    });
    clearTimeout(timer);
    this.waiting.delete(wake);
  }
}
