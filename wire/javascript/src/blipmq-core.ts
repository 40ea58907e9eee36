/** The client's side of BlipMQ without I/O; docs/protocols/blipmq.md. */

import { ClientError, ConnectionLost, ProtocolViolation, Unencodable } from "./errors.js";
import { Deferred, FrameReader, lengthPrefixed, Outgoing, Signal, type ProtocolCore } from "./framing.js";

export const Kind = { HELLO: 1, AUTH: 2, PUBLISH: 3, SUBSCRIBE: 4, ACK: 5, NACK: 6, PING: 7, PONG: 8, POLL: 9 } as const;

const HEAD = 13;
const MAX_LENGTH = 16 * 1024 * 1024;
const WORD = 2 ** 32;
/** Request ids begin here and delivery tags at 1, so that an answer always shows which of the two it names. */
const FIRST_REQUEST = 2 ** 31;
/** After so many publishes or bytes the broker is asked to confirm them. */
const CONFIRM_COUNT = 256;
const CONFIRM_BYTES = 1 << 20;
/** With so many publishes or bytes unconfirmed a client publishes no more for now. */
const UNCONFIRMED_COUNT = 65_536;
const UNCONFIRMED_BYTES = 16 << 20;

/** The broker refused a frame with a NACK. The connection stays usable. */
export class NackError extends ClientError {
  /** Further refusals that the same `flush` found. */
  others: NackError[] = [];

  constructor(
    readonly code: number,
    readonly reason: string,
  ) {
    super(`${code} ${reason}`);
  }

  /** Whether another attempt may succeed. */
  get passing(): boolean {
    return this.code >= 500;
  }
}

/** A delivered message: `ack` it when it is processed. */
export interface BlipMQMessage {
  readonly topic: string;
  readonly body: Buffer;
  readonly qos: number;
  readonly subscription: number;
  /** The delivery tag, the same when the message is redelivered; undefined with QoS 0, which needs no ack. */
  readonly tag: number | undefined;
  ack(): void;
}

interface Publish {
  id: number;
  frame: Buffer;
  confirmed: Deferred<void> | undefined;
  /** Whether the program awaits `confirmed`; else `flush` reports a refusal. */
  isAwaited: boolean;
  reject: NackError | undefined;
}

interface Ask {
  id: number;
  reply: Deferred<number>;
  /** Publishes that this PING confirms. */
  covers: number;
}

interface Burst {
  pong: number;
  first: number;
  subscription: number;
  messages: BlipMQMessage[];
  reject: NackError | undefined;
}

/** A frame; an id is that of a request, or a tag when `isTag`. */
export function frame(kind: number, id: number, size: number, isTag = false): Buffer {
  const data = Buffer.allocUnsafe(HEAD + size);
  data.writeUInt32BE(9 + size, 0);
  data[4] = kind;
  writeId(data, id, 5, isTag);
  return data;
}

function writeId(data: Buffer, id: number, at: number, isTag: boolean): void {
  data.writeUInt32BE(Math.floor(id / WORD) + (isTag ? 0 : FIRST_REQUEST), at);
  data.writeUInt32BE(id % WORD, at + 4);
}

export function encodeHello(id: number, isTag = false): Buffer {
  const data = frame(Kind.HELLO, id, 2, isTag);
  data.writeUInt16BE(1, HEAD);
  return data;
}

export function encodeAuth(id: number, key: string, isTag = false): Buffer {
  const bytes = text(key, "key");
  const data = frame(Kind.AUTH, id, 2 + bytes.length, isTag);
  data.writeUInt16BE(bytes.length, HEAD);
  bytes.copy(data, HEAD + 2);
  return data;
}

export function encodeSubscribe(id: number, topic: string, qos: number, isTag = false): Buffer {
  const bytes = text(topic, "topic");
  const data = frame(Kind.SUBSCRIBE, id, 3 + bytes.length, isTag);
  data.writeUInt16BE(bytes.length, HEAD);
  bytes.copy(data, HEAD + 2);
  data[HEAD + 2 + bytes.length] = qos;
  return data;
}

export function encodePublish(id: number, topic: string, body: Uint8Array | string, qos: number, isTag = false): Buffer {
  const name = text(topic, "topic");
  const size = typeof body === "string" ? Buffer.byteLength(body) : body.length;
  if (HEAD - 4 + 3 + name.length + size > MAX_LENGTH) throw new Unencodable("body", `a frame has ${MAX_LENGTH} bytes at most`);
  const data = frame(Kind.PUBLISH, id, 3 + name.length + size, isTag);
  data[HEAD] = qos;
  data.writeUInt16BE(name.length, HEAD + 1);
  name.copy(data, HEAD + 3);
  if (typeof body === "string") data.write(body, HEAD + 3 + name.length);
  else data.set(body, HEAD + 3 + name.length);
  return data;
}

/** A POLL, or with a tag the ACK of a delivery. */
export function encodeOf(kind: number, id: number, subscription: number, isTag = false): Buffer {
  const data = frame(kind, id, 8, isTag);
  writeId(data, subscription, HEAD, true);
  return data;
}

