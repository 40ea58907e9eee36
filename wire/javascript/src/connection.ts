/** The socket around a protocol core: gathers what it sends into few writes, watches over answers, connects again. */

import { once } from "node:events";
import { connect as connectTcp, type Socket } from "node:net";
import { connect as connectTls, type ConnectionOptions } from "node:tls";
import { Backoff } from "./backoff.js";
import { asError, ClientError, ConnectionLost, ReplyTimeout, TlsFailed } from "./errors.js";
import { Events } from "./events.js";
import { Signal, type ProtocolCore } from "./framing.js";

export interface Options {
  host?: string;
  port?: number;
  /** Milliseconds to connect, and of silence while an answer is due. */
  timeout?: number;
  /** Speak TLS: `true`, or options of `node:tls`. */
  tls?: boolean | ConnectionOptions;
  /** Waits between two attempts to connect again; `false`: a lost connection is final. */
  reconnect?: Backoff | false;
}

/** `connected` (again: boolean), `disconnected` (error), `reconnecting` (milliseconds, error), `closed`. */
export interface ConnectionEvents {
  connected: [again: boolean];
  disconnected: [error: Error];
  reconnecting: [milliseconds: number, error: Error];
  resent: [count: number];
  closed: [];
}

const LINGER = 5000;
const KEEP_ALIVE = 15_000;
/** Unsent bytes at which callers wait. */
const HIGH_WATER = 1 << 20;

type State = "new" | "open" | "waiting" | "closed";

export class Connection extends Events<ConnectionEvents> {
  private state: State = "new";
  private socket: Socket | undefined;
  private watch: NodeJS.Timeout | undefined;
  private lastHeard = 0;
  private established = false;
  private error: Error = new ConnectionLost("not connected");
  private scheduled = false;
  private readonly changed = new Signal();
  private readonly timeout: number;
  private readonly backoff: Backoff | undefined;

  constructor(
    private readonly core: ProtocolCore,
    private readonly options: Options,
    private readonly port: number,
  ) {
    super();
    this.timeout = options.timeout ?? 30_000;
    this.backoff = options.reconnect === false ? undefined : (options.reconnect ?? new Backoff());
    core.outgoing.wake = () => this.schedule();
  }

  /** Connects once. Throws what went wrong; a connection that is lost later is made again. */
  async connect(): Promise<void> {
    if (this.state !== "new") throw new ClientError("connect was called before");
    try {
      await this.open();
    } catch (error) {
      this.core.lost(asError(error), true); // the next attempt begins anew
      throw error;
    }
    this.tell("connected", false);
  }

  get isOpen(): boolean {
    return this.state === "open" && this.established;
  }

  /** Throws if there is no connection and will be none. */
  check(): void {
    if (this.state === "new" || this.state === "closed") throw this.error;
  }

  /** Waits until there is a connection with room to write. Throws when there will be none. */
  async ready(): Promise<void> {
    this.check();
    while (!this.isOpen || (this.socket?.writableLength ?? 0) + this.core.outgoing.size > HIGH_WATER) {
      await this.changed.wait();
      this.check();
    }
  }

  /** Sends the rest and the end of stream, and waits for the broker's. */
  async close(): Promise<void> {
    if (this.state === "closed") return;
    const socket = this.socket;
    const wasOpen = this.isOpen;
    this.flush();
    this.finish(new ConnectionLost("the connection is closed"));
    if (socket && !socket.destroyed) {
      const closed = once(socket, "close");
      const timer = setTimeout(() => socket.destroy(), LINGER);
      if (wasOpen) socket.end();
      else socket.destroy(); // nothing was sent that could be lost
      socket.resume();
      await closed.catch(() => undefined);
      clearTimeout(timer);
    }
    this.tell("closed");
  }

  /** Ends this connection as a broken one, which is made again. */
  drop(error: Error): void {
    this.socket?.destroy(error);
  }

