/** Overhop: jobs with retries, delays, logs and results. `worker.ts` has the worker. */

import { relay } from "./blipmq.js";
import { Connection, type ConnectionEvents, type Options } from "./connection.js";
import { ProtocolViolation } from "./errors.js";
import { Events } from "./events.js";
import { Signal } from "./framing.js";
import { isMap, MAX_ENVELOPE, Type, type Payload, type Value } from "./overhop-codec.js";
import { optionalDate, optionalNumber, OverhopCore, text, type Quest } from "./overhop-core.js";
import { OverhopError } from "./overhop-errors.js";

export interface OverhopOptions extends Options {
  /** Send enqueues that were not answered once more after a reconnect. A job may then be made twice. */
  resend?: boolean;
  /** Bytes of the largest message that is sent and taken. */
  maxEnvelope?: number;
}

/** A job's options; the queue's hold for those that are left out. Times are milliseconds. */
export interface JobOptions {
  scheduledAt?: Date;
  /** Milliseconds by the broker's clock. */
  delay?: number;
  maxAttempts?: number;
  retryInterval?: number;
  key?: string;
  priority?: number;
}

export interface QueueInfo {
  id: string;
  name: string;
  state: string;
  paused: boolean;
  concurrencyLimit: number | undefined;
  allowJobOverrides: boolean;
}

export type Status = "new" | "waiting" | "delayed" | "active" | "completed" | "failed";

export interface Job {
  jid: string;
  uuid: string;
  queue: string;
  payload: Value | undefined;
  status: Status;
  attempts: number;
  maxAttempts: number | undefined;
  retryInterval: number | undefined;
  scheduledAt: Date | undefined;
  createdAt: Date | undefined;
  result: Value | undefined;
  error: string | undefined;
  /** The broker's whole record of it. */
  record: Payload;
}

/** Unanswered requests at which callers wait. */
const WINDOW = 4096;
const MAX_ERROR = 2000;

export class OverhopClient extends Events<ConnectionEvents> {
  private readonly core: OverhopCore;
  private readonly connection: Connection;
  private readonly quests: Quest[] = [];
  private readonly news = new Signal();
  private interrupted = false;
  /** Subscriptions by the id that the program has: queue, credits that the broker has, its own id. */
  private readonly subscriptions = new Map<string, { queue: string; credits: number; sid: string }>();

  constructor(options: OverhopOptions = {}) {
    super();
    this.core = new OverhopCore(options.resend ?? false, options.maxEnvelope ?? MAX_ENVELOPE);
    this.connection = new Connection(this.core, options, 9876);
    relay(this.connection, this);
    this.core.onResent = (count) => this.tell("resent", count);
    this.core.onResume = () => this.resume();
    this.core.onQuest = (quest) => this.take(quest);
    this.on("disconnected", () => this.news.notify());
  }

  static async connect(options: OverhopOptions = {}): Promise<OverhopClient> {
    const client = new OverhopClient(options);
    await client.connect();
    return client;
  }

  connect(): Promise<void> {
    return this.connection.connect();
  }

  /** The broker's name for this connection. */
  get workerId(): string {
    return this.core.workerId;
  }

  /** Returns the broker's time; everything asked before has been done. */
  async ping(): Promise<Date> {
    return new Date(text(await this.ask(Type.PING, {}), "server_time"));
  }

  async queue(name: string): Promise<QueueInfo | undefined> {
    const found = await this.ask(Type.GQUEUE, { q: name });
    return Object.keys(found).length > 0 ? queueOf(found) : undefined;
  }

  async queues(): Promise<QueueInfo[]> {
    return maps(await this.ask(Type.LQUEUES, {}), "queues").map(queueOf);
  }

  async createQueue(name: string, options: { concurrencyLimit?: number; allowJobOverrides?: boolean } = {}): Promise<string> {
    const config = { concurrency_limit: options.concurrencyLimit ?? null, allow_job_overrides: options.allowJobOverrides ?? true };
    return text(await this.ask(Type.ADDQUEUE, { name, config }), "qid");
  }

  async deleteQueue(name: string): Promise<void> {
    await this.ask(Type.RMQUEUE, { q: name });
  }

