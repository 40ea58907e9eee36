/** The client's side of peerbus without I/O: envelopes, signatures, frames, confirmations. docs/protocols/peerbus.md. */

import { createHmac, randomBytes, timingSafeEqual } from "node:crypto";
import { asError, ClientError, ProtocolViolation } from "./errors.js";
import { Signal } from "./framing.js";

export const MAX_FRAME = 1 << 20;
const MAX_ID = 512;
const MAX_RECIPIENT = 4 * ("queue:".length + 255);
const FIELDS = ["protocol_version", "id", "from", "to", "ts", "source", "kind"] as const;
const CONFIRM_COUNT = 256;
const CONFIRM_BYTES = 1 << 20;
const UNCONFIRMED_COUNT = 4096;
const UNCONFIRMED_BYTES = 16 << 20;
const PERMANENT: ReadonlySet<number> = new Set([1003, 1007, 1008]);
const TAKEN_OVER = "taken over by a new connection";

/** The message cannot be an envelope: no recipient, a body without a JSON form, an id that is too long. */
export class InvalidEnvelope extends ClientError {}
/** Delivered, the message would be over 1 MiB; it was not sent. */
export class EnvelopeTooLarge extends InvalidEnvelope {}
/** A secret has 32 bytes or more. With `null` nothing is signed and nothing is verified. */
export class WeakSecret extends ClientError {}
/** The broker has not answered in time. Unconfirmed messages are kept and sent again. */
export class NoAnswer extends ClientError {}
/** Another connection with the same token has registered under this name: this client does not come back. */
export class TakenOver extends ClientError {}

/** The broker closed the connection instead of registering us. */
export class Rejected extends ClientError {
  constructor(
    readonly code: number,
    readonly reason: string,
  ) {
    super(`${reason || "no reason given"} (${code})`);
  }
}
export class InvalidToken extends Rejected {}
export class NameClaimed extends Rejected {}
export class UnsupportedVersion extends Rejected {}
export class UnusableName extends Rejected {}

const REJECTIONS = new Map<string, typeof Rejected>([
  ["invalid bearer token", InvalidToken],
  ["name claimed under a different token", NameClaimed],
  ["unsupported protocol version", UnsupportedVersion],
  ["peer name cannot be used", UnusableName],
]);

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

const ESCAPED = /[<>&\u2028\u2029]/g;