  private async open(): Promise<void> {
    const socket = this.dial();
    this.socket = socket;
    this.core.outgoing.clear();
    const lost = new Promise<never>((_, reject) => {
      socket.once("close", () => reject(this.endedBy(socket)));
    });
    lost.catch(() => undefined);
    const timer = setTimeout(() => socket.destroy(new ReplyTimeout(`no connection for ${this.timeout} ms`)), this.timeout);
    try {
      await Promise.race([once(socket, this.options.tls ? "secureConnect" : "connect"), lost]);
      this.state = "open";
      socket.setNoDelay(true);
      socket.setKeepAlive(true, KEEP_ALIVE);
      socket.on("data", (data: Buffer) => this.take(socket, data));
      socket.on("drain", () => this.changed.notify());
      await Promise.race([this.core.handshake(), lost]);
      await Promise.race([this.core.resume(), lost]);
    } catch (error) {
      socket.destroy();
      if (this.state === "open") this.state = "new";
      throw error instanceof ClientError ? error : this.endedBy(socket);
    } finally {
      clearTimeout(timer);
    }
    if (socket.destroyed) throw this.endedBy(socket);
    this.established = true;
    this.state = "open";
    socket.once("close", () => this.disconnected(this.endedBy(socket)));
    this.lastHeard = Date.now();
    this.watch = setInterval(() => this.look(), Math.max(this.timeout / 4, 10));
    this.schedule();
    this.changed.notify();
  }

  private dial(): Socket {
    const host = this.options.host ?? "127.0.0.1";
    const port = this.options.port ?? this.port;
    const tls = this.options.tls;
    const socket = tls
      ? connectTls({ host, port, servername: host, ...(tls === true ? {} : tls) })
      : connectTcp({ host, port });
    socket.on("error", () => undefined); // `close` follows, and `errored` has it
    return socket;
  }

  private endedBy(socket: Socket): Error {
    const error = socket.errored;
    if (error instanceof ClientError) return error;
    if (!error) return new ConnectionLost("the broker closed the connection");
    const code = (error as NodeJS.ErrnoException).code ?? "";
    const isTls = this.options.tls && !/^E[A-Z]+$/.test(code.replace("ERR_", "_"));
    return new (isTls ? TlsFailed : ConnectionLost)(error.message || code, { cause: error });
  }

  private take(socket: Socket, data: Buffer): void {
    this.lastHeard = Date.now();
    try {
      this.core.receive(data);
    } catch (error) {
      socket.destroy(asError(error));
    }
  }

  /** Gathers what one turn of the event loop sends. */
  private schedule(): void {
    if (this.scheduled || this.state !== "open") return;
    this.scheduled = true;
    setImmediate(() => {
      this.scheduled = false;
      this.flush();
    });
  }

  private flush(): void {
    if (this.core.outgoing.size > 0 && this.socket?.writable && this.state === "open") {
      if (!this.core.awaiting) this.lastHeard = Date.now();
      this.socket.write(this.core.outgoing.take());
      this.changed.notify();
    }
  }

  private look(): void {
    if (!this.core.awaiting) this.lastHeard = Date.now();
    else if (Date.now() - this.lastHeard > this.timeout) {
      this.drop(new ReplyTimeout(`no answer for ${this.timeout} ms`));
    }
  }

  private disconnected(error: Error): void {
    clearInterval(this.watch);
    this.established = false;
    if (this.state !== "open") return;
    this.core.outgoing.clear();
    if (!this.backoff || error instanceof TlsFailed) {
      this.finish(error);
      this.tell("disconnected", error);
      this.tell("closed");
      return;
    }
    this.state = "waiting";
    this.core.lost(error, false);
    this.tell("disconnected", error);
    void this.reconnect(this.backoff, error);
  }

  private async reconnect(backoff: Backoff, error: Error): Promise<void> {
    for (const delay of backoff.delays()) {
      this.tell("reconnecting", delay, error);
      await this.changed.wait(delay);
      if (this.isFinal()) return;
      try {
        await this.open();
        if (this.isFinal()) this.socket?.destroy();
        else this.tell("connected", true);
        return;
      } catch (failure) {
        if (this.isFinal()) return;
        error = asError(failure);
        this.state = "waiting";
        this.core.lost(error, false);
        if (!isPassing(error)) {
          this.finish(error);
          this.tell("closed");
          return;
        }
      }
    }
  }

  private isFinal(): boolean {
    return this.state === "closed";
  }

  private finish(error: Error): void {
    clearInterval(this.watch);
    this.state = "closed";
    this.established = false;
    this.error = error;
    this.core.lost(error, true);
    this.changed.notify();
  }
}

/** Whether another attempt to connect may succeed. */
export function isPassing(error: Error): boolean {
  if (error instanceof TlsFailed) return false;
  if (!(error instanceof ClientError)) return true;
  return error instanceof ConnectionLost || error instanceof ReplyTimeout || (error as { passing?: boolean }).passing === true;
}