  async pause(name: string): Promise<void> {
    await this.ask(Type.PAUSE, { q: name });
  }

  async resumeQueue(name: string): Promise<void> {
    await this.ask(Type.RESUME, { q: name });
  }

  async stats(queue: string): Promise<{ [status in Status]: number }> {
    return (await this.ask(Type.QSTATS, { q: queue }))["stats"] as { [status in Status]: number };
  }

  status(): Promise<Payload> {
    return this.ask(Type.STATUS, {});
  }

  /**
   * Adds a job and returns its id; it is durable then. Throws Unencodable for a payload with a fraction or a number
   * beyond 2^53, with the path of the value; nothing is sent then.
   */
  async enqueue(queue: string, payload?: Value, options: JobOptions = {}): Promise<string> {
    const request = { q: queue, job_payload: payload ?? undefined, ...(await this.jobOptions(options)) };
    return text(await this.ask(Type.ENQUEUE, request), "jid");
  }

  /** Adds a job for each payload without waiting for each. Throws the first refusal; its `jids` has those taken. */
  async enqueueMany(queue: string, payloads: Iterable<Value>, options: Omit<JobOptions, "key"> = {}): Promise<string[]> {
    const answers = await Promise.allSettled(Array.from(payloads, (payload) => this.enqueue(queue, payload, options)));
    const jids = answers.map((answer) => (answer.status === "fulfilled" ? answer.value : undefined));
    for (const answer of answers) {
      if (answer.status === "rejected") {
        if (answer.reason instanceof OverhopError) answer.reason.jids = jids;
        throw answer.reason;
      }
    }
    return jids as string[];
  }

  async job(jid: string): Promise<Job | undefined> {
    const record = await this.ask(Type.JOB, { jid });
    return Object.keys(record).length > 0 ? jobOf(record) : undefined;
  }

  async jobs(queue: string, status: Status, page = 1, pageSize = 15): Promise<Job[]> {
    return maps(await this.ask(Type.LSJOB, { q: queue, status, page, page_size: pageSize }), "jobs").map(jobOf);
  }

  async removeJob(jid: string): Promise<void> {
    await this.ask(Type.RMJOB, { jid });
  }

  /** Takes jobs of a queue, as many as there are credits. The subscription outlives a reconnect. */
  async subscribe(queue: string, credits = 0): Promise<string> {
    await this.connection.ready();
    const entry = { queue, credits, sid: "" };
    // Jobs may come in the same packet as the answer.
    const sid = text(await this.core.ask(Type.SUBSCRIBE, { q: queue, credits }), "sid");
    entry.sid = sid;
    entry.credits -= this.quests.filter((quest) => quest.sid === sid).length;
    this.subscriptions.set(sid, entry);
    return sid;
  }

  async unsubscribe(sid: string): Promise<void> {
    const entry = this.subscriptions.get(sid);
    this.subscriptions.delete(sid);
    await this.ask(Type.UNSUBSCRIBE, { sid: entry?.sid ?? sid });
  }

  async grant(sid: string, credits: number): Promise<void> {
    const entry = this.subscriptions.get(sid);
    if (entry) entry.credits += credits;
    await this.ask(Type.CREDIT, { sid: entry?.sid ?? sid, credits });
  }

  /** Returns the next job, or undefined when none has come for `timeout` milliseconds. */
  async nextQuest(timeout = Infinity): Promise<Quest | undefined> {
    const deadline = performance.now() + timeout;
    for (;;) {
      const quest = this.quests.shift();
      if (quest) return quest;
      this.connection.check();
      const left = deadline - performance.now();
      if (left <= 0 || this.interrupted) return undefined;
      await this.news.wait(left);
    }
  }

  /** Has `nextQuest` wait no more, from now on. */
  interrupt(): void {
    this.interrupted = true;
    this.news.notify();
  }

  get isConnected(): boolean {
    return this.connection.isOpen;
  }

  async ack(jid: string): Promise<void> {
    await this.ask(Type.ACK, { jid });
  }

  async done(jid: string, result?: Value): Promise<void> {
    await this.ask(Type.DONE, { jid, result: result ?? undefined });
  }