function text(value: string, name: string): Buffer {
  const bytes = Buffer.from(value);
  if (!value.isWellFormed()) throw new Unencodable(name, "half a surrogate pair is no character");
  if (bytes.length > 0xffff) throw new Unencodable(name, "65535 bytes at most");
  return bytes;
}

/** One client's requests, their answers and the deliveries between them, over any number of connections. */
export class BlipMQCore implements ProtocolCore {
  readonly outgoing = new Outgoing();
  /** Wakes when publishes were confirmed, or the connection was lost. */
  readonly relieved = new Signal();
  onResent: (count: number) => void = () => undefined;
  private readonly reader = new FrameReader(lengthPrefixed(9, MAX_LENGTH));
  private nextId = 1;
  private readonly asks = new Map<number, Ask>();
  private bursts: Burst[] = [];
  private unconfirmed: Publish[] = [];
  private readonly byId = new Map<number, Publish>();
  private unconfirmedBytes = 0;
  private covered = 0;
  private uncoveredBytes = 0;
  private pinging = false;
  private refused: NackError[] = [];
  private lostError: Error | undefined;
  private generation = 0;

  constructor(
    private readonly key: string,
    private readonly resend: boolean,
  ) {}

  get awaiting(): boolean {
    return this.asks.size > 0;
  }

  get hasUnconfirmed(): boolean {
    return this.unconfirmed.length > 0 || this.lostError !== undefined || this.refused.length > 0;
  }

  get isCongested(): boolean {
    return this.unconfirmed.length >= UNCONFIRMED_COUNT || this.unconfirmedBytes >= UNCONFIRMED_BYTES;
  }

  async handshake(): Promise<void> {
    this.reader.clear();
    this.generation += 1;
    const hello = this.ask((id) => encodeHello(id));
    const auth = this.ask((id) => encodeAuth(id, this.key));
    await Promise.all([hello, auth]);
  }

  async resume(): Promise<void> {
    for (const publish of this.unconfirmed) this.outgoing.push(publish.frame);
    this.covered = 0;
    if (this.unconfirmed.length > 0) {
      this.onResent(this.unconfirmed.length);
      this.ping().catch(() => undefined);
    }
  }

  /** Resolves when it is confirmed, if `confirm`. */
  publish(topic: string, body: Uint8Array | string, qos: number, confirm: boolean): Promise<void> {
    const id = this.nextId++;
    const data = encodePublish(id, topic, body, qos);
    const publish: Publish = { id, frame: data, confirmed: confirm ? new Deferred() : undefined, isAwaited: confirm, reject: undefined };
    this.unconfirmed.push(publish);
    this.byId.set(id, publish);
    this.unconfirmedBytes += data.length;
    this.uncoveredBytes += data.length;
    this.outgoing.push(data);
    const uncovered = this.unconfirmed.length - this.covered;
    if (confirm) this.pingSoon();
    else if (uncovered >= CONFIRM_COUNT || this.uncoveredBytes >= CONFIRM_BYTES) this.ping().catch(() => undefined);
    return publish.confirmed?.promise ?? Promise.resolve();
  }

  async flush(): Promise<void> {
    if (this.unconfirmed.length > 0) {
      const last = this.unconfirmed[this.unconfirmed.length - 1] as Publish;
      const done = (last.confirmed ??= new Deferred());
      this.pingSoon();
      await done.promise.catch(() => undefined);
    } else if (!this.hasUnconfirmed) await this.ping();
    const [first, ...others] = this.refused;
    this.refused = [];
    const lost = this.lostError;
    this.lostError = undefined;
    if (first) {
      first.others = others;
      throw first;
    }
    if (lost) throw lost;
  }

  subscribe(topic: string, qos: number): Promise<number> {
    return this.ask((id) => encodeSubscribe(id, topic, qos));
  }

  /** Up to `limit` messages, in one round trip. */
  async poll(subscription: number, limit: number): Promise<BlipMQMessage[]> {
    const first = this.nextId;
    const polls = Buffer.allocUnsafe((HEAD + 8) * limit);
    for (let n = 0; n < limit; n++) encodeOf(Kind.POLL, this.nextId++, subscription).copy(polls, n * (HEAD + 8));
    this.outgoing.push(polls);
    const burst: Burst = { pong: this.nextId, first, subscription, messages: [], reject: undefined };
    this.bursts.push(burst);
    await this.ping();
    if (burst.reject && burst.messages.length === 0) throw burst.reject;
    return burst.messages;
  }

  receive(data: Buffer): void {
    this.reader.feed(data, (each) => this.take(each));
  }

  lost(error: Error, final: boolean): void {
    this.reader.clear();
    this.generation += 1;
    const asks = [...this.asks.values()];
    this.asks.clear();
    this.bursts = [];
    this.pinging = false;
    this.covered = 0;
    if ((final || !this.resend) && this.unconfirmed.length > 0) {
      const unsure = new ConnectionLost(`${error.message}; ${this.unconfirmed.length} publishes are not confirmed`, { cause: error });
      if (this.unconfirmed.some((publish) => !publish.isAwaited)) this.lostError = unsure;
      this.confirm(this.unconfirmed.length, unsure);
    }
    for (const { reply } of asks) reply.reject(error);
    this.relieved.notify();
  }