/** A JSON text with `<`, `>`, `&`, U+2028 and U+2029 in its strings escaped, as Go writes it. */
function escapeBody(body: string): string {
  return body.replace(ESCAPED, (found) => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

function goString(value: string): string {
  return escapeBody(JSON.stringify(value.toWellFormed()));
}

/** A JSON text without insignificant whitespace. */
function compact(body: string): string {
  return body.replace(/"(?:[^"\\]|\\.)*"|[ \t\n\r]+/gs, (found) => (found[0] === '"' ? found : ""));
}

function spliced(strings: readonly string[], body: string): string {
  return `{${FIELDS.map((field, n) => `"${field}":${strings[n]}`).join(",")},"body":${body}}`;
}

/** The canonical form of an envelope, as it is signed; an empty body counts as null. */
export function canonical(fields: { [field: string]: string }, body: string): string {
  return spliced(FIELDS.map((field) => goString(fields[field] ?? "")), escapeBody(compact(body)) || "null");
}

export function keyOf(secret: string | Uint8Array): Buffer {
  const key = Buffer.from(secret as string);
  if (key.length < 32) throw new WeakSecret(`a secret has 32 bytes or more, and this one ${key.length}`);
  return key;
}

export function sign(fields: { [field: string]: string }, body: string, secret: string | Uint8Array): string {
  return digest(canonical(fields, body), keyOf(secret)).toString("hex");
}

function digest(form: string, key: Buffer): Buffer {
  return createHmac("sha256", key).update(form).digest();
}

/** The members of a JSON object by name, as they are spelled. The last of several of one name stands. */
export function members(text: string): Map<string, string> {
  JSON.parse(text);
  const found = new Map<string, string>();
  const token = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s"{}[\],:]+/gsy;
  const space = /\s*/y;
  let depth = 0;
  let key: string | undefined;
  let isKey = true;
  let begin = -1;
  let end = -1;
  for (let at = 0; at < text.length; ) {
    space.lastIndex = at;
    space.exec(text);
    token.lastIndex = space.lastIndex;
    const match = token.exec(text);
    if (!match) break;
    const [word] = match;
    at = token.lastIndex;
    if (depth === 0 && word !== "{") throw new SyntaxError("no object");
    if (depth === 1 && (word === "," || word === "}")) {
      if (key !== undefined) found.set(key, text.slice(begin, end));
      key = undefined;
      begin = -1;
      isKey = true;
    } else if (depth === 1 && isKey && word[0] === '"') key = JSON.parse(word) as string;
    else if (depth === 1 && word === ":" && isKey) isKey = false;
    else if (depth >= 1 && begin < 0) begin = match.index;
    if (word === "{" || word === "[") depth += 1;
    if (word === "}" || word === "]") depth -= 1;
    end = at;
  }
  return found;
}

/** Whether an envelope carries a signature made with this secret, over any spelling that means the same envelope. */
export function verify(envelope: string, key: Buffer): boolean {
  try {
    const spelled = members(envelope);
    const value = (field: string): string => {
      const found: unknown = JSON.parse(spelled.get(field) ?? '""') ?? "";
      if (typeof found !== "string") throw new SyntaxError(`${field} is no string`);
      return found;
    };
    const signature = value("hmac");
    if (!/^[0-9a-fA-F]{64}$/.test(signature)) return false;
    const values = FIELDS.map(value);
    const received = FIELDS.map((field) => (spelled.get(field) ?? '""').replace(/^null$/, '""'));
    const body = spelled.get("body") ?? "null";
    const compacted = compact(body);
    for (const strings of [values.map(goString), values.map((each) => JSON.stringify(each)), received]) {
      for (const each of new Set([escapeBody(compacted), compacted, body])) {
        if (timingSafeEqual(digest(spliced(strings, each), key), Buffer.from(signature, "hex"))) return true;
      }
    }
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
  }
  return false;
}

let lastStamp = 0;

/** A UUIDv7, greater than every one before. */
function newId(): string {
  const now = Math.max(Math.floor((performance.timeOrigin + performance.now()) * 4096), lastStamp + 1);
  lastStamp = now;
  const data = randomBytes(16);
  data.writeUIntBE(Math.floor(now / 4096), 0, 6);
  data.writeUInt16BE(0x7000 | now % 4096, 6);
  data[8] = 0x80 | ((data[8] as number) & 0x3f);
  const hex = data.toString("hex");
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
}

export class PeerMessage {
  private readonly fields: { [key: string]: unknown };

  constructor(
    private readonly core: PeerCore,
    /** The delivery key, by which it is acknowledged. */
    readonly key: string,
    /** The envelope as it was signed. */
    readonly text: string,
  ) {
    this.fields = JSON.parse(text) as { [key: string]: unknown };
  }

  get id(): string {
    return String(this.fields["id"] ?? "");
  }
  /** The sender as it names itself; true if the signature is verified and all that have the secret are trusted. */
  get sender(): string {
    return String(this.fields["from"] ?? "");
  }
  get isBroadcast(): boolean {
    return this.fields["to"] === "*";
  }
  get body(): Json {
    return (this.fields["body"] ?? null) as Json;
  }
  /** Tells the broker that the message is consumed. */
  ack(): void {
    this.core.ack(this);
  }
}

interface Answer {
  upto: number;
  names: string[] | undefined;
}

/** A peer's conversation with its broker, over any number of connections. */
export class PeerCore {
  outgoing: string[] = [];
  inbox: PeerMessage[] = [];
  /** Frames that were dropped and not acknowledged, by reason. */
  readonly dropped = new Map<string, number>();
  /** The error after which this client must not connect again. */
  error: Error | undefined;
  established = false;
  wake: () => void = () => undefined;
  readonly changed = new Signal();
  private registering = false;
  private readonly key: Buffer | undefined;
  private readonly consumed = new Set<string>();
  private readonly unacked = new Map<string, PeerMessage>();
  private readonly answers: Answer[] = [];
  private pending: string[] = [];
  private pendingBytes = 0;
  private confirmed = 0;
  private askedUpto = 0;
  private unaskedBytes = 0;

  constructor(
    private readonly token: string,
    readonly name: string,
    secret: string | Uint8Array | null,
    private readonly dedupeSize: number,
  ) {
    this.key = secret === null ? undefined : keyOf(secret);
  }

  get unconfirmed(): number {
    return this.pending.length;
  }
  get congested(): boolean {
    return this.pending.length >= UNCONFIRMED_COUNT || this.pendingBytes >= UNCONFIRMED_BYTES;
  }
  get awaiting(): boolean {
    return this.answers.length > 0;
  }

  register(): string {
    this.registering = true;
    return JSON.stringify({ protocol_version: "v1", type: "register", token: this.token, name: this.name });
  }

  /** The connection has ended. Returns how the broker has rejected us, if it has. */
  disconnected(code: number, reason: string): Rejected | undefined {
    const registering = this.registering;
    this.registering = this.established = false;
    this.outgoing = [];
    if (reason === TAKEN_OVER) this.error = new TakenOver(reason);
    if (!registering || code === 1006) return undefined;
    const rejection = new (REJECTIONS.get(reason) ?? Rejected)(code, reason);
    if (PERMANENT.has(code)) this.error = rejection;
    return rejection;
  }

  received(text: string): void {
    const frame = parsed(text);
    if (this.registering) {
      if (frame?.["type"] !== "peers") throw new ProtocolViolation("the register was answered with something else than peers");
      this.registering = false;
      this.established = true;
      this.outgoing.push(...this.pending, ...this.answers.map(() => PEERS));
      this.wake();
    } else if (frame?.["type"] === "peers" && Array.isArray(frame["names"])) this.answer(frame["names"].map(String));
    else if (frame?.["type"] === "deliver") this.deliver(frame["delivery_key"], text);
    else this.drop("no frame of a broker");
    this.changed.notify();
  }

  /** Makes an envelope and signs it. Throws InvalidEnvelope or EnvelopeTooLarge. Returns its id and its text. */
  write(to: string, body: Json, id = newId(), source = "peer-bus"): { id: string; text: string } {
    for (const [field, value] of [["id", id], ["to", to]] as const) {
      if (!value || value.includes("\0") || !value.isWellFormed()) throw new InvalidEnvelope(`${field} cannot be ${JSON.stringify(value)}`);
    }
    if (Buffer.byteLength(id) > MAX_ID) throw new InvalidEnvelope(`an id has ${MAX_ID} bytes at most`);
    if (Buffer.byteLength(to) > MAX_RECIPIENT) throw new InvalidEnvelope(`a recipient has ${MAX_RECIPIENT} bytes at most`);
    const isBroadcast = to === "*";
    const fields = {
      protocol_version: "v1", id, from: this.name, to, ts: new Date().toISOString(), source, kind: isBroadcast ? "broadcast" : "msg",
    };
    const form = canonical(fields, encodeBody(body));
    const hmac = this.key ? digest(form, this.key).toString("hex") : "";
    const text = `${form.slice(0, -1)},"hmac":"${hmac}"}`;
    const size = Buffer.byteLength(text) + Buffer.byteLength(goString(id)) + 100 + (isBroadcast ? 1 + 240 * 6 : 0);
    if (size > MAX_FRAME) throw new EnvelopeTooLarge(`delivered, the message would have ${size} bytes, over ${MAX_FRAME}`);
    return { id, text };
  }

  /** Sends an envelope, on the next connection if there is none, and again until it is confirmed. */
  send(text: string): void {
    const size = Buffer.byteLength(text);
    this.pending.push(text);
    this.pendingBytes += size;
    this.unaskedBytes += size;
    if (this.established) this.outgoing.push(text);
    if (this.sent - this.askedUpto >= CONFIRM_COUNT || this.unaskedBytes >= CONFIRM_BYTES) this.ask();
    this.wake();
  }

  /** Asks for the connected peers, and so for a confirmation of everything sent. */
  ask(): Answer {
    const answer: Answer = { upto: this.sent, names: undefined };
    this.answers.push(answer);
    this.askedUpto = this.sent;
    this.unaskedBytes = 0;
    if (this.established) this.outgoing.push(PEERS);
    this.wake();
    return answer;
  }

  get sent(): number {
    return this.confirmed + this.pending.length;
  }

  get confirmedCount(): number {
    return this.confirmed;
  }

  get askedCount(): number {
    return this.askedUpto;
  }

  /** The host has consumed a message. Without a connection it is acknowledged when it comes again. */
  ack(message: PeerMessage): void {
    if (this.unacked.get(message.id) !== message) return;
    this.unacked.delete(message.id);
    this.consumed.add(message.id);
    if (this.consumed.size > this.dedupeSize) this.consumed.delete(this.consumed.values().next().value as string);
    if (this.established) this.pushAck(message.key);
  }

  /** Gives messages that were not yielded to the next iteration. */
  private answer(names: string[]): void {
    const answer = this.answers.shift();
    if (!answer) return this.drop("peers without a request");
    const confirmed = this.pending.splice(0, answer.upto - this.confirmed);
    for (const text of confirmed) this.pendingBytes -= Buffer.byteLength(text);
    this.confirmed += confirmed.length;
    answer.names = names;
  }

  private deliver(key: unknown, frame: string): void {
    const text = members(frame).get("envelope");
    if (typeof key !== "string" || !key || !text) return this.drop("deliver without a delivery key");
    if (this.key && !verify(text, this.key)) return this.drop("signature does not verify");
    const message = new PeerMessage(this, key, text);
    if (this.unacked.has(message.id)) return;
    if (this.consumed.has(message.id)) return this.pushAck(key);
    this.unacked.set(message.id, message);
    this.inbox.push(message);
  }

  private pushAck(key: string): void {
    this.outgoing.push(JSON.stringify({ protocol_version: "v1", type: "ack", id: key }));
    this.wake();
  }

  private drop(reason: string): void {
    this.dropped.set(reason, (this.dropped.get(reason) ?? 0) + 1);
  }
}

const PEERS = '{"protocol_version":"v1","type":"peers"}';

function parsed(text: string): { [key: string]: unknown } | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null ? (value as { [key: string]: unknown }) : undefined;
  } catch {
    return undefined;
  }
}

function encodeBody(body: Json): string {
  try {
    const text = JSON.stringify(body, (key, value: unknown) => {
      if (typeof value === "number" && !Number.isFinite(value)) throw new InvalidEnvelope(`${key || "body"}: ${value} has no JSON form`);
      return value;
    });
    return text.toWellFormed();
  } catch (error) {
    if (error instanceof InvalidEnvelope) throw error;
    throw new InvalidEnvelope(`the body cannot be JSON: ${asError(error).message}`, { cause: error });
  }
}
