/** A worker does the jobs of Overhop queues until it is stopped, and connects again whenever the connection is lost. */

import { Backoff } from "./backoff.js";
import { isPassing, type ConnectionEvents } from "./connection.js";
import { asError, Unencodable } from "./errors.js";
import { Events } from "./events.js";
import { Signal } from "./framing.js";
import { OverhopClient, type OverhopOptions } from "./overhop.js";
import type { Value } from "./overhop-codec.js";
import type { Quest } from "./overhop-core.js";
import { JobNotFound, MessageTooLarge, OverhopError } from "./overhop-errors.js";

/** Throw it in a handler: the attempt failed, and the next one comes after so many milliseconds. */
export class Retry extends Error {
  constructor(
    readonly milliseconds: number,
    message = "retry",
  ) {
    super(message);
  }
}

export type Handler = (job: JobContext) => Promise<Value | void> | Value | void;

export interface WorkerOptions extends OverhopOptions {
  /** A handler for each queue. */
  handlers: { [queue: string]: Handler };
  /** Jobs of each queue at once. */
  concurrency?: number;
  /** Milliseconds that running jobs have after `stop`. */
  grace?: number;
  /** Milliseconds between two BEATs while a job runs; by default a third of the time to its deadline. */
  heartbeat?: number;
}

/** `failed`: a handler threw, or its result cannot be sent. `lost`: the answer of a job did not reach the broker. */
export interface WorkerEvents extends ConnectionEvents {
  failed: [job: JobContext, error: Error];
  lost: [job: JobContext, error: Error];
}

/** A job, as its handler sees it. */
export class JobContext {
  /** True once the job is not ours any more: its answer will be dropped, so the handler may give up. */
  lost = false;

  constructor(
    private readonly client: OverhopClient,
    private readonly quest: Quest,
  ) {}

  get jid(): string {
    return this.quest.jid;
  }
  get queue(): string {
    return this.quest.queue;
  }
  get payload(): Value | undefined {
    return this.quest.payload;
  }
  get attempt(): number {
    return this.quest.attempt;
  }
  get maxAttempts(): number | undefined {
    return this.quest.maxAttempts;
  }
  get deadline(): Date | undefined {
    return this.quest.deadline;
  }

  /** Moves the deadline now. It is also moved in the background while the handler runs. */
  beat(): Promise<void> {
    return this.tell(() => this.client.beat(this.jid));
  }

  /** Keeps a line of text with the job; it is dropped if the job is lost. */
  log(line: string): Promise<void> {
    return this.tell(() => this.client.log(this.jid, line));
  }

  private async tell(send: () => Promise<void>): Promise<void> {
    if (this.lost) return;
    try {
      await send();
    } catch (error) {
      if (error instanceof Unencodable) throw error;
      if (error instanceof JobNotFound || !(error instanceof OverhopError)) this.lost = true;
    }
  }
}

const SHORTEST_HEARTBEAT = 50;
const QUIET = 30_000;

export class Worker extends Events<WorkerEvents> {
  private readonly client: OverhopClient;
  private readonly running = new Set<JobContext>();
  /** A job has ended, or `stop` was called. */
  private readonly changed = new Signal();
  private stopping = false;
  private session = 0;

  constructor(private readonly options: WorkerOptions) {
    super();
    const concurrency = options.concurrency ?? 1;
    if (!Number.isInteger(concurrency) || concurrency < 1) throw new RangeError(`concurrency is ${concurrency}: it must be 1 or more`);
    this.client = new OverhopClient(options);
    this.client.on("connected", (again) => this.tell("connected", again));
    this.client.on("disconnected", (error) => {
      this.session += 1;
      for (const job of this.running) job.lost = true;
      this.tell("disconnected", error);
    });
    this.client.on("reconnecting", (milliseconds, error) => this.tell("reconnecting", milliseconds, error));
    this.client.on("closed", () => this.tell("closed"));
  }

