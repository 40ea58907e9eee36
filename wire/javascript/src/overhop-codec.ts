/** Overhop's envelopes: MessagePack without floats and extensions. No I/O. */

import { Decoder, Encoder } from "@msgpack/msgpack";
import { ProtocolViolation, Unencodable } from "./errors.js";

export const Type = {
  HELLO: 1, REGISTER: 2, PING: 3, GQUEUE: 4, LQUEUES: 5, SUBSCRIBE: 6, UNSUBSCRIBE: 7, CREDIT: 8, ADDQUEUE: 9,
  STATUS: 10, RMQUEUE: 11, PAUSE: 12, RESUME: 13, ENQUEUE: 14, JOB: 15, RMJOB: 16, LSJOB: 17, QSTATS: 18, ACK: 19,
  DONE: 20, FAIL: 21, BEAT: 22, GOODBYE: 23, LOG: 24, OK: 101, ERR: 102, HI: 103, IDENT: 104, PONG: 105, QUEST: 106,
} as const;

export const MAX_ENVELOPE = 8 * 1024 * 1024;
/** Levels of a payload: the broker refuses deeper ones. */
const MAX_DEPTH = 61;
const INT64 = 2n ** 63n;

/** A value that Overhop carries. Numbers are whole; beyond 2^53 they are bigint. */
export type Value = null | boolean | number | bigint | string | Uint8Array | Value[] | { [key: string]: Value | undefined };
export type Payload = { [key: string]: Value | undefined };

export interface Envelope {
  t: number;
  rid: string;
  p: Payload;
}

const encoder = new Encoder<undefined>({ sortKeys: true, useBigInt64: true, maxDepth: MAX_DEPTH + 8 });
/** What the decoder reads in place of a key that it refuses. No text has half a surrogate pair. */
const PROTO = "\ud800__proto__";
const decoder = new Decoder<undefined>({
  useBigInt64: true,
  keyDecoder: {
    canBeCached: (size) => size === "__proto__".length,
    decode(bytes, at, size) {
      const key = Buffer.from(bytes.buffer, bytes.byteOffset + at, size).toString();
      return key === "__proto__" ? PROTO : key;
    },
  },
});

/** Returns an envelope with its length. Throws Unencodable, with the path of the value below `p`. */
export function encodeEnvelope(t: number, rid: string, p: Payload): Buffer {
  const payload = encoder.encodeSharedRef({ v: 2, t, rid, p: prepared(p, "", 0) });
  const data = Buffer.allocUnsafe(4 + payload.length);
  data.writeUInt32BE(payload.length, 0);
  data.set(payload, 4);
  return data;
}

export function decodeEnvelope(frame: Buffer): Envelope {
  let value: unknown;
  try {
    value = plain(decoder.decode(frame.subarray(4)));
  } catch (error) {
    throw new ProtocolViolation(`an envelope that is no MessagePack: ${String(error)}`, { cause: error });
  }
  if (!isMap(value) || !isMap(value["p"]) || typeof value["t"] !== "number" || typeof value["rid"] !== "string") {
    throw new ProtocolViolation("an envelope without t, rid or p");
  }
  return { t: value["t"], rid: value["rid"], p: value["p"] as Payload };
}

export function isMap(value: unknown): value is { [key: string]: unknown } {
  return typeof value === "object" && value !== null && !Array.isArray(value) && !(value instanceof Uint8Array);
}

/** Checks a value, and makes whole numbers that the encoder would write as floats into bigint. */
function prepared(value: unknown, path: string, depth: number): unknown {
  switch (typeof value) {
    case "boolean":
      return value;
    case "string":
      if (!value.isWellFormed()) throw new Unencodable(path, "half a surrogate pair is no character");
      return value;
    case "number":
      return number(value, path);
    case "bigint":
      if (value < -INT64 || value >= INT64) throw new Unencodable(path, `${value} is outside 64 bits`);
      return value;
    case "object":
      return value === null || value instanceof Uint8Array ? value : container(value, path, depth);
    default:
      throw new Unencodable(path, `${typeof value} has no form in Overhop`);
  }
}

function number(value: number, path: string): number | bigint {
  if (!Number.isInteger(value)) {
    throw new Unencodable(path, `${value} is a fraction, which Overhop does not carry: send a string, or whole units`);
  }
  if (!Number.isSafeInteger(value)) throw new Unencodable(path, `${value} is beyond 2^53 and not exact: send a bigint`);
  return value > 0xffffffff || value < -0x80000000 ? BigInt(value) : value;
}

function container(value: object, path: string, depth: number): unknown {
  if (depth > MAX_DEPTH) throw new Unencodable(path, `more than ${MAX_DEPTH} levels, or a circle`);
  if (Array.isArray(value)) return Array.from(value, (each, n) => prepared(each, `${path}[${n}]`, depth + 1));
  const prototype: unknown = Object.getPrototypeOf(value);
  if (prototype !== Object.prototype && prototype !== null) {
    throw new Unencodable(path, `${value.constructor?.name ?? "this object"} has no form in Overhop`);
  }
  const found = Object.create(null) as { [key: string]: unknown }; // where __proto__ is a key like others
  for (const [key, each] of Object.entries(value)) {
    const place = path ? `${path}.${key}` : key;
    if (!key.isWellFormed()) throw new Unencodable(place, "half a surrogate pair is no character");
    if (each !== undefined) found[key] = prepared(each, place, depth + 1);
  }
  return found;
}

/** A decoded value with the bigints that are exact as numbers made such. */
function plain(value: unknown): unknown {
  if (typeof value === "bigint") return BigInt.asIntN(54, value) === value ? Number(value) : value;
  if (Array.isArray(value)) return value.map(plain);
  if (!isMap(value)) return value;
  for (const key of Object.keys(value)) {
    const each = plain(value[key]);
    if (key === PROTO) {
      delete value[PROTO];
      Object.defineProperty(value, "__proto__", { value: each, configurable: true, enumerable: true, writable: true });
    } else value[key] = each;
  }
  return value;
}
