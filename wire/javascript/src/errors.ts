/** The errors that every client raises by itself. The classes and their meaning are those of the Python clients. */

export class ClientError extends Error {
  override get name(): string {
    return this.constructor.name;
  }
}

/** The connection is gone. What was not confirmed may or may not have been taken. */
export class ConnectionLost extends ClientError {}

/** TLS was refused by either side, or broken. Connecting again in the same way does not help. */
export class TlsFailed extends ConnectionLost {}

/** The broker said nothing for too long. The connection has been closed. */
export class ReplyTimeout extends ClientError {}

/** The other side does not speak this protocol. The connection has been closed. */
export class ProtocolViolation extends ClientError {}

/** A value that the protocol cannot carry. Nothing was sent. `path` leads to the value, such as `$.items[2].price`. */
export class Unencodable extends ClientError {
  constructor(
    readonly path: string,
    readonly reason: string,
  ) {
    super(`${path}: ${reason}`);
  }
}

export function asError(value: unknown): Error {
  return value instanceof Error ? value : new Error(String(value));
}
