/** Refusals by an Overhop broker: each code has its class, as in Python. */

import { ClientError, ProtocolViolation } from "./errors.js";

/** The message is over the limit of the client, and was not sent: the broker would hang up on it. */
export class MessageTooLarge extends ClientError {}

/** The broker refused a request with an ERR. The connection stays usable, except after RequestRejected. */
export class OverhopError extends ClientError {
  /** After `enqueueMany`: the id of each job in the order given, undefined for those that were refused. */
  jids: (string | undefined)[] = [];

  constructor(
    readonly code: string,
    readonly msg = "",
    readonly details: unknown = undefined,
  ) {
    super(msg ? `${code}: ${msg}` : code);
  }

  /** Whether another attempt to connect may succeed. */
  get passing(): boolean {
    return ["UNAVAILABLE", "CONNECTION_TIMEOUT", "REGISTER_TIMEOUT"].includes(this.code);
  }
}

export class RequestRejected extends OverhopError {}
export class QueueNotFound extends OverhopError {}
export class DuplicateQueue extends OverhopError {}
export class InvalidQueueName extends OverhopError {}
export class QueueNotEmpty extends OverhopError {}
export class QueueAlreadyPaused extends OverhopError {}
export class QueueAlreadyRunning extends OverhopError {}
export class QueueFull extends OverhopError {}
export class SystemQueueForbidden extends OverhopError {}
export class DuplicateSubscription extends OverhopError {}
export class SubscriptionNotFound extends OverhopError {}
export class InvalidCredits extends OverhopError {}
export class InvalidMaxAttempts extends OverhopError {}
export class InvalidRetryInterval extends OverhopError {}
export class InvalidJobId extends OverhopError {}
export class InvalidJobPayload extends OverhopError {}
export class InvalidStatusFilter extends OverhopError {}
export class InvalidPage extends OverhopError {}
export class InvalidPageSize extends OverhopError {}
export class JobNotFound extends OverhopError {}
export class JobNotRemovable extends OverhopError {}
export class Forbidden extends OverhopError {}
export class Unavailable extends OverhopError {}

const CLASSES = new Map<string, typeof OverhopError>([
  ["PROTOCOL_VIOLATION", RequestRejected],
  ["QUEUE_NOT_FOUND", QueueNotFound],
  ["DUPLICATE_QUEUE", DuplicateQueue],
  ["INVALID_QUEUE_NAME", InvalidQueueName],
  ["QUEUE_NOT_EMPTY", QueueNotEmpty],
  ["QUEUE_ALREADY_PAUSED", QueueAlreadyPaused],
  ["QUEUE_ALREADY_RUNNING", QueueAlreadyRunning],
  ["QUEUE_FULL", QueueFull],
  ["SYSTEM_QUEUE_FORBIDDEN", SystemQueueForbidden],
  ["DUPLICATE_SUBSCRIPTION", DuplicateSubscription],
  ["SUBSCRIPTION_NOT_FOUND", SubscriptionNotFound],
  ["INVALID_CREDITS", InvalidCredits],
  ["INVALID_MAX_ATTEMPTS", InvalidMaxAttempts],
  ["INVALID_RETRY_INTERVAL_MS", InvalidRetryInterval],
  ["INVALID_JOB_ID", InvalidJobId],
  ["INVALID_JOB_PAYLOAD", InvalidJobPayload],
  ["INVALID_JOB_STATUS_FILTER", InvalidStatusFilter],
  ["INVALID_PAGE", InvalidPage],
  ["INVALID_PAGE_SIZE", InvalidPageSize],
  ["JOB_NOT_FOUND", JobNotFound],
  ["JOB_STATUS_NOT_REMOVABLE", JobNotRemovable],
  ["FORBIDDEN", Forbidden],
  ["UNAVAILABLE", Unavailable],
]);

export function refusal(payload: { [key: string]: unknown }): OverhopError {
  const { code, msg = "", details } = payload;
  if (typeof code !== "string" || typeof msg !== "string") throw new ProtocolViolation("code and msg of an ERR are strings");
  return new (CLASSES.get(code) ?? OverhopError)(code, msg, details);
}
