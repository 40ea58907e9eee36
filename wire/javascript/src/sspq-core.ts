/** The client's side of SSPQ without I/O: one slot, for a RECEIVE that waits or a message that is held. */

import { ClientError, ProtocolViolation, Unencodable } from "./errors.js";
import { FrameReader, Outgoing, Signal, type ProtocolCore } from "./framing.js";

export const Packet = { SEND: 0x5e, RECEIVE: 0xec, CONFIRM: 0xc0, DEAD_RECEIVE: 0xde, NO_RECEIVE: 0x0e } as const;
const HEAD = 8;
const MAX_PAYLOAD = 16 * 1024 * 1024;

/** A delivered message: confirm it when it is processed. */
export interface SspqMessage {
  readonly payload: Buffer;
  /** Redeliveries that remain; 255 for no limit, 0 for the last one and for a dead letter. */
  readonly retries: number;
}

/** NO_RECEIVE: the broker will not deliver now. Ask again later. */
export class Declined extends ClientError {}

/** The slot is taken: confirm the message held, or go on with the kind of receive that waits. */
export class SlotBusy extends ClientError {}

/** There is no message to confirm: receive one first. */
export class NothingHeld extends ClientError {}

export function packet(kind: number, retries = 0, payload: Uint8Array | string = ""): Buffer {
  const size = typeof payload === "string" ? Buffer.byteLength(payload) : payload.length;
  if (size > 0xffffffff) throw new Unencodable("payload", "a payload has less than 4 GiB");
  const data = Buffer.allocUnsafe(HEAD + size);
  data.writeUInt16BE(0x5599, 0);
  data[2] = kind;
  data[3] = retries;
  data.writeUInt32BE(size, 4);
  if (typeof payload === "string") data.write(payload, HEAD);
  else data.set(payload, HEAD);
  return data;
}

export class SspqCore implements ProtocolCore {
  readonly outgoing = new Outgoing();
  readonly awaiting = false; // a RECEIVE may wait without limit
  /** The message that was returned and is not confirmed yet. */
  held: SspqMessage | undefined;
  private slot: "idle" | "waiting" | "holding" | "declined" = "idle";
  private dead = false;
  private arrived: SspqMessage | undefined;
  private error: Error | undefined;
  private readonly news = new Signal();
  private readonly reader: FrameReader;

  constructor(maxPayload = MAX_PAYLOAD) {
    this.reader = new FrameReader((data, at) => {
      if (data.length - at < HEAD) return 0;
      const size = data.readUInt32BE(at + 4);
      if (data.readUInt16BE(at) !== 0x5599) throw new ProtocolViolation("wrong magic number");
      if (size > maxPayload) throw new ProtocolViolation(`a payload of ${size} bytes`);
      return HEAD + size;
    });
  }

  handshake(): Promise<void> {
    this.reader.clear();
    return Promise.resolve();
  }

  /** Asks again for the message that was waited for. */
  resume(): Promise<void> {
    if (this.slot === "waiting") this.outgoing.push(packet(this.dead ? Packet.DEAD_RECEIVE : Packet.RECEIVE));
    return Promise.resolve();
  }

  receive(data: Buffer): void {
    this.reader.feed(data, (frame) => {
      const kind = frame[2];
      if ((kind !== Packet.SEND && kind !== Packet.NO_RECEIVE) || this.slot !== "waiting") {
        throw new ProtocolViolation(`unexpected packet type ${kind}`);
      }
      this.slot = kind === Packet.SEND ? "holding" : "declined";
      if (kind === Packet.SEND) this.arrived = { payload: frame.subarray(HEAD), retries: frame[3] as number };
      this.news.notify();
    });
  }

  /** The broker has taken a message back that was held; a RECEIVE is sent again by `resume`. */
  lost(error: Error, final: boolean): void {
    this.reader.clear();
    if (this.slot !== "waiting") this.slot = this.arrived ? "waiting" : "idle";
    this.held = this.arrived = undefined;
    if (final) this.error = error;
    this.news.notify();
  }

  send(payload: Uint8Array | string, retries: number): void {
    if (!Number.isInteger(retries) || retries < 0 || retries > 255) throw new RangeError(`retries is ${retries}: 0 to 255`);
    this.outgoing.push(packet(Packet.SEND, retries, payload));
  }

  async receiveMessage(dead: boolean, timeout: number): Promise<SspqMessage | undefined> {
    this.request(dead);
    const deadline = performance.now() + timeout;
    while (this.slot === "waiting") {
      if (this.error) throw this.error;
      const left = deadline - performance.now();
      if (left <= 0) return undefined;
      await this.news.wait(left);
    }
    if (this.slot === "declined") {
      this.slot = "idle";
      throw new Declined(dead ? "no dead letters here" : "no message will come");
    }
    this.held = this.arrived;
    this.arrived = undefined;
    return this.held;
  }

  confirm(): void {
    if (!this.held) throw new NothingHeld("there is no message to confirm");
    this.held = undefined;
    this.slot = "idle";
    this.outgoing.push(packet(Packet.CONFIRM));
  }

  private request(dead: boolean): void {
    if (this.held) throw new SlotBusy("confirm the message that is held first");
    if (this.slot !== "idle" && dead !== this.dead) throw new SlotBusy("a receive of the other kind waits");
    if (this.slot === "idle") {
      this.slot = "waiting";
      this.dead = dead;
      this.outgoing.push(packet(dead ? Packet.DEAD_RECEIVE : Packet.RECEIVE));
    }
  }
}