  /** Says that an attempt failed; the next one comes after `retryIn` milliseconds, else after the job's interval. */
  async fail(jid: string, error?: string, retryIn?: number): Promise<void> {
    await this.ask(Type.FAIL, { jid, error: error?.toWellFormed().slice(0, MAX_ERROR).toWellFormed(), retry_in_ms: milliseconds(retryIn) });
  }

  async beat(jid: string): Promise<void> {
    await this.ask(Type.BEAT, { jid });
  }

  async log(jid: string, line: string): Promise<void> {
    await this.ask(Type.LOG, { jid, line });
  }

  /** Gives back all jobs that are not answered, and disconnects. */
  async goodbye(reason?: string): Promise<void> {
    await this.ask(Type.GOODBYE, { reason });
    await this.connection.close();
  }

  async close(): Promise<void> {
    await this.connection.close();
    this.news.notify();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** The broker's time in milliseconds, as far as it is known. */
  now(): number {
    return Date.now() + (this.core.clockOffset ?? 0);
  }

  private async ask(t: number, p: Payload): Promise<Payload> {
    while (!this.connection.isOpen || this.core.unanswered >= WINDOW) {
      await this.connection.ready();
      if (this.core.unanswered >= WINDOW) await new Promise(setImmediate);
    }
    return this.core.ask(t, p);
  }

  private async jobOptions(options: JobOptions): Promise<Payload> {
    let at = options.scheduledAt;
    if (options.delay !== undefined) {
      if (at) throw new RangeError("give scheduledAt or delay, not both");
      if (!(options.delay >= 0 && options.delay < 8e15)) throw new RangeError(`delay is ${options.delay}: give milliseconds, 0 or more`);
      if (this.core.clockOffset === undefined) await this.ping();
      at = new Date(this.now() + options.delay);
    }
    return {
      scheduled_at: at?.toISOString(),
      max_attempts: options.maxAttempts,
      retry_interval_ms: milliseconds(options.retryInterval),
      key: options.key,
      priority: options.priority,
    };
  }

  private take(quest: Quest): void {
    for (const [sid, entry] of this.subscriptions) {
      if (entry.sid !== quest.sid) continue;
      entry.credits -= 1;
      quest = { ...quest, sid };
    }
    this.quests.push(quest);
    this.news.notify();
  }

  private async resume(): Promise<void> {
    // The broker has given what was delivered to others.
    const returned = this.quests.splice(0);
    for (const [sid, entry] of this.subscriptions) {
      entry.credits += returned.filter((quest) => quest.sid === sid).length;
      entry.sid = text(await this.core.ask(Type.SUBSCRIBE, { q: entry.queue, credits: entry.credits }), "sid");
    }
  }
}

function milliseconds(value: number | undefined): number | undefined {
  if (value === undefined) return undefined;
  if (!(value >= 0 && value < Infinity)) throw new RangeError(`${value}: give milliseconds, 0 or more`);
  return Math.max(Math.round(value), value > 0 ? 1 : 0);
}

function maps(p: Payload, key: string): Payload[] {
  const value = p[key];
  if (!Array.isArray(value)) throw new ProtocolViolation(`${key} is not an array`);
  return value as Payload[];
}

function queueOf(p: Payload): QueueInfo {
  const config = isMap(p["config"]) ? p["config"] : {};
  const state = text(p, "state");
  return {
    id: text(p, "id"), name: text(p, "name"), state, paused: state === "paused",
    concurrencyLimit: optionalNumber(config, "concurrency_limit"), allowJobOverrides: config["allow_job_overrides"] === true,
  };
}

function jobOf(record: Payload): Job {
  const runtime = isMap(record["runtime"]) ? record["runtime"] : {};
  const error = record["error"];
  return {
    jid: text(record, "jid"), uuid: text(record, "uuid"), queue: text(record, "queue_name"), payload: record["payload"],
    status: text(record, "status") as Status, attempts: optionalNumber(runtime, "attempts_so_far") ?? 0,
    maxAttempts: optionalNumber(record, "max_attempts"), retryInterval: optionalNumber(record, "retry_interval_ms"),
    scheduledAt: optionalDate(record, "execution_start_at"), createdAt: optionalDate(record, "created_at"),
    result: record["result"], error: typeof error === "string" ? error : undefined, record,
  };
}