  private ask(encode: (id: number) => Buffer, covers = 0): Promise<number> {
    const id = this.nextId;
    this.outgoing.push(encode(id));
    this.nextId += 1;
    const reply = new Deferred<number>();
    this.asks.set(id, { id, reply, covers });
    return reply.promise;
  }

  /** PING, which confirms everything published before it. */
  private ping(): Promise<number> {
    const covers = this.unconfirmed.length - this.covered;
    this.covered += covers;
    this.uncoveredBytes = 0;
    return this.ask((id) => frame(Kind.PING, id, 0), covers);
  }

  /** One PING for all publishes of this turn of the event loop. */
  private pingSoon(): void {
    if (this.pinging) return;
    this.pinging = true;
    const generation = this.generation;
    queueMicrotask(() => {
      if (generation !== this.generation) return;
      this.pinging = false;
      if (this.unconfirmed.length > this.covered) this.ping().catch(() => undefined);
    });
  }

  private confirm(count: number, error?: Error): void {
    for (const { id, frame: data, confirmed, reject } of this.unconfirmed.splice(0, count)) {
      this.byId.delete(id);
      this.unconfirmedBytes -= data.length;
      const failure = reject ?? error;
      if (failure) confirmed?.reject(failure);
      else confirmed?.resolve();
    }
    this.covered = Math.max(this.covered - count, 0);
    this.relieved.notify();
  }

  private take(data: Buffer): void {
    const kind = data[4];
    const high = data.readUInt32BE(5);
    const isTag = high < FIRST_REQUEST;
    const id = (isTag ? high : high - FIRST_REQUEST) * WORD + data.readUInt32BE(9);
    if (kind === Kind.PUBLISH) this.takeDelivery(data, isTag ? id : undefined);
    else if (kind === Kind.NACK) this.takeNack(data, isTag, id);
    else if ((kind === Kind.ACK || kind === Kind.PONG) && !isTag) {
      const ask = this.finish(id);
      if (!ask) throw new ProtocolViolation(`frame type ${kind} answers nothing`);
      if (kind === Kind.ACK && data.length !== HEAD + 8) throw new ProtocolViolation("invalid ACK payload");
      ask.reply.resolve(kind === Kind.ACK ? data.readUInt32BE(HEAD) * WORD + data.readUInt32BE(HEAD + 4) : 0);
    } else throw new ProtocolViolation(`unexpected frame type ${kind}`);
  }

  private finish(id: number): Ask | undefined {
    const ask = this.asks.get(id);
    this.asks.delete(id);
    if (ask && ask.covers > 0) this.confirm(ask.covers);
    if (this.bursts[0]?.pong === id) this.bursts.shift();
    return ask;
  }

  private takeDelivery(data: Buffer, tag: number | undefined): void {
    const burst = this.bursts[0];
    if (!burst) throw new ProtocolViolation("a delivery without a POLL");
    if (data.length < HEAD + 3) throw new ProtocolViolation("invalid PUBLISH payload");
    const end = HEAD + 3 + data.readUInt16BE(HEAD + 1);
    if (data.length < end) throw new ProtocolViolation("invalid PUBLISH payload");
    const qos = data[HEAD] as number;
    burst.messages.push(
      new Delivered(this, this.generation, data.toString("utf8", HEAD + 3, end), data.subarray(end), qos, burst.subscription, qos ? tag : undefined),
    );
  }

  /** Puts an ACK into `outgoing`; a message of a connection before comes again instead. */
  acknowledge(message: BlipMQMessage, generation: number): void {
    if (message.tag === undefined || generation !== this.generation) return;
    this.outgoing.push(encodeOf(Kind.ACK, message.tag, message.subscription, true));
  }

  private takeNack(data: Buffer, isTag: boolean, id: number): void {
    if (data.length < HEAD + 4 || data.length !== HEAD + 4 + data.readUInt16BE(HEAD + 2)) {
      throw new ProtocolViolation("invalid NACK payload");
    }
    const error = new NackError(data.readUInt16BE(HEAD), data.toString("utf8", HEAD + 4));
    const burst = this.bursts[0];
    const publish = isTag ? undefined : this.byId.get(id);
    const ask = isTag ? undefined : this.finish(id);
    if (ask) ask.reply.reject(error);
    else if (!isTag && burst && id >= burst.first && id < burst.pong) burst.reject = error;
    else {
      if (publish) publish.reject = error;
      if (!publish?.isAwaited) this.refused.push(error);
    }
  }
}

class Delivered implements BlipMQMessage {
  private acked = false;

  constructor(
    private readonly core: BlipMQCore,
    private readonly generation: number,
    readonly topic: string,
    readonly body: Buffer,
    readonly qos: number,
    readonly subscription: number,
    readonly tag: number | undefined,
  ) {}

  ack(): void {
    if (!this.acked) this.core.acknowledge(this, this.generation);
    this.acked = true;
  }
}
