// An Overhop client and worker, written from docs/protocols/overhop.md alone.
//
//   node worker.mjs enqueue HOST PORT QUEUE COUNT     gives COUNT jobs, all in one go, and prints their jids
//   node worker.mjs work HOST PORT QUEUE              does jobs until SIGTERM, and prints what it does
//
// A job's payload is {"text": …}: it is done with {"reversed": …}. With "fail": N the first N attempts fail; with
// "hold": true it is kept, with BEATs, until the worker stops. Output is a JSON object a line.

import { createConnection } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { decode, encode } from "@msgpack/msgpack";

const HELLO = 1, REGISTER = 2, PING = 3, SUBSCRIBE = 6, CREDIT = 8, ADDQUEUE = 9, ENQUEUE = 14;
const ACK = 19, DONE = 20, FAIL = 21, BEAT = 22, GOODBYE = 23, LOG = 24;
const OK = 101, ERR = 102, HI = 103, IDENT = 104, PONG = 105, QUEST = 106;
const ANSWERS = { [HELLO]: HI, [PING]: PONG }; // all others are answered with OK

const LARGEST = 32 * 1024 * 1024;
const CREDITS = 3;

class Refused extends Error {
  constructor({ code, msg }) {
    super(`${code}: ${msg}`);
    this.code = code;
  }
}

class Connection {
  #socket;
  #received = Buffer.alloc(0);
  #asked = new Map();
  #next = 1;
  onQuest = () => {};

  static async open(host, port) {
    const connection = new Connection();
    await new Promise((resolve, reject) => {
      connection.#socket = createConnection({ host, port, noDelay: true }, resolve).once("error", reject);
    });
    connection.closed = new Promise((resolve) => connection.#socket.once("close", resolve));
    connection.#socket.on("error", () => {}); // "close" follows
    connection.#socket.on("data", (data) => connection.#take(data));
    connection.closed.then(() => {
      for (const { reject } of connection.#asked.values()) reject(new Error("the broker closed the connection"));
    });
    await Promise.all([connection.ask(HELLO), connection.ask(REGISTER)]); // in one go: no IDENT then
    return connection;
  }

  ask(t, p = {}) {
    const rid = String(this.#next++);
    const envelope = encode({ v: 2, t, rid, p }, { sortKeys: true, ignoreUndefined: true });
    const length = Buffer.alloc(4);
    length.writeUInt32BE(envelope.length);
    this.#socket.write(Buffer.concat([length, envelope]));
    return new Promise((resolve, reject) => this.#asked.set(rid, { t, resolve, reject }));
  }

  close() {
    this.#socket.end();
  }

  #take(data) {
    this.#received = Buffer.concat([this.#received, data]);
    while (this.#received.length >= 4) {
      const length = this.#received.readUInt32BE();
      if (length === 0 || length > LARGEST) return this.#socket.destroy();
      if (this.#received.length < 4 + length) return;
      const { v, t, rid, p } = decode(this.#received.subarray(4, 4 + length));
      this.#received = this.#received.subarray(4 + length);
      if (v !== 2) return this.#socket.destroy();
      if (t === QUEST) this.onQuest(p);
      else if (rid === "0" && t === ERR) return this.#socket.destroy(); // CONNECTION_TIMEOUT
      else if (t !== IDENT) this.#answer(t, rid, p);
    }
  }

  #answer(t, rid, p) {
    const request = this.#asked.get(rid);
    if (!request) return this.#socket.destroy();
    this.#asked.delete(rid);
    if (t === ERR) request.reject(new Refused(p));
    else if (t === (ANSWERS[request.t] ?? OK)) request.resolve(p);
    else request.reject(new Error(`request ${request.t} was answered ${t}`));
  }
}

const say = (event, more = {}) => process.stdout.write(JSON.stringify({ event, ...more }) + "\n");

async function addQueue(connection, name) {
  try {
    await connection.ask(ADDQUEUE, { name });
  } catch (error) {
    if (error.code !== "DUPLICATE_QUEUE") throw error;
  }
}

async function enqueue(connection, q, count) {
  await addQueue(connection, q);
  const texts = Array.from({ length: count }, (_, n) => `job ${n}`);
  const answers = await Promise.all(texts.map((text) => connection.ask(ENQUEUE, { q, job_payload: { text } })));
  for (const { jid } of answers) say("enqueued", { jid });
  connection.close();
}

class Worker {
  stopping = false;
  #sid;

  constructor(connection, q) {
    this.connection = connection;
    this.q = q;
    connection.onQuest = (quest) => this.#do(quest).catch((error) => this.#gone(quest, error));
  }

  async start() {
    await addQueue(this.connection, this.q);
    const { sid } = await this.connection.ask(SUBSCRIBE, { q: this.q, credits: CREDITS });
    this.#sid = sid;
    say("subscribed", { sid });
  }

  async stop() {
    this.stopping = true;
    await this.connection.ask(GOODBYE, { reason: "SIGTERM" });
    say("goodbye");
  }

  async #do({ jid, job_payload: payload, attempt, max_attempts: most, deadline }) {
    const { connection } = this;
    say("quest", { jid, attempt });
    await connection.ask(ACK, { jid });
    await connection.ask(LOG, { jid, line: `attempt ${attempt} of ${most}` });
    await connection.ask(BEAT, { jid });
    if (payload.hold) return this.#hold(jid, deadline);
    if (attempt <= (payload.fail ?? 0)) {
      await connection.ask(FAIL, { jid, error: `attempt ${attempt} was to fail`, retry_in_ms: 10 });
      say("failed", { jid, attempt });
    } else {
      await connection.ask(DONE, { jid, result: { attempt, reversed: [...payload.text].reverse().join("") } });
      say("done", { jid, attempt });
    }
    if (!this.stopping) await connection.ask(CREDIT, { sid: this.#sid, credits: 1 });
  }

  async #hold(jid, deadline) {
    const { server_time: now } = await this.connection.ask(PING);
    const pause = deadline === null ? 1000 : Math.max((Date.parse(deadline) - Date.parse(now)) / 3, 50);
    while (!this.stopping) {
      await this.connection.ask(BEAT, { jid });
      say("beat", { jid });
      await sleep(pause, undefined, { ref: false });
    }
  }

  #gone({ jid }, error) {
    if (!this.stopping) say("lost", { jid, error: error.message }); // JOB_NOT_FOUND: another worker has it
  }
}

async function work(connection, q) {
  const worker = new Worker(connection, q);
  process.once("SIGTERM", () => worker.stop());
  await worker.start();
  await connection.closed;
  if (!worker.stopping) throw new Error("the broker closed the connection");
}

const [mode, host, port, q, count] = process.argv.slice(2);
const connection = await Connection.open(host, Number(port));
if (mode === "enqueue") await enqueue(connection, q, Number(count));
else if (mode === "work") await work(connection, q);
else throw new Error("usage: worker.mjs enqueue HOST PORT QUEUE COUNT | work HOST PORT QUEUE");