  /** Does jobs until `stop` is called. Throws OverhopError if the broker does not let us subscribe. */
  async run(): Promise<void> {
    await this.attempt(() => this.client.connect());
    const timer = setInterval(() => void this.client.ping().catch(() => undefined), QUIET);
    try {
      await this.attempt(() => this.client.ping()); // deadlines are by the broker's clock
      const sids: string[] = [];
      for (const queue of Object.keys(this.options.handlers)) {
        await this.attempt(async () => void sids.push(await this.client.subscribe(queue, this.options.concurrency ?? 1)));
      }
      while (!this.stopping) {
        const quest = await this.client.nextQuest();
        if (quest && !this.stopping) void this.handle(quest);
      }
      await this.finish(sids);
    } finally {
      clearInterval(timer);
      await this.client.close();
    }
  }

  /** Takes no more jobs, gives those that run their time, hands the rest back; `run` returns then. */
  stop(): void {
    this.stopping = true;
    this.client.interrupt();
    this.changed.notify();
  }

  /** Does a part of the beginning until it is done or the worker is stopped, with pauses while there is no broker. */
  private async attempt(part: () => Promise<unknown>): Promise<void> {
    for (const delay of (this.options.reconnect || new Backoff()).delays()) {
      if (this.stopping) return;
      try {
        await Promise.race([part(), this.stopped()]);
        return;
      } catch (thrown) {
        const error = asError(thrown);
        if (!isPassing(error) || this.options.reconnect === false) throw error;
        if (!this.stopping) this.tell("reconnecting", delay, error);
      }
      if (!this.stopping) await this.changed.wait(delay);
    }
  }

  private async stopped(): Promise<void> {
    while (!this.stopping) await this.changed.wait();
  }

  private async finish(sids: string[]): Promise<void> {
    // Without a connection there is nobody to tell: the broker has given the jobs to others.
    for (const sid of sids) if (this.client.isConnected) await this.client.unsubscribe(sid).catch(() => undefined);
    const deadline = performance.now() + (this.options.grace ?? 30_000);
    while (this.running.size > 0 && performance.now() < deadline) await this.changed.wait(deadline - performance.now());
    for (const job of this.running) job.lost = true;
    if (this.client.isConnected) await this.client.goodbye("the worker stops").catch(() => undefined);
  }

  private async handle(quest: Quest): Promise<void> {
    const session = this.session;
    const job = new JobContext(this.client, quest);
    this.running.add(job);
    this.watched(job, this.client.ack(quest.jid));
    const heart = this.startHeart(job);
    let answer: () => Promise<void>;
    try {
      const result = await this.options.handlers[quest.queue]?.(job);
      answer = () => this.client.done(job.jid, result ?? undefined);
    } catch (thrown) {
      const error = asError(thrown);
      if (!(error instanceof Retry)) this.tell("failed", job, error);
      answer = () => (error instanceof Retry ? this.client.fail(job.jid, error.message, error.milliseconds) : this.client.fail(job.jid, `${error.name}: ${error.message}`));
    }
    clearInterval(heart);
    this.running.delete(job);
    this.changed.notify();
    if (session !== this.session) this.tell("lost", job, new Error("the connection of the job is gone"));
    else this.watched(job, this.answered(job, answer));
    if (!this.stopping) this.client.grant(quest.sid, 1).catch(() => undefined);
  }

  private async answered(job: JobContext, answer: () => Promise<void>): Promise<void> {
    try {
      await answer();
    } catch (error) {
      if (!(error instanceof Unencodable || error instanceof MessageTooLarge)) throw error;
      this.tell("failed", job, error);
      await this.client.fail(job.jid, `the result cannot be sent: ${error.message}`);
    }
  }

  private watched(job: JobContext, sent: Promise<void>): void {
    sent.catch((error: unknown) => {
      job.lost = true;
      this.tell("lost", job, asError(error));
    });
  }

  private startHeart(job: JobContext): NodeJS.Timeout | undefined {
    const left = job.deadline ? (job.deadline.getTime() - this.client.now()) / 3 : undefined;
    const pause = this.options.heartbeat ?? (left === undefined ? undefined : Math.max(left, SHORTEST_HEARTBEAT));
    return pause === undefined ? undefined : setInterval(() => void job.beat(), pause);
  }
}
