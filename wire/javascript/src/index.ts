/** Clients of the Fivewire broker: Overhop with its worker, BlipMQ, SSPQ and peerbus. */

export { Backoff } from "./backoff.js";
export * from "./blipmq.js";
export type { ConnectionEvents, Options } from "./connection.js";
export { ClientError, ConnectionLost, ProtocolViolation, ReplyTimeout, TlsFailed, Unencodable } from "./errors.js";
export * from "./overhop.js";
export type { Payload, Value } from "./overhop-codec.js";
export type { Quest } from "./overhop-core.js";
export * from "./overhop-errors.js";
export * from "./peerbus.js";
export {
  EnvelopeTooLarge, InvalidEnvelope, InvalidToken, NameClaimed, NoAnswer, PeerMessage, Rejected, TakenOver,
  UnsupportedVersion, UnusableName, WeakSecret, type Json,
} from "./peerbus-core.js";
export * from "./sspq.js";
export * from "./worker.js";
