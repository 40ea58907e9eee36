/** The client's side of Overhop without I/O: requests, their answers, and the QUESTs. docs/protocols/overhop.md. */

import { ConnectionLost, ProtocolViolation } from "./errors.js";
import { Deferred, FrameReader, lengthPrefixed, Outgoing, type ProtocolCore } from "./framing.js";
import { decodeEnvelope, encodeEnvelope, Type, type Payload, type Value } from "./overhop-codec.js";
import { MessageTooLarge, refusal } from "./overhop-errors.js";

/** A job to be done by us: answer it with `done` or `fail` before its deadline, or move that with `beat`. */
export interface Quest {
  readonly sid: string;
  readonly jid: string;
  readonly queue: string;
  readonly payload: Value | undefined;
  /** 1 for the first. */
  readonly attempt: number;
  readonly maxAttempts: number | undefined;
  readonly deadline: Date | undefined;
}

interface Request {
  t: number;
  frame: Buffer;
  reply: Deferred<Payload>;
  /** Whether it is sent once more after a reconnect. */
  repeatable: boolean;
  sentAt: number;
}

/** Requests that change nothing, and so may be asked twice. */
const READING: ReadonlySet<number> = new Set([Type.PING, Type.GQUEUE, Type.LQUEUES, Type.STATUS, Type.JOB, Type.LSJOB, Type.QSTATS]);
const ANSWERS = new Map<number, number>([[Type.HELLO, Type.HI], [Type.PING, Type.PONG]]);

export class OverhopCore implements ProtocolCore {
  readonly outgoing = new Outgoing();
  workerId = "";
  /** Milliseconds by which the broker's clock is ahead of ours; known after a PING. */
  clockOffset: number | undefined;
  onQuest: (quest: Quest) => void = () => undefined;
  onResent: (count: number) => void = () => undefined;
  onResume: () => Promise<void> = () => Promise.resolve();
  private readonly reader: FrameReader;
  private readonly expected = new Map<string, Request>();
  private repeated: Request[] = [];
  private nextId = 1;

  constructor(
    private readonly resend: boolean,
    private readonly maxEnvelope: number,
  ) {
    this.reader = new FrameReader(lengthPrefixed(1, maxEnvelope));
  }

  get awaiting(): boolean {
    return this.expected.size > 0;
  }

  get unanswered(): number {
    return this.expected.size;
  }

  async handshake(): Promise<void> {
    this.reader.clear();
    await this.ask(Type.HELLO, {});
    this.workerId = text(await this.ask(Type.REGISTER, {}), "wid");
  }

  async resume(): Promise<void> {
    await this.onResume();
    const repeated = this.repeated;
    this.repeated = [];
    for (const request of repeated) this.submit(request);
    if (repeated.length > 0) this.onResent(repeated.length);
  }

  /** Sends a request and returns its answer. Throws Unencodable or MessageTooLarge before anything is sent. */
  ask(t: number, p: Payload): Promise<Payload> {
    const rid = String(this.nextId);
    const frame = encodeEnvelope(t, rid, p);
    if (frame.length - 4 > this.maxEnvelope) throw new MessageTooLarge(`${frame.length - 4} bytes are over ${this.maxEnvelope}`);
    this.nextId += 1;
    const repeatable = READING.has(t) || (this.resend && t === Type.ENQUEUE);
    const request: Request = { t, frame, reply: new Deferred(), repeatable, sentAt: 0 };
    this.expected.set(rid, request);
    this.outgoing.push(frame);
    request.sentAt = Date.now();
    return request.reply.promise;
  }

  receive(data: Buffer): void {
    this.reader.feed(data, (frame) => this.take(frame));
  }

  lost(error: Error, final: boolean): void {
    this.reader.clear();
    const requests = [...this.expected.values()];
    this.expected.clear();
    for (const request of [...this.repeated.splice(0), ...requests]) {
      if (request.repeatable && !final) this.repeated.push(request);
      else request.reply.reject(error);
    }
  }

  private submit(request: Request): void {
    // The request keeps its id, which no request of the connection before is expected under any more.
    const { rid } = decodeEnvelope(request.frame);
    this.expected.set(rid, request);
    request.sentAt = Date.now();
    this.outgoing.push(request.frame);
  }

  private take(frame: Buffer): void {
    const { t, rid, p } = decodeEnvelope(frame);
    const request = this.expected.get(rid);
    if (t === Type.QUEST) this.onQuest(quest(p));
    else if (request) this.takeAnswer(request, rid, t, p);
    else if (t === Type.ERR && rid === "0") {
      const error = refusal(p);
      throw new ConnectionLost(`the broker closes the connection: ${error.message}`, { cause: error });
    } else if (t !== Type.IDENT) throw new ProtocolViolation(`message type ${t} with request id ${rid} answers nothing`);
  }

  private takeAnswer(request: Request, rid: string, t: number, p: Payload): void {
    this.expected.delete(rid);
    if (t === Type.ERR) return request.reply.reject(refusal(p));
    if (t !== (ANSWERS.get(request.t) ?? Type.OK)) throw new ProtocolViolation(`request ${request.t} was answered with ${t}`);
    if (t === Type.PONG) this.clockOffset = Date.parse(text(p, "server_time")) - (request.sentAt + Date.now()) / 2;
    request.reply.resolve(p);
  }
}

function quest(p: Payload): Quest {
  return {
    sid: text(p, "sid"),
    jid: text(p, "jid"),
    queue: text(p, "q"),
    payload: p["job_payload"],
    attempt: Number(p["attempt"]),
    maxAttempts: optionalNumber(p, "max_attempts"),
    deadline: optionalDate(p, "deadline"),
  };
}

export function text(p: { [key: string]: unknown }, key: string): string {
  const value = p[key];
  if (typeof value !== "string") throw new ProtocolViolation(`${key} is not a string`);
  return value;
}

export function optionalNumber(p: { [key: string]: unknown }, key: string): number | undefined {
  const value = p[key];
  return typeof value === "number" ? value : undefined;
}

export function optionalDate(p: { [key: string]: unknown }, key: string): Date | undefined {
  const value = p[key];
  return typeof value === "string" ? new Date(value) : undefined;
}
